# SPDX-License-Identifier: Apache-2.0
"""All ranks' schedules unrolled into events, and what must happen before what in *any* legal run.

An event is one iteration of one step: it starts, then completes. Its sources are read and its target is written in
between. Ordered are only: a dependency's completion before the start; a send's start before its receive's completion.
Not ordered, since a send may be copied away: a receive before its send's completion. Iterations of one step are not
ordered by themselves. A native call starts on each member by itself; it completes on a member only after those have
started whose contributions it needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from .binary import validate
from .value import (
    KIND_NAMES,
    NATIVE_BROADCAST,
    NATIVE_REDUCE,
    RECV,
    SEND,
    WHOLE,
    Circle,
    Place,
    Schedule,
)

__all__ = ["Event", "Program", "ScheduleError"]


class ScheduleError(ValueError):
    """A schedule is wrong; the message names rank, step and iteration."""


class Event(NamedTuple):
    rank: int
    step: int
    iteration: int
    kind: int
    sources: tuple[tuple[int, int], ...]  # (buffer, byte offset)
    target: tuple[int, int] | None
    length: int
    final: bool

    def text(self) -> str:
        return f"rank {self.rank} step {self.step} ({KIND_NAMES[self.kind]}) iteration {self.iteration}"


class Program:
    """The events of all ranks, matched.

    Args:
      schedules: rank -> schedule; ranks that take no part are left out.

    Attributes:
      events: all of them; an event's number is its place here.
      waits: for each event, the events whose completion its start waits for.
      partner: for a send its receive and the other way round, else -1.
      calls: native calls, each as the events of its members in the circle's order; call_of: an event's call, if any.
      native: for each rank its native events, in the order they are issued.
      order: an order in which they can run one after the other.

    Raises:
      ScheduleError: a message without its other side, or a cycle of waits even if sends never wait.
    """

    def __init__(self, schedules: Mapping[int, Schedule]):
        self.schedules = dict(schedules)
        self.events: list[Event] = []
        self.waits: list[list[int]] = []
        self.first: dict[tuple[int, int], int] = {}
        for rank, schedule in self.schedules.items():
            try:
                validate(schedule)
            except ValueError as error:
                raise ScheduleError(f"rank {rank}: {error}") from None
            if schedule.rank != rank:
                raise ScheduleError(f"rank {rank} holds the schedule of rank {schedule.rank}")
            self._unroll(rank, schedule)
        self.partner = [-1] * len(self.events)
        self._match()
        self.calls: list[list[int]] = []
        self.call_of: dict[int, int] = {}
        self.native: dict[int, list[int]] = {}
        self._match_native()
        self.order = self._sort()

    def _unroll(self, rank: int, s: Schedule) -> None:
        chunk = s.chunk_bytes
        base = len(self.events)
        counts = [s.iterations(step) for step in range(s.steps)]
        starts = [base, *(base + np.cumsum(counts)).tolist()]
        for step in range(s.steps):
            self.first[rank, step] = starts[step]
            kind, length, count = int(s.kind[step]), int(s.length[step]), counts[step]
            sources, target, dependencies = s.sources(step), s.target(step), s.dependencies(step)
            writes = kind != SEND and not (kind == NATIVE_REDUCE and int(s.peer[step]) != rank)
            for i in range(count):
                places = tuple((place.buffer, _at(place, i, chunk)) for place in sources)
                goal = (target.buffer, _at(target, i, chunk)) if writes else None
                part = min(chunk, length - i * chunk)
                self.events.append(Event(rank, step, i, kind, places, goal, part, bool(s.final[step])))
                waits: list[int] = []
                for on, distance in dependencies:
                    if distance == WHOLE:
                        waits += range(starts[on], starts[on] + counts[on])
                    elif i >= distance:
                        waits.append(starts[on] + min(i - distance, counts[on] - 1))
                self.waits.append(waits)

    def _match(self) -> None:
        sides: dict[tuple[int, int, int], dict[int, tuple[int, int]]] = {}
        for rank, s in self.schedules.items():
            for step in np.flatnonzero(s.kind <= RECV).tolist():
                kind, peer = int(s.kind[step]), int(s.peer[step])
                key = (rank, peer, int(s.stream[step])) if kind == SEND else (peer, rank, int(s.stream[step]))
                sides.setdefault(key, {})[kind] = (rank, step)
        for (source, target, stream), both in sides.items():
            name = f"message from {source} to {target} in stream {stream}"
            if len(both) < 2:
                raise ScheduleError(f"{name}: nobody {'receives' if SEND in both else 'sends'} it")
            send, recv = self.first[both[SEND]], self.first[both[RECV]]
            a, b = (self.schedules[rank] for rank, _ in (both[SEND], both[RECV]))
            lengths = int(a.length[both[SEND][1]]), int(b.length[both[RECV][1]])
            if lengths[0] != lengths[1] or a.chunk_bytes != b.chunk_bytes:
                raise ScheduleError(f"{name}: {lengths[0]} bytes are sent and {lengths[1]} received, or chunks differ")
            for i in range(a.iterations(both[SEND][1])):
                self.partner[send + i], self.partner[recv + i] = recv + i, send + i

    def _match_native(self) -> None:
        issued: dict[Circle, dict[int, list[int]]] = {}
        for rank, s in self.schedules.items():
            circles = s.circles
            self.native[rank] = [self.first[rank, step] + i for step, i in s.native_order()]
            for event in self.native[rank]:
                circle = circles[int(s.stream[self.events[event].step])]
                issued.setdefault(circle, {}).setdefault(rank, []).append(event)
        for circle, by_rank in issued.items():
            counts = {member: len(by_rank.get(member, [])) for member in circle.members}
            if len(set(counts.values())) > 1:
                raise ScheduleError(f"the members of native circle {circle} make different numbers of calls: {counts}")
            for events in zip(*(by_rank[member] for member in circle.members), strict=True):
                heads = {self._head(event) for event in events}
                if len(heads) > 1:
                    raise ScheduleError(f"{self.events[events[0]].text()}: members make different calls: {heads}")
                self.call_of.update(dict.fromkeys(events, len(self.calls)))
                self.calls.append(list(events))

    def _head(self, event: int) -> tuple[str, int, int, int]:
        e = self.events[event]
        return KIND_NAMES[e.kind], int(self.schedules[e.rank].peer[e.step]), e.length, e.iteration

    def needed(self, event: int) -> list[int]:
        """For a native event: the members' events whose contributions its completion needs."""
        e, members = self.events[event], self.calls[self.call_of[event]]
        root = int(self.schedules[e.rank].peer[e.step])
        if e.kind == NATIVE_REDUCE and e.rank != root:
            return [event]
        if e.kind == NATIVE_BROADCAST:
            return [event, *(m for m in members if self.events[m].rank == root)]
        return members

    def _sort(self, generator: np.random.Generator | None = None) -> list[int]:
        missing = [len(waits) for waits in self.waits]
        after: list[list[int]] = [[] for _ in self.events]
        # A native call runs as a whole: its first member's event waits for what all members wait for.
        whole = {event: events[0] for events in self.calls for event in events}
        rest = {events[0]: events[1:] for events in self.calls}
        for event, waits in enumerate(self.waits):
            for on in waits:
                after[on].append(whole.get(event, event))
            if whole.get(event, event) != event:
                missing[whole[event]] += len(waits)
                missing[event] = 1
        for event, e in enumerate(self.events):
            if e.kind == RECV:
                missing[event] += 1
                after[self.partner[event]].append(event)
        ready = deque(event for event, count in enumerate(missing) if not count)
        order: list[int] = []
        while ready:
            if generator is not None:
                ready.rotate(int(generator.integers(len(ready))))
            first = ready.popleft()
            for event in (first, *rest.get(first, ())):
                order.append(event)
                missing[event] = 0
                for other in after[event]:
                    missing[other] -= 1
                    if not missing[other]:
                        ready.append(other)
        if len(order) < len(self.events):
            stuck = next(event for event, count in enumerate(missing) if count)
            raise ScheduleError(f"{self.events[stuck].text()} waits for itself, by way of others")
        return order

    def shuffled(self, seed: int) -> list[int]:
        """Another legal order."""
        return self._sort(np.random.default_rng(seed))

    def before(self) -> list[int]:
        """For each event a set (bits of an int) of the events that have completed whenever it starts."""
        return self._known([0] * len(self.events), completed=True)[0]

    def heard(self) -> tuple[dict[int, int], dict[int, int]]:
        """The sets (bits) of the ranks that must have started before each rank completes, and before each native event.

        A rank's native calls are made in order: each knows what those before it waited for.
        """
        starts, ends = self._known([1 << event.rank for event in self.events], completed=False)
        result = {rank: 1 << rank for rank in self.schedules}
        for event, known in zip(self.events, ends, strict=True):
            result[event.rank] |= known
        native: dict[int, int] = {}
        for events in self.native.values():
            known = 0
            for event in events:
                known |= starts[event]
                native[event] = known
        return result, native

    def _known(self, own: list[int], *, completed: bool) -> tuple[list[int], list[int]]:
        """What must have happened when each event starts and when it completes, as sets (bits).

        Args:
          own: what an event's start adds.
          completed: whether an event adds itself once it has completed.
        """
        starts, ends = [0] * len(self.events), [0] * len(self.events)

        def start(event: int) -> None:
            starts[event] = own[event]
            for on in self.waits[event]:
                starts[event] |= ends[on] | (1 << on if completed else 0)

        for event in self.order:
            call = self.call_of.get(event)
            if call is None:
                start(event)
                ends[event] = starts[event]
                if self.events[event].kind == RECV:
                    ends[event] |= starts[self.partner[event]]
            elif event == self.calls[call][0]:
                for member in self.calls[call]:
                    start(member)
                for member in self.calls[call]:
                    for other in self.needed(member):
                        ends[member] |= starts[other]
        return starts, ends


def _at(place: Place, iteration: int, chunk: int) -> int:
    return place.offset + (iteration % place.wrap if place.wrap else iteration) * chunk
