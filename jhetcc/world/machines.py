# SPDX-License-Identifier: Apache-2.0
"""The machines of a communicator: one process of each host looks at it, and all ranks hear what it saw. Collective calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jhetcc.topology import Rank, Seen, Topology, Unknown, discover, dumps, host_name, loads

if TYPE_CHECKING:
    from jhetcc.world.communicator import Communicator
    from jhetcc.world.world import World

__all__ = ["survey", "unique_names"]


def survey(communicator: Communicator, world: World) -> Topology:
    """Hosts as they are found, with the communicator's ranks and clusters on them: equal on all ranks.

    A host has a cpu device for every rank of the world that was born there; those without a rank here take no part.
    """
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
        told = dumps(discover(seen=[Seen("cpu")] * len(born[host]), name=names[host])).encode()
    found = [loads(text.decode(), "a host of the job") for text in exchange(communicator, told) if text]

    hosts = tuple(host for each in found for host in each.hosts)
    several = len(hosts) > 1
    unknown = tuple(
        Unknown(f"{each.hosts[0].name}: {one.what}" if several else one.what, one.why)
        for each in found
        for one in each.unknown
    )
    places = tuple(Rank(names[h], f"cpu{born[h].index(rank)}") for rank in ranks for h in (world.host_of(rank),))
    return Topology(hosts, places, communicator.clusters, unknown)


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
