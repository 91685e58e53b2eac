# SPDX-License-Identifier: Apache-2.0
"""Schedules as plain values: one rank's columns, and the rank-parametric plan they are expanded from.

What steps, iterations, wraps, distances and matching mean is said in ``cc/schedule/schedule.h``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .operation import DTYPES, Operation, fnv1a

__all__ = [
    "COPY",
    "FILL",
    "INPUT",
    "NATIVE_ALL_REDUCE",
    "NATIVE_BROADCAST",
    "NATIVE_REDUCE",
    "OUTPUT",
    "RECV",
    "REDUCE",
    "SCRATCH",
    "SEND",
    "WHOLE",
    "Place",
    "Plan",
    "Schedule",
    "iterations",
]

SEND, RECV, REDUCE, COPY, FILL = range(5)
NATIVE_REDUCE, NATIVE_BROADCAST, NATIVE_ALL_REDUCE = range(5, 8)  # calls of a vendor's library
INPUT, OUTPUT, SCRATCH = range(3)
WHOLE = -1  # distance: all iterations of that step

KIND_NAMES = ("send", "recv", "reduce", "copy", "fill", "native_reduce", "native_broadcast", "native_all_reduce")
BUFFER_NAMES = ("input", "output", "scratch")


class Place(NamedTuple):
    """Where an operand lies: iteration i at offset + i*chunk, or with wrap W > 0 at offset + (i mod W)*chunk."""

    buffer: int
    offset: int = 0
    wrap: int = 0

    def text(self) -> str:
        return f"{BUFFER_NAMES[self.buffer]}[{self.offset}{f' ring {self.wrap}' if self.wrap else ''}]"


def iterations(length: int, chunk_bytes: int) -> int:
    """Iterations of a step of ``length`` bytes, at least one."""
    return 1 if length <= chunk_bytes else -(-length // chunk_bytes)


# Column name -> type, in the order of the binary form: per step, per source, per dependency.
STEP_COLUMNS = {
    "kind": "<u1",
    "final": "<u1",
    "stream": "<u2",
    "peer": "<i4",
    "length": "<i8",
    "target_buffer": "<u1",
    "target_offset": "<i8",
    "target_wrap": "<i4",
    "sources_end": "<i4",
    "dependencies_end": "<i4",
}
SOURCE_COLUMNS = {"source_buffer": "<u1", "source_offset": "<i8", "source_wrap": "<i4"}
DEPENDENCY_COLUMNS = {"dependency_step": "<i4", "dependency_distance": "<i4"}
# Only in schedules with native steps: per circle, and per member of one.
CIRCLE_COLUMNS = {"circle_lag": "<u2", "circle_end": "<i4"}
MEMBER_COLUMNS = {"circle_rank": "<i4"}
COLUMNS = {**STEP_COLUMNS, **SOURCE_COLUMNS, **DEPENDENCY_COLUMNS, **CIRCLE_COLUMNS, **MEMBER_COLUMNS}


class Circle(NamedTuple):
    """The ranks of one vendor's communicator, and how many iterations its calls come late in the native order."""

    members: tuple[int, ...]
    lag: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """One rank's projection of a plan: columns of steps, sources and dependencies as numpy arrays.

    Attributes:
      size, rank: ranks of the communicator, and whose projection this is.
      type, op: numbers of the dtype and the reduction.
      chunk_bytes, input_bytes, output_bytes, scratch_bytes: sizes in bytes.
      plan_hash: equal on all ranks that planned alike.
      kind .. dependencies_end: one entry for each step.
      source_buffer .. source_wrap: sources; those of step k begin where those of step k-1 end.
      dependency_step, dependency_distance: dependencies, likewise.
      circle_lag, circle_end, circle_rank: circles of native steps, likewise; a native step's stream is its circle's
        number, its peer the root.

    Native steps. All members of a circle call the same collective together. A rank makes its native calls one after the
    other, ordered by (iteration + lag of the circle, step), so that all ranks agree on one order and the last stage of
    one chunk does not hold up the first stage of the next.
    """

    size: int
    rank: int
    type: int
    op: int
    chunk_bytes: int
    input_bytes: int
    output_bytes: int
    scratch_bytes: int
    plan_hash: int
    kind: np.ndarray
    final: np.ndarray
    stream: np.ndarray
    peer: np.ndarray
    length: np.ndarray
    target_buffer: np.ndarray
    target_offset: np.ndarray
    target_wrap: np.ndarray
    sources_end: np.ndarray
    dependencies_end: np.ndarray
    source_buffer: np.ndarray
    source_offset: np.ndarray
    source_wrap: np.ndarray
    dependency_step: np.ndarray
    dependency_distance: np.ndarray
    circle_lag: np.ndarray = field(default_factory=lambda: np.empty(0, "<u2"))
    circle_end: np.ndarray = field(default_factory=lambda: np.empty(0, "<i4"))
    circle_rank: np.ndarray = field(default_factory=lambda: np.empty(0, "<i4"))

    @property
    def circles(self) -> list[Circle]:
        ends = self.circle_end.tolist()
        members = self.circle_rank.tolist()
        begins = [0, *ends][:-1]
        return [
            Circle(tuple(members[a:b]), lag) for a, b, lag in zip(begins, ends, self.circle_lag.tolist(), strict=True)
        ]

    def native_order(self) -> list[tuple[int, int]]:
        """The native calls as (step, iteration), in the order they are made."""
        lags = self.circle_lag.tolist()
        native = np.flatnonzero(self.kind >= NATIVE_REDUCE).tolist()
        calls = [(i + lags[int(self.stream[step])], step, i) for step in native for i in range(self.iterations(step))]
        return [(step, i) for _, step, i in sorted(calls)]

    @property
    def steps(self) -> int:
        return len(self.kind)

    @property
    def itemsize(self) -> int:
        return next((size for size, number in DTYPES.values() if number == self.type), 1)

    def target(self, step: int) -> Place:
        return Place(int(self.target_buffer[step]), int(self.target_offset[step]), int(self.target_wrap[step]))

    def sources(self, step: int) -> list[Place]:
        """The sources of a step, in the order they are reduced."""
        begin = int(self.sources_end[step - 1]) if step else 0
        span = slice(begin, int(self.sources_end[step]))
        columns = (self.source_buffer[span], self.source_offset[span], self.source_wrap[span])
        return [Place(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def dependencies(self, step: int) -> list[tuple[int, int]]:
        """The dependencies of a step as (step, distance)."""
        begin = int(self.dependencies_end[step - 1]) if step else 0
        span = slice(begin, int(self.dependencies_end[step]))
        return list(zip(self.dependency_step[span].tolist(), self.dependency_distance[span].tolist(), strict=True))

    def iterations(self, step: int) -> int:
        return iterations(int(self.length[step]), self.chunk_bytes)

    def to_bytes(self) -> bytes:
        """The binary form of ``docs/seams.md``."""
        from .binary import encode

        return encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> Schedule:
        """The schedule a binary form holds.

        Raises:
          ValueError: not a valid schedule; the message names the step and the field.
        """
        from .binary import decode

        return decode(data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def __repr__(self) -> str:
        return f"<Schedule rank {self.rank} of {self.size}, {self.steps} steps, plan {self.plan_hash:016x}>"

    def __str__(self) -> str:
        """A readable table, one line a step."""
        lines = [
            f"rank {self.rank} of {self.size}: input {self.input_bytes}, output {self.output_bytes}, "
            f"scratch {self.scratch_bytes}, chunk {self.chunk_bytes} bytes, plan {self.plan_hash:016x}"
        ]
        for number, circle in enumerate(self.circles):
            lines.append(f"circle {number}: ranks {' '.join(map(str, circle.members))}, lag {circle.lag}")
        for step in range(self.steps):
            kind = int(self.kind[step])
            words = [f"{step:4d}  {KIND_NAMES[kind]:6s} {int(self.length[step]):>10d} B x{self.iterations(step):<4d}"]
            if kind in (SEND, RECV):
                words.append(
                    f"{'to' if kind == SEND else 'from'} {int(self.peer[step])} stream {int(self.stream[step])}"
                )
            if kind >= NATIVE_REDUCE:
                root = f" root {int(self.peer[step])}" if kind != NATIVE_ALL_REDUCE else ""
                words.append(f"circle {int(self.stream[step])}{root}")
            if kind != SEND:
                words.append(f"{self.target(step).text()} <-" if kind != FILL else f"{self.target(step).text()} <- 0")
            words += [" ".join(place.text() for place in self.sources(step))]
            if self.final[step]:
                words.append("final")
            after = [f"{s}{'*' if d == WHOLE else f'-{d}' if d else ''}" for s, d in self.dependencies(step)]
            if after:
                words.append(f"after {' '.join(after)}")
            lines.append(" ".join(word for word in words if word))
        return "\n".join(lines)

    def replace(self, **changes) -> Schedule:
        """A copy with some fields changed; arrays are converted to their columns' types."""
        typed = {k: np.asarray(v, COLUMNS[k]) if k in COLUMNS else v for k, v in changes.items()}
        return dataclasses.replace(self, **typed)


@dataclass(frozen=True)
class Plan:
    """A method chosen for an operation, the same value on all ranks; each expands only its own.

    Attributes:
      operation: what is asked.
      size: ranks of the communicator.
      algorithm: name of the method.
      chunk_bytes: bytes of one iteration.
      build: makes one rank's schedule; not part of the value.
      detail: what else the method depends on (clusters and their shares); empty where nothing.
    """

    operation: Operation
    size: int
    algorithm: str
    chunk_bytes: int
    build: Callable[[Plan, int], Schedule] = field(compare=False, repr=False)
    detail: str = field(default="", repr=False)

    @property
    def hash(self) -> int:
        """64 bits that are equal on all ranks that planned alike; both sides of a point-to-point message agree too."""
        op = self.operation
        what = op.text()
        if op.is_point_to_point:
            what = f"message({op.dtype}[{','.join(map(str, op.dims))}], tag={op.tag})"
        more = f"|{self.detail}" if self.detail else ""
        return fnv1a(f"{what}|{self.size}|{self.algorithm}|{self.chunk_bytes}{more}".encode())

    def expand(self, rank: int) -> Schedule:
        """The schedule of one rank.

        Raises:
          ValueError: no such rank, or the operation makes no sense on it (a message to itself).
        """
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} is not one of {self.size}")
        return self.build(self, rank)

    def expand_all(self) -> list[Schedule]:
        return [self.expand(rank) for rank in range(self.size)]

    def __str__(self) -> str:
        return f"{self.operation.text()} on {self.size} ranks by {self.algorithm}, chunks of {self.chunk_bytes} bytes"
