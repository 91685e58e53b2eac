# SPDX-License-Identifier: Apache-2.0
"""Writes one rank's schedule step by step; what an algorithm's file uses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from .operation import OPS, dtype_number
from .value import (
    COLUMNS,
    COPY,
    FILL,
    INPUT,
    NATIVE_ALL_REDUCE,
    NATIVE_BROADCAST,
    NATIVE_REDUCE,
    OUTPUT,
    RECV,
    REDUCE,
    SCRATCH,
    SEND,
    WHOLE,
    Circle,
    Place,
    Plan,
    Schedule,
    iterations,
)

__all__ = ["After", "Builder"]

After = int | tuple[int, int]  # a step (the same iteration of it), or (step, distance)

_CACHE_LINE = 64


class Builder:
    """Collects the steps of one rank. Steps are numbered as they are added; dependencies may be added later.

    Args:
      plan: what is expanded.
      rank: whose schedule this is.

    Example:
      >>> from jhetcc.schedule import Operation, Plan
      >>> plan = Plan(Operation("psum", "f32", (4,)), 1, "copy", 64, lambda plan, rank: None)
      >>> b = Builder(plan, 0)
      >>> b.copy(b.output(), b.input(), 16)
      0
      >>> b.finish().steps
      1
    """

    def __init__(self, plan: Plan, rank: int):
        operation = plan.operation
        self.rank = rank
        self.size = plan.size
        self.chunk_bytes = plan.chunk_bytes
        self.plan = plan
        self.operation = operation
        self.input_bytes = operation.input_bytes(plan.size)
        self.output_bytes = operation.output_bytes(plan.size)
        self._align = math.lcm(_CACHE_LINE, operation.itemsize)  # of scratch places
        self._scratch = 0
        self._circles: dict[Circle, int] = {}
        self._before_native: list[tuple[int, int]] = []
        self._steps: list[tuple[int, bool, int, int, int, Place]] = []
        self._sources: list[Sequence[Place]] = []
        self._after: list[list[tuple[int, int]]] = []

    def others(self) -> list[int]:
        """The other ranks, the next one first, so that not all ranks begin with the same peer."""
        return [(self.rank + k) % self.size for k in range(1, self.size)]

    def input(self, offset: int = 0) -> Place:
        return Place(INPUT, offset)

    def output(self, offset: int = 0) -> Place:
        return Place(OUTPUT, offset)

    def ring(self, length: int, slots: int) -> Place:
        """Scratch for a step of ``length`` bytes: ``slots`` chunks used in turn, or all of it where it is no longer."""
        offset = self._scratch
        count = iterations(length, self.chunk_bytes)
        extent = length if count <= slots else slots * self.chunk_bytes
        self._scratch = offset + -(-extent // self._align) * self._align
        return Place(SCRATCH, offset, 0 if count <= slots else slots)

    def send(self, peer: int, source: Place, length: int, stream: int = 0, after: Iterable[After] = ()) -> int:
        return self._add(SEND, False, stream, peer, length, Place(0), [source], after)

    def recv(self, peer: int, target: Place, length: int, stream: int = 0, after: Iterable[After] = ()) -> int:
        return self._add(RECV, False, stream, peer, length, target, [], after)

    def reduce(
        self, target: Place, sources: Sequence[Place], length: int, final: bool = False, after: Iterable[After] = ()
    ) -> int:
        return self._add(REDUCE, final, 0, -1, length, target, sources, after)

    def copy(self, target: Place, source: Place, length: int, after: Iterable[After] = ()) -> int:
        return self._add(COPY, False, 0, -1, length, target, [source], after)

    def fill(self, target: Place, length: int, after: Iterable[After] = ()) -> int:
        """Zeros."""
        return self._add(FILL, False, 0, -1, length, target, [], after)

    def native_reduce(
        self, members: Sequence[int], root: int, source: Place, target: Place, length: int, lag=0, after=()
    ) -> int:
        """Every member's source, reduced by the vendor's library into the root's target."""
        target = target if root == self.rank else Place(0)
        return self._native(NATIVE_REDUCE, members, lag, root, length, target, [source], after)

    def native_broadcast(
        self, members: Sequence[int], root: int, source: Place, target: Place, length: int, lag=0, after=()
    ) -> int:
        """The root's source into every member's target; the root's two may be one place."""
        sources = [source] if root == self.rank else []
        return self._native(NATIVE_BROADCAST, members, lag, root, length, target, sources, after)

    def native_all_reduce(self, members: Sequence[int], source: Place, target: Place, length: int, after=()) -> int:
        """For libraries that promise the same bits to all members."""
        return self._native(NATIVE_ALL_REDUCE, members, 0, -1, length, target, [source], after)

    def hold_native(self, heard: Iterable[int]) -> None:
        """No native call of this rank is made before these steps are done: they tell that all ranks have started.

        The first call waits for them, and the others come after it.
        """
        self._before_native += [(step, 0) for step in heard]

    def _native(self, kind, members, lag, root, length, target, sources, after) -> int:
        circle = self._circles.setdefault(Circle(tuple(members), lag), len(self._circles))
        return self._add(kind, False, circle, root, length, target, sources, after)

    def embed(self, schedule: Schedule, ranks: Sequence[int], heard: Sequence[int]) -> None:
        """Adds all steps of a schedule for fewer ranks, of the same operand and chunk size.

        Args:
          schedule: without native steps; its rank r is ``ranks[r]`` here.
          heard: steps that all of its sends wait for.
        """
        assert not len(schedule.circle_lag), "native steps name ranks in circles"
        assert schedule.chunk_bytes == self.chunk_bytes
        first, scratch = len(self._steps), self._scratch
        self._scratch += schedule.scratch_bytes

        def moved(place: Place) -> Place:
            return place._replace(offset=place.offset + scratch) if place.buffer == SCRATCH else place

        for step in range(schedule.steps):
            kind, peer = int(schedule.kind[step]), int(schedule.peer[step])
            after: list[After] = [(first + on, distance) for on, distance in schedule.dependencies(step)]
            if kind == SEND:
                after += [(on, WHOLE) for on in heard]
            final, stream, length = bool(schedule.final[step]), int(schedule.stream[step]), int(schedule.length[step])
            target, sources = moved(schedule.target(step)), [moved(place) for place in schedule.sources(step)]
            self._add(kind, final, stream, -1 if peer < 0 else ranks[peer], length, target, sources, after)

    def depend(self, step: int, on: int, distance: int = 0) -> None:
        """Iteration i of ``step`` waits for iteration i - distance of ``on``."""
        self._after[step].append((on, distance))

    def reuse(self, writer: int, place: Place, reader: int) -> None:
        """``writer`` fills a ring that ``reader`` empties: a slot is written again only after it was read."""
        if place.wrap:
            self.depend(writer, reader, place.wrap)

    def _add(self, kind, final, stream, peer, length, target, sources, after) -> int:
        self._steps.append((kind, final, stream, peer, length, target))
        self._sources.append(sources)
        self._after.append([(item, 0) if isinstance(item, int) else item for item in after])
        return len(self._steps) - 1

    def finish(self) -> Schedule:
        """The schedule, as columns."""
        steps = self._steps
        circles = list(self._circles)
        native = [step for step, (kind, *_) in enumerate(steps) if kind >= NATIVE_REDUCE]
        if native:
            self._after[min(native, key=lambda step: circles[steps[step][2]].lag)] += self._before_native
        sources = [place for places in self._sources for place in places]
        after = [item for items in self._after for item in items]
        targets = [step[5] for step in steps]
        columns = {
            "kind": [step[0] for step in steps],
            "final": [step[1] for step in steps],
            "stream": [step[2] for step in steps],
            "peer": [step[3] for step in steps],
            "length": [step[4] for step in steps],
            "target_buffer": [place[0] for place in targets],
            "target_offset": [place[1] for place in targets],
            "target_wrap": [place[2] for place in targets],
            "sources_end": np.cumsum([len(places) for places in self._sources]),
            "dependencies_end": np.cumsum([len(items) for items in self._after]),
            "source_buffer": [place[0] for place in sources],
            "source_offset": [place[1] for place in sources],
            "source_wrap": [place[2] for place in sources],
            "dependency_step": [item[0] for item in after],
            "dependency_distance": [item[1] for item in after],
            "circle_lag": [circle.lag for circle in circles],
            "circle_end": np.cumsum([len(circle.members) for circle in circles]),
            "circle_rank": [member for circle in circles for member in circle.members],
        }
        return Schedule(
            size=self.size,
            rank=self.rank,
            type=dtype_number(self.operation.dtype),
            op=OPS[self.operation.reduction],
            chunk_bytes=self.chunk_bytes,
            input_bytes=self.input_bytes,
            output_bytes=self.output_bytes,
            scratch_bytes=self._scratch,
            plan_hash=self.plan.hash,
            **{name: np.asarray(values, COLUMNS[name]) for name, values in columns.items()},
        )
