# SPDX-License-Identifier: Apache-2.0
"""The costs that all ranks of a world plan with: built-in, from a file, or measured here once and kept (``JHETCC_PROFILE``).

Measured by one rank of each process: a pair of processes on every host, pairs of neighbouring hosts, a few hosts all at once,
a rank of every host alone, the ranks of every cluster that has a library, one kind after the other. Everybody gets the table of what was
found and takes the medians, and of each host's link the best of its pairs, so all hold the same profile; hashes are
compared before it is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jhetcc import config
from jhetcc.errors import BadArgumentError
from jhetcc.planner import Library, Link, Profile
from jhetcc.schedule import fnv1a
from jhetcc.world import state
from jhetcc.world.measuring import Room, crowd_costs, library_costs, link_costs, memory_costs

if TYPE_CHECKING:
    from jhetcc.topology import Topology
    from jhetcc.world.communicator import Communicator
    from jhetcc.world.world import World

__all__ = ["Pairs", "adopt", "combined", "measure", "meeting", "pairs_of", "settle", "steadier", "topology_hash"]

_log = logging.getLogger("jhetcc")
_COSTS = ("shm_alpha", "shm_beta", "tcp_alpha", "host_beta", "call", "copy", "reduce", "crowd_beta")
_CROWD_HOSTS = 4  # enough to see how links are shared
_DIGITS = 3  # that are kept of a measurement
_UNSTEADY = 2.0  # times: two measurements of an idle machine differ by less
_ALIKE = 1.25  # links of hosts that differ by less are taken for equal ones


@dataclasses.dataclass(frozen=True)
class Pairs:
    """World ranks that measure: neighbours on hosts, neighbours between hosts in turns, one alone on each host, and those of
    three hosts or four that all talk at once."""

    near: tuple[tuple[int, int], ...]
    far: tuple[tuple[tuple[int, int], ...], ...]
    alone: tuple[int, ...]
    crowd: tuple[int, ...] = ()


def pairs_of(hosts: Sequence[int], processes: Sequence[int]) -> Pairs:
    """Who measures with whom.

    Args:
      hosts: of each rank.
      processes: of each rank; on a host of one process, two of its ranks measure their link.

    Example:
      >>> pairs_of([0, 0, 0, 1, 2], [0, 0, 1, 2, 3])
      Pairs(near=((0, 2),), far=(((0, 3),), ((3, 4),), ((4, 0),)), alone=(0, 3, 4), crowd=(0, 2, 3, 4))
    """
    on: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts):
        on.setdefault(host, []).append(rank)
    near = []
    for ranks in on.values():
        first_of = list({processes[rank]: rank for rank in reversed(ranks)}.values())[::-1]
        pair = first_of[:2] if len(first_of) > 1 else ranks[:2]
        if len(pair) == 2:
            near.append((pair[0], pair[1]))
    alone = tuple(ranks[0] for ranks in on.values())
    neighbours = list(itertools.pairwise(alone))
    around = [(alone[-1], alone[0])] if len(alone) > 2 else []  # so that a slow host between two others hides neither
    far = tuple(tuple(turn) for turn in (neighbours[0::2], neighbours[1::2], around) if turn)
    some = set(alone[:_CROWD_HOSTS])
    crowd = sorted(some | {rank for pair in near if pair[0] in some for rank in pair}) if len(some) > 2 else ()
    return Pairs(tuple(near), far, alone, tuple(crowd))


def combined(rows: np.ndarray, libraries: Sequence[str], hosts: Sequence[int] = ()) -> Profile:
    """The profile of a table of measurements: medians of each column; what nobody measured costs what it does by default.

    A host's link is as fast as the fastest of the pairs it was in; ``tcp`` is the slowest of them.

    Args:
      rows: of each process: the costs of links and memory, then three of each library; not a number where not measured.
      libraries: their names, each once.
      hosts: of each process.

    Example:
      >>> combined(np.full((2, 8), np.nan), []) == Profile()
      True
    """
    known: dict[str, float] = {}
    names = [*_COSTS, *(f"{name} {cost}" for name in libraries for cost in ("alpha", "move", "reduce"))]
    for name, column in zip(names, rows.T, strict=True):
        found = np.sort(column[~np.isnan(column)])
        if len(found):
            place = -1 if name == "host_beta" else (len(found) - 1) // 2
            known[name] = _kept(found[place])  # one that was measured, not a mean
    built_in = Profile()
    made = tuple(
        (name, Library(*(known[f"{name} {cost}"] for cost in ("alpha", "move", "reduce"))))
        for name in sorted(libraries)
        if f"{name} alpha" in known
    )
    return Profile(
        shm=Link(known.get("shm_alpha", built_in.shm.alpha), known.get("shm_beta", built_in.shm.beta)),
        tcp=Link(known.get("tcp_alpha", built_in.tcp.alpha), known.get("host_beta", built_in.tcp.beta)),
        crowd=_kept(max(1.0, known["crowd_beta"] / known["host_beta"])) if "crowd_beta" in known else built_in.crowd,
        copy=known.get("copy", built_in.copy),
        reduce=known.get("reduce", built_in.reduce),
        call=known.get("call", built_in.call),
        hosts=_links(rows[:, _COSTS.index("host_beta")], hosts),
        libraries=made,
    )


def _kept(seconds: float) -> float:
    return float(f"{seconds:.{_DIGITS}g}")


def _links(betas: np.ndarray, hosts: Sequence[int]) -> tuple[float, ...]:
    """Seconds a byte of each host's link; empty where all are about alike, or one was not measured."""
    found = [np.nan] * len(set(hosts))
    for host, beta in zip(hosts, betas, strict=False):
        found[host] = np.fmin(found[host], beta)
    slowest = max(found, default=np.nan)
    if np.isnan(found).any() or all(slowest < _ALIKE * beta for beta in found):
        return ()
    return tuple(_kept(slowest if slowest < _ALIKE * beta else beta) for beta in found)


@contextlib.contextmanager
def meeting(world: World) -> Iterator[Communicator]:
    """A communicator of one rank of each process, for what calibration tells and asks."""
    processes = [world.process_of(rank) for rank in range(state.communicator("world").size)]
    room = Room(world, "calibration", tuple(processes.index(process) for process in sorted(set(processes))))
    try:
        yield room.comm
    finally:
        room.close()


def measure(world: World, everybody: Communicator) -> Profile:
    """Measures what this world's links, memory and libraries cost: a call of all its processes.

    Args:
      world: whose operations may start.
      everybody: of ``meeting()``.

    Returns:
      The same profile on all of them.

    Raises:
      Error: a rank was lost meanwhile.
    """
    begin = time.monotonic()
    whole = state.communicator("world")
    pairs = pairs_of(whole.layout.hosts, [world.process_of(rank) for rank in range(whole.size)])
    clusters = [s for s in whole.layout.clusters or () if s.vendor is not None and s.native("sum", "f32")]
    libraries = sorted({s.vendor.name for s in clusters if s.vendor is not None})
    row = np.full(len(_COSTS) + 3 * len(libraries), np.nan)
    for at, group in ((0, [pairs.near]), (2, pairs.far)):
        for turn in group:
            found = _among(world, turn, link_costs)
            if found is not None:
                row[at] = np.fmax(row[at], found[0])
                row[at + 1] = np.fmin(
                    row[at + 1], found[1]
                )  # a host is in up to three pairs; its link paces the slowest of them
                if np.isnan(row[4]):  # what an operation costs by itself, the links of a host tell best
                    row[4] = found[2]
            everybody.barrier()
    found = _among(world, [(rank,) for rank in pairs.alone], memory_costs)
    row[5:7] = row[5:7] if found is None else found
    everybody.barrier()
    found = _among(world, [pairs.crowd], crowd_costs)
    row[7:8] = row[7:8] if found is None else found
    for shape in clusters:
        everybody.barrier()
        found = _among(world, [shape.ranks], library_costs)
        if found is not None and shape.vendor is not None:
            at = len(_COSTS) + 3 * libraries.index(shape.vendor.name)
            row[at : at + 3] = found
    profile = combined(everybody.all_gather(row), libraries, everybody.layout.hosts)
    _log.info("measured in %.2f s: %s", time.monotonic() - begin, profile.to_json())
    return profile


def steadier(first: Profile, second: Profile) -> tuple[Profile, tuple[str, ...]]:
    """The lower cost of two measurements each, for what disturbs only adds; and, for people, those that differ much.

    Example:
      >>> steadier(Profile(copy=1e-10), Profile(copy=4e-10))[1]
      ('copy 1e-10 and 4e-10',)
    """
    unsteady: list[str] = []

    def lower(name: str, one: Any, other: Any) -> Any:
        if isinstance(one, dict):
            return {key: lower(f"{name} {key}".strip(), one[key], other[key]) for key in one}
        low, high = sorted((one, other))
        if high > _UNSTEADY * low:
            unsteady.append(f"{name} {one:.3g} and {other:.3g}")
        return low

    both = [json.loads(profile.to_json()) | {"hosts": {}} for profile in (first, second)]
    found = lower("", *both)
    hosts = max(len(first.hosts), len(second.hosts))  # none where the links looked alike
    betas = zip(*(profile.hosts or (profile.tcp.beta,) * hosts for profile in (first, second)), strict=True)
    lows = [lower(f"host {host}", one, other) for host, (one, other) in enumerate(betas)]
    found["hosts"] = list(_links(np.array(lows), range(hosts))) if hosts else []
    return Profile.from_json(json.dumps(found)), tuple(unsteady)


def _among(world: World, groups: Sequence[tuple[int, ...]], costs: Callable[[Room], tuple[float, ...]]):
    """What the group that a rank of this process is in finds; None where there is none."""
    own = range(world.first_rank, world.first_rank + world.local_count)
    for group in groups:
        if set(own) & set(group):
            room = Room(world, f"calibration {costs.__name__} {group}", group)
            try:
                return costs(room)
            finally:
                room.close()
    return None


def settle(world: World) -> Profile:
    """The profile that ``JHETCC_PROFILE`` asks for, the same in all processes of a world whose operations may start.

    Raises:
      BadArgumentError: a file that is no profile, or not the same in all processes.
    """
    options = world.options
    if options.profile == "off":
        return Profile()
    with meeting(world) as everybody:
        if options.profile == "auto":
            return _compared(world, everybody, _cached(world, everybody) or _measured(world, everybody))
        try:
            profile = _of_file(options.profile)
        except BadArgumentError:
            everybody.all_gather(np.zeros((), np.uint64))  # the others hear that there is none here
            raise
        return _compared(world, everybody, profile)


def _of_file(path: str) -> Profile:
    try:
        return Profile.from_json(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as why:
        raise BadArgumentError(
            f"JHETCC_PROFILE={path}: {why}. `jhetcc launch -n N -m jhetcc profile --out FILE` writes such a file",
            code="bad_option",
            scope="process",
        ) from None


def topology_hash(world: World) -> int:
    """Of what measurements depend on: hosts, processes and ranks, clusters, settings of the transports, the version."""
    keys = list(dict.fromkeys(member.host_key for member in world.members))
    members = [
        (m.host, keys.index(m.host_key), m.ranks, m.platform, dataclasses.astuple(m.identity)) for m in world.members
    ]
    chosen = [
        getattr(world.options, name) for name in ("transport", "cma", "tcp_congestion", "interface", "simd", "spin_us")
    ]
    return fnv1a(repr((config.VERSION, len(os.sched_getaffinity(0)), members, chosen)).encode())


def _path(world: World) -> pathlib.Path | None:
    where = world.options.cache_dir
    return pathlib.Path(where) / f"profile-{topology_hash(world):016x}.json" if where else None


def _cached(world: World, everybody: Communicator) -> Profile | None:
    """What process 0 has kept of an earlier world like this one; told to everybody."""
    text = b""
    if world.launch.process_id == 0 and (path := _path(world)) is not None:
        try:
            text = Profile.from_json(path.read_text(encoding="utf-8")).to_json().encode()
            _log.info("costs measured earlier: %s", path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as why:
            _log.warning("cannot use %s, measuring again: %s", path, why)
    length = int(everybody.broadcast(np.array(len(text)), root=0))
    if not length:
        return None
    told = np.zeros(length, np.uint8)
    told[: len(text)] = np.frombuffer(text, np.uint8)
    return Profile.from_json(everybody.broadcast(told, root=0).tobytes().decode())


def _measured(world: World, everybody: Communicator) -> Profile:
    profile = measure(world, everybody)
    if world.launch.process_id == 0 and (path := _path(world)) is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
                file.write(profile.to_json() + "\n")
            os.replace(file.name, path)
        except OSError as why:
            _log.warning("cannot keep what was measured for the next time: %s", why)
    return profile


def _compared(world: World, everybody: Communicator, profile: Profile) -> Profile:
    hashes = everybody.all_gather(np.array(profile.hash, np.uint64)).tolist()
    other = next((process for process, one in enumerate(hashes) if one != profile.hash), None)
    if other is None:
        return profile
    how = "has other costs there and would plan otherwise" if hashes[other] else "cannot read it"
    raise BadArgumentError(
        f"JHETCC_PROFILE={world.options.profile}: process {other} {how}. This is process {world.launch.process_id}, with costs of "
        f"hash {profile.hash:016x}. Give all processes the same file",
        code="settings_differ",
        scope="process",
        ranks=(other,),
    )


def adopt(world: World, profile: Profile, machines: Topology | None) -> None:
    """Lets the communicators there are, and later ones, plan with a profile and with the NICs of these machines."""
    world.profile, world.machines = profile, machines
    for name in state.names():
        communicator = state.communicator(name)
        communicator.layout = communicator.laid_out()
