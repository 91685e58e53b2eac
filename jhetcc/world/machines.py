# SPDX-License-Identifier: Apache-2.0
"""The machines of a communicator: one process of each host looks at it, and all ranks hear what it saw. Collective calls."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jhetcc.errors import BadArgumentError
from jhetcc.topology import Cluster, Host, Nic, Rank, Seen, Topology, Unknown, discover, dumps, host_name, load, loads
from jhetcc.world import calibration, state

if TYPE_CHECKING:
    from jhetcc.world.communicator import Communicator
    from jhetcc.world.world import World

__all__ = ["learn", "of_ranks", "survey", "unique_names"]


def learn(world: World) -> Topology | None:
    """What plans know of the job's machines, once at the start: a call of all its processes; None where nothing could matter.

    The file of ``JHETCC_TOPOLOGY``, read by process 0, whose ranks are the job's, in order; else, where clusters are on several hosts,
    what is found there, if each of these hosts has a NIC of known rate that is no virtual one.

    Raises:
      BadArgumentError: a file that is no topology, or of another number of ranks; on all processes alike.
    """
    everywhere = state.communicator("world")
    if not world.options.topology and (len(everywhere.clusters) < 2 or not everywhere.layout.spans_hosts):
        return None
    with calibration.meeting(world) as everybody:
        if world.options.topology:
            return _of_file(everybody, world, everywhere.clusters)
        hosts, ranks, unknown = _look(everybody, world, everywhere.world_ranks, _load_for_nics)
    hosts = tuple(replace(host, nics=tuple(nic for nic in host.nics if _counts(nic))) for host in hosts)
    if not all(any(nic.is_up for nic in host.nics) for host in hosts):
        return None
    return Topology(hosts, ranks, everywhere.clusters, unknown)


def _load_for_nics(name: str) -> Any:
    """Imports what tells of NICs; libraries of devices would begin to use these here."""
    if name.partition(".")[0] in ("pyroute2", "pyverbs"):
        return importlib.import_module(name)
    raise ImportError(f"{name} is not asked at the start of a job")


def _counts(nic: Nic) -> bool:
    return nic.kind != "virtual" and bool(nic.gbit_per_s)


def _of_file(everybody: Communicator, world: World, clusters: tuple[Cluster, ...]) -> Topology:
    """Read by process 0, told to all."""
    name, told = f"JHETCC_TOPOLOGY={world.options.topology}", b""
    if world.launch.process_id == 0:
        try:
            told = dumps(load(str(world.options.topology))).encode()
        except BadArgumentError as why:
            told = b"!" + str(why).encode()
    text = exchange(everybody, told)[0].decode()
    if text.startswith("!"):
        raise BadArgumentError(text[1:], code="bad_topology", scope="process")
    found, size = loads(text, name), sum(member.ranks for member in world.members)
    if found.size != size:
        raise BadArgumentError(
            f"{name} has {found.size} ranks and this job {size}: name a file of this job's ranks, in their order, or unset it",
            code="bad_topology",
            scope="process",
        )
    try:
        return Topology(found.hosts, found.ranks, clusters, found.unknown)
    except BadArgumentError as why:
        raise BadArgumentError(f"{name} does not fit this job: {why}", code="bad_topology", scope="process") from None


def survey(communicator: Communicator, world: World) -> Topology:
    """Hosts as they are found, or in the file of ``JHETCC_TOPOLOGY``, with the communicator's ranks and clusters: equal on all ranks.

    A host that is found has a cpu device for every rank of the world that was born there; those without a rank here take no part.
    """
    if world.options.topology and world.machines is not None:
        return of_ranks(world.machines, communicator)
    hosts, ranks, unknown = _look(communicator, world, communicator.world_ranks)
    return Topology(hosts, ranks, communicator.clusters, unknown)


def of_ranks(machines: Topology, communicator: Communicator) -> Topology:
    """The machines of the job with the ranks and clusters of a communicator."""
    places = tuple(machines.ranks[rank] for rank in communicator.world_ranks)
    return Topology(machines.hosts, places, communicator.clusters, machines.unknown)


def _look(
    communicator: Communicator,
    world: World,
    wanted: Sequence[int],
    load: Callable[[str], Any] = importlib.import_module,
) -> tuple[tuple[Host, ...], tuple[Rank, ...], tuple[Unknown, ...]]:
    """The hosts of a communicator's ranks, the places of these ranks of the world on them, and what could not be asked."""
    everybody = range(sum(member.ranks for member in world.members))
    born: dict[int, list[int]] = {}
    for rank in everybody:
        born.setdefault(world.host_of(rank), []).append(rank)
    texts = [""] * len(born)
    for rank in everybody:
        texts[world.host_of(rank)] = world.members[world.process_of(rank)].host
    names = unique_names(texts)

    ranks = communicator.world_ranks
    own = ranks[communicator.local_ranks[0]]
    host = world.host_of(own)
    told = b""
    if own == next(rank for rank in ranks if world.host_of(rank) == host):
        told = dumps(discover(seen=[Seen("cpu")] * len(born[host]), name=names[host], load=load)).encode()
    found = [loads(text.decode(), "a host of the job") for text in exchange(communicator, told) if text]

    hosts = tuple(host for each in found for host in each.hosts)
    several = len(hosts) > 1
    unknown = tuple(
        Unknown(f"{each.hosts[0].name}: {one.what}" if several else one.what, one.why)
        for each in found
        for one in each.unknown
    )
    places = tuple(Rank(names[h], f"cpu{born[h].index(rank)}") for rank in wanted for h in (world.host_of(rank),))
    return hosts, places, unknown


def unique_names(texts: Sequence[str]) -> list[str]:
    """A name for each host: containers of one machine often call themselves alike."""
    names: list[str] = []
    for text in texts:
        base = name = host_name(text)
        number = 1
        while name in names:
            number += 1
            name = f"{base[:56]}-{number}"
        names.append(name)
    return names


def exchange(communicator: Communicator, text: bytes) -> list[bytes]:
    """What each rank gives, by rank; a process gives it by its first rank, its others give nothing."""
    mine = [np.frombuffer(text, np.uint8)]
    mine += [np.zeros(0, np.uint8)] * (len(communicator.local_ranks) - 1)
    sizes = [np.array([each.size], np.int64) for each in mine]
    if len(mine) == 1:
        lengths = communicator.all_gather(sizes[0]).ravel()
        whole = communicator.all_gather(mine[0], lengths=lengths.tolist())
    else:
        lengths = communicator.all_gather(sizes)[0].ravel()
        whole = communicator.all_gather(mine, lengths=lengths.tolist())[0]
    return [part.tobytes() for part in np.split(whole, np.cumsum(lengths)[:-1])]
