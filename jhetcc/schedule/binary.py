# SPDX-License-Identifier: Apache-2.0
"""The binary form of a schedule (docs/seams.md): encode, decode, and the checks the C++ room makes too."""

from __future__ import annotations

import struct

import numpy as np

from .operation import DTYPES, OPS
from .value import (
    CIRCLE_COLUMNS,
    COLUMNS,
    COPY,
    DEPENDENCY_COLUMNS,
    FILL,
    INPUT,
    KIND_NAMES,
    MEMBER_COLUMNS,
    NATIVE_ALL_REDUCE,
    NATIVE_BROADCAST,
    NATIVE_REDUCE,
    RECV,
    REDUCE,
    SCRATCH,
    SEND,
    SOURCE_COLUMNS,
    STEP_COLUMNS,
    WHOLE,
    Place,
    Schedule,
    iterations,
)

__all__ = ["decode", "encode", "validate"]

_MAGIC = 0x3153484A
_BYTES_MAX = 1 << 62
_REDUCING = (REDUCE, NATIVE_REDUCE, NATIVE_ALL_REDUCE)
_SOURCES = {  # fewest and most
    SEND: (1, 1),
    RECV: (0, 0),
    REDUCE: (1, 1 << 30),
    COPY: (1, 1),
    FILL: (0, 0),
    NATIVE_REDUCE: (1, 1),
    NATIVE_ALL_REDUCE: (1, 1),
}
_HEADER = struct.Struct("<IiiBBHiiiiqqqqQ")


def encode(schedule: Schedule) -> bytes:
    """Little endian, no padding."""
    header = _HEADER.pack(
        _MAGIC,
        schedule.size,
        schedule.rank,
        schedule.type,
        schedule.op,
        len(schedule.circle_end),
        len(schedule.kind),
        len(schedule.source_buffer),
        len(schedule.dependency_step),
        len(schedule.circle_rank),
        schedule.chunk_bytes,
        schedule.input_bytes,
        schedule.output_bytes,
        schedule.scratch_bytes,
        schedule.plan_hash,
    )
    return header + b"".join(getattr(schedule, name).astype(kind).tobytes() for name, kind in COLUMNS.items())


def decode(data: bytes) -> Schedule:
    """Decodes and validates; see ``Schedule.from_bytes``."""
    if len(data) < _HEADER.size:
        raise ValueError(f"schedule: {len(data)} bytes are shorter than the header's {_HEADER.size}")
    magic, size, rank, kind, op, circles, steps, sources, dependencies, members, *sizes = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError("schedule: not of this binary form (magic)")
    if min(steps, sources, dependencies, members) < 0:
        raise ValueError("schedule: negative counts in the header")
    columns: dict[str, np.ndarray] = {}
    at = _HEADER.size
    tables = (
        (STEP_COLUMNS, steps),
        (SOURCE_COLUMNS, sources),
        (DEPENDENCY_COLUMNS, dependencies),
        (CIRCLE_COLUMNS, circles),
        (MEMBER_COLUMNS, members),
    )
    for table, count in tables:
        for name, dtype in table.items():
            end = at + count * np.dtype(dtype).itemsize
            if end > len(data):
                raise ValueError(f"schedule: {len(data)} bytes end inside column {name}")
            columns[name] = np.frombuffer(data, dtype, count, at)
            at = end
    if at != len(data):
        raise ValueError(f"schedule: {len(data) - at} bytes too many")
    schedule = Schedule(size, rank, kind, op, *sizes, **columns)
    validate(schedule)
    return schedule


def validate(s: Schedule) -> None:
    """Ranges inside buffers, dependencies on existing steps, kinds, wraps, one step a stream and peer.

    Raises:
      ValueError: names the step and the field.
    """
    if not (0 <= s.rank < s.size):
        raise ValueError(f"schedule: rank {s.rank} is not one of {s.size}")
    if s.type > len(DTYPES) or s.op >= len(OPS):
        raise ValueError(f"schedule: no dtype {s.type} or no op {s.op}")
    if s.chunk_bytes <= 0 or s.chunk_bytes % s.itemsize:
        raise ValueError(
            f"schedule: chunk_bytes {s.chunk_bytes} is not a positive multiple of the item size {s.itemsize}"
        )
    sizes = (s.chunk_bytes, s.input_bytes, s.output_bytes, s.scratch_bytes)
    if min(sizes) < 0 or max(sizes) > _BYTES_MAX:
        raise ValueError("schedule: a buffer or chunk size is negative or absurd")
    tables = (
        ("sources_end", s.source_buffer),
        ("dependencies_end", s.dependency_step),
        ("circle_end", s.circle_rank),
    )
    for name, table in tables:
        ends = getattr(s, name)
        if np.any(np.diff(ends, prepend=0) < 0) or (int(ends[-1]) if len(ends) else 0) != len(table):
            raise ValueError(f"schedule: {name} does not ascend to {len(table)}")
    for number, circle in enumerate(s.circles):
        members = circle.members
        if len(members) < 2 or len(set(members)) < len(members) or not set(members) <= set(range(s.size)):
            raise ValueError(
                f"schedule: circle {number} is {members}, not two or more of the {s.size} ranks, each once"
            )
    seen: set[tuple[int, int, int]] = set()
    for step in range(s.steps):
        _validate_step(s, step, seen)


def _validate_step(s: Schedule, step: int, seen: set[tuple[int, int, int]]) -> None:
    kind = int(s.kind[step])
    if kind > NATIVE_ALL_REDUCE:
        raise ValueError(f"schedule step {step}: no kind {kind}")

    def fail(field: str, why: str):
        raise ValueError(f"schedule step {step} ({KIND_NAMES[kind]}): {field} {why}")

    length, peer, sources = int(s.length[step]), int(s.peer[step]), s.sources(step)
    if not 0 <= length <= _BYTES_MAX:
        fail("length", f"{length} is negative or absurd")
    if kind in (SEND, RECV):
        if not 0 <= peer < s.size or peer == s.rank:
            fail("peer", f"{peer} is no other rank of {s.size}")
        key = (kind, peer, int(s.stream[step]))
        if key in seen:
            fail("stream", f"{key[2]} has a step with peer {peer} already")
        seen.add(key)
    elif kind >= NATIVE_REDUCE:
        _validate_native(s, step, fail)
    elif peer != -1 or s.stream[step]:
        fail("peer", "is set on a local step")
    only_root = (1, 1) if peer == s.rank else (0, 0)
    wanted = only_root if kind == NATIVE_BROADCAST else _SOURCES[kind]
    if not wanted[0] <= len(sources) <= wanted[1]:
        fail("sources", f"are {len(sources)}")
    if s.final[step] > 1 or (s.final[step] and kind != REDUCE):
        fail("final", "is set on a step that is no reduction, or is not 0 or 1")
    if kind in _REDUCING and (s.type == 0 or s.op == 0 or length % s.itemsize):
        fail("length", f"{length}, type {s.type} or op {s.op} cannot be reduced")
    for name, place in [("source", place) for place in sources] + [("target", s.target(step))]:
        if name == "target" and (kind == SEND or (kind == NATIVE_REDUCE and peer != s.rank)):
            if place != (0, 0, 0):
                fail("target", "is set where nothing is written")
        elif not _fits(s, place, length, kind):
            fail(name, f"{tuple(place)} of {length} bytes is outside its buffer, not a ring in scratch, or unaligned")
        elif name == "target" and place.buffer == INPUT:
            fail("target", "is the input")
    for on, distance in s.dependencies(step):
        if not 0 <= on < s.steps or distance < WHOLE:
            fail("dependency", f"({on}, {distance}) names no step or distance")
        if distance <= 0 and on >= step:
            fail("dependency", f"({on}, {distance}) with no distance must name an earlier step")


def _validate_native(s: Schedule, step: int, fail) -> None:
    kind, number, root = int(s.kind[step]), int(s.stream[step]), int(s.peer[step])
    if number >= len(s.circle_end):
        fail("stream", f"names circle {number} of {len(s.circle_end)}")
    members = s.circle_rank[(int(s.circle_end[number - 1]) if number else 0) : int(s.circle_end[number])].tolist()
    if s.rank not in members:
        fail("stream", f"names circle {number}, which rank {s.rank} is not in")
    if (root not in members) if kind != NATIVE_ALL_REDUCE else root != -1:
        fail("peer", f"{root} is no root in circle {number}")


def _fits(s: Schedule, place: Place, length: int, kind: int) -> bool:
    if place.buffer > SCRATCH or place.offset < 0 or place.wrap < 0:
        return False
    extent = length
    if place.wrap:
        if place.buffer != SCRATCH:
            return False
        if iterations(length, s.chunk_bytes) > place.wrap:
            extent = place.wrap * s.chunk_bytes
    size = (s.input_bytes, s.output_bytes, s.scratch_bytes)[place.buffer]
    return place.offset + extent <= size and not (kind in _REDUCING and place.offset % s.itemsize)
