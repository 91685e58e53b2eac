# SPDX-License-Identifier: Apache-2.0
"""What links, memory and libraries of this job cost: schedules written for the purpose, run by the engine and timed.

Alphas and betas are slopes: the same operation with more rounds, or with more bytes, less itself. What every operation
costs besides then falls out, and is measured as a cost of its own.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jhetcc.schedule import Builder, Operation, Plan, Schedule

if TYPE_CHECKING:
    from jhetcc.world.world import World

__all__ = ["Room", "crowd_costs", "library_costs", "link_costs", "memory_costs", "native_calls", "ping", "slope"]

Build = Callable[[Builder], object]

_ROUNDS = (2, 34)
_LINK_BYTES = (256 << 10, 2 << 20)
_CROWD_BYTES = (8, 256 << 10)
_MEMORY_BYTES = (512 << 10, 4 << 20)
_NATIVE_BYTES = (64 << 10, 1 << 20)
_NATIVE_CALLS = (1, 9)
_CHUNK_BYTES = 512 << 10
_MANY, _FEW, _CROWDED = 25, 9, 5  # repetitions of short and of long operations, and of those that fill all links


class Room:
    """A communicator that lives for some measurements, on its members' processes only.

    Args:
      world: its world.
      name: of the communicator, unlike any other one's.
      ranks: its members, by their ranks in the world.
    """

    def __init__(self, world: World, name: str, ranks: Sequence[int]):
        self.comm = world.create(name, tuple(ranks), 0)
        self._world = world

    def close(self) -> None:
        self._world.close_communicator(self.comm)

    def operation(self, text: str, name: str, build: Build, chunk_bytes: int = _CHUNK_BYTES) -> Callable[[], Any]:
        """A call of an operation, whose schedule on each rank is what ``build`` writes.

        Args:
          text: of the operation; each only once in a room.
          name: what the schedule is called, for the plan's hash.
          build: writes the steps of a rank.
          chunk_bytes: of one iteration.
        """
        operation, comm = Operation.parse(text), self.comm

        def expand(plan: Plan, rank: int) -> Schedule:
            b = Builder(plan, rank)
            build(b)
            return b.finish()

        plan = Plan(operation, comm.size, name, chunk_bytes, expand)
        schedules = [(rank, plan.expand(rank).to_bytes()) for rank in comm.local_ranks]
        self._world.process.answer_plan(comm.name, comm.epoch, text, schedules, None)
        call = comm._raw_call(text)
        sizes = operation.input_bytes(comm.size), operation.output_bytes(comm.size)
        memory = [[np.zeros(max(size, 1), np.uint8) for size in sizes] for _ in comm.local_ranks]
        places = [(a.ctypes.data, sizes[0], b.ctypes.data, sizes[1]) for a, b in memory]

        def run() -> list:
            call.run(places)
            return memory  # which lives as long as the call

        return run


def seconds(runs: Sequence[Callable[[], Any]], times: int, of: Callable[[Sequence[float]], float] = min) -> list[float]:
    """The least of each (or what ``of`` takes), run in turns after one turn that warms up.

    Others on the machine make runs longer, never shorter; in turns they hit all alike.
    """
    found: list[list[float]] = [[] for _ in runs]
    for turn in range(times + 1):
        for many, run in zip(found, runs, strict=True):
            begin = time.perf_counter()
            run()
            if turn:
                many.append(time.perf_counter() - begin)
    return [of(many) for many in found]


def slope(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Seconds for one more, from two pairs (how many, seconds); never below a quarter of what the larger took for each.

    Noise may turn the two around.
    """
    (a, x), (b, y) = first, second
    return max((y - x) / (b - a), y / b / 4)


def ping(b: Builder, rounds: int, nbytes: int) -> None:
    """Messages between two ranks, each sent once the one before has come."""
    before: list[int] = []
    for round_ in range(rounds):
        if round_ % 2 == b.rank:
            before = [b.send(1 - b.rank, b.input(), nbytes, round_, after=before)]
        else:
            before = [b.recv(1 - b.rank, b.output(), nbytes, round_, after=before)]


def exchange(b: Builder) -> None:
    """Both of two ranks send all they have to each other."""
    b.send(1 - b.rank, b.input(), b.input_bytes)
    b.recv(1 - b.rank, b.output(), b.output_bytes)


def abroad(b: Builder, hosts: Sequence[int]) -> None:
    """An all_to_all of those parts only that go to other hosts."""
    nbytes = b.input_bytes // b.size
    for step in range(1, b.size):
        to, source = (b.rank + step) % b.size, (b.rank - step) % b.size
        if hosts[to] != hosts[b.rank]:
            b.send(to, b.input(to * nbytes), nbytes)
        if hosts[source] != hosts[b.rank]:
            b.recv(source, b.output(source * nbytes), nbytes)


def add_halves(b: Builder) -> None:
    """The two halves of the input, reduced."""
    half = b.input_bytes // 2
    b.reduce(b.output(), [b.input(), b.input(half)], half)


def native_calls(b: Builder) -> None:
    """The operation by one library that all ranks are members of, call by call; all have started before the first."""
    for peer in b.others():
        b.send(peer, b.input(), 0, 1)
    b.hold_native([b.recv(peer, b.output(), 0, 1) for peer in b.others()])
    members, nbytes = range(b.size), b.input_bytes
    if b.operation.name == "broadcast":
        b.native_broadcast(members, 0, b.input(), b.output(), nbytes)
    else:
        done = b.native_reduce(members, 0, b.input(), b.output(), nbytes)
        if b.rank:
            b.fill(b.output(), nbytes, after=[done])


def link_costs(room: Room) -> tuple[float, float, float]:
    """(alpha, beta, what every operation costs) between the two ranks of a room; bytes go both ways at once, as in schedules."""
    both = "perm=0>1;1>0"
    runs = [
        room.operation(f"ppermute(b8[{8 * many}], {both})", "ping", lambda b, many=many: ping(b, many, 8))
        for many in _ROUNDS
    ]
    few, many = seconds(runs, _MANY)
    alpha = slope((_ROUNDS[0], few), (_ROUNDS[1], many))
    runs = [room.operation(f"ppermute(b8[{n}], {both})", "exchange", exchange) for n in _LINK_BYTES]
    return alpha, _slope(_LINK_BYTES, runs, _FEW), max(few - _ROUNDS[0] * alpha, 0.0)


def crowd_costs(room: Room) -> tuple[float]:
    """(seconds a byte of a host's link) while all ranks of a room send to all that are on other hosts.

    How links share what comes from several hosts differs from turn to turn, so it is the median.
    """
    hosts, size = room.comm.layout.hosts, room.comm.size
    runs = [room.operation(f"all_to_all(b8[{size},{n}])", "crowd", lambda b: abroad(b, hosts), n) for n in _CROWD_BYTES]
    less, more = seconds(runs, _CROWDED, statistics.median)
    busiest = max(count * (size - count) for count in Counter(hosts).values())
    return (slope((_CROWD_BYTES[0], less), (_CROWD_BYTES[1], more)) / busiest,)


def memory_costs(room: Room) -> tuple[float, float]:
    """(seconds a byte of a copy, seconds a byte of each source of a reduction) of a rank alone in its room."""
    copies = [
        room.operation(f"broadcast(b8[{size}], root=0)", "copy", lambda b: b.copy(b.output(), b.input(), b.input_bytes))
        for size in _MEMORY_BYTES
    ]
    sums = [room.operation(f"psum(f32[{size // 4}])", "add", add_halves) for size in _MEMORY_BYTES]
    return _slope(_MEMORY_BYTES, copies, _FEW), _slope(_MEMORY_BYTES, sums, _FEW)


def library_costs(room: Room) -> tuple[float, float, float]:
    """(alpha of a call, seconds a byte of a broadcast, seconds a byte of a reduction) of the library of a room's ranks."""
    calls = [
        room.operation(f"broadcast(b8[{many * 64}], root=0)", "native", native_calls, 64) for many in _NATIVE_CALLS
    ]
    found = [_slope(_NATIVE_CALLS, calls, _MANY)]
    for text, item in (("broadcast(b8[{}], root=0)", 1), ("reduce(f32[{}], op=sum, root=0)", 4)):
        runs = [
            room.operation(text.format(nbytes // item), "native", native_calls, _NATIVE_BYTES[-1])
            for nbytes in _NATIVE_BYTES
        ]
        found.append(_slope(_NATIVE_BYTES, runs, _FEW))
    return found[0], found[1], found[2]


def _slope(sizes: tuple[int, int], runs: Sequence[Callable[[], Any]], times: int) -> float:
    less, more = seconds(runs, times)
    return slope((sizes[0], less), (sizes[1], more))
