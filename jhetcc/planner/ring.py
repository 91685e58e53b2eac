# SPDX-License-Identifier: Apache-2.0
"""Ring: every rank talks to its two neighbours only. All-reduce, psum_scatter and all_gather.

Order of reduction: the partial sum of shard s starts at rank s+1 and goes round to its owner s, so shard s is reduced
in the order s+1, s+2, ..., s (indexes modulo the size), left to right, the same for all ranks because the owner's bits
go round. Partial results are stored, so sums, products and means of f16 and bf16 do not fit.
Source: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.

Streams: 0 to n-2 the reducing rounds, n-1 to 2n-3 the gathering rounds.
"""

from __future__ import annotations

from ..schedule import Builder, Operation, Place, Plan, Schedule
from .common import RING_SLOTS, shards
from .cost import neighbour_seconds
from .layout import Layout

__all__ = ["build", "fits", "seconds"]


def fits(operation: Operation, size: int) -> str | None:
    """Why this method does not fit, or None."""
    if not operation.is_all_reduce and operation.name not in ("psum_scatter", "all_gather"):
        return "a ring does all-reduces, psum_scatter and all_gather"
    if operation.lengths is not None:
        return "a ring wants equal contributions"
    if size < 2:
        return "a ring has two ranks at least"
    if operation.rounds_once:
        return f"{operation.dtype} is rounded once over all contributions, a ring stores partial sums"
    if operation.nbytes < operation.itemsize * size and operation.name != "all_gather":
        return "there are fewer elements than ranks"
    return "it has no elements" if operation.nbytes == 0 else None


def build(plan: Plan, rank: int) -> Schedule:
    b = Builder(plan, rank)
    name = plan.operation.name
    if name == "all_gather":
        parts = [(peer * b.input_bytes, b.input_bytes) for peer in range(b.size)]
        own = b.copy(b.output(parts[rank][0]), b.input(), b.input_bytes)
        _gather_rounds(b, parts, own, readers={})
    elif name == "psum_scatter":
        parts = [(peer * b.output_bytes, b.output_bytes) for peer in range(b.size)]
        _reduce_rounds(b, parts, b.output())
    else:
        parts = shards(plan.operation, b.size)
        own, readers = _reduce_rounds(b, parts, b.output(parts[rank][0]))
        _gather_rounds(b, parts, own, readers)
    return b.finish()


def _reduce_rounds(b: Builder, parts: list[tuple[int, int]], result: Place) -> tuple[int, dict[int, int]]:
    """Leaves the own shard, complete, in ``result``.

    Returns:
      The step that completes it, and for each other shard the step that reads its input range.
    """
    to, source = (b.rank + 1) % b.size, (b.rank - 1) % b.size
    shard = source
    begin, length = parts[shard]
    readers = {shard: b.send(to, b.input(begin), length, stream=0)}
    for round_ in range(b.size - 1):
        shard = (shard - 1) % b.size
        begin, length = parts[shard]
        slot = b.ring(length, RING_SLOTS)
        recv = b.recv(source, slot, length, stream=round_)
        last = round_ == b.size - 2
        target = result if last else slot
        step = b.reduce(target, [slot, b.input(begin)], length, final=last, after=[recv])
        if last:
            b.reuse(recv, slot, step)
            return step, readers
        readers[shard] = step
        # The partial sum lies in the slot it came in, until the next rank has it.
        b.reuse(recv, slot, b.send(to, slot, length, stream=round_ + 1, after=[step]))
    raise AssertionError("a ring has two ranks at least")


def _gather_rounds(b: Builder, parts: list[tuple[int, int]], have: int, readers: dict[int, int]) -> None:
    """Passes every shard round, beginning with the own one, which step ``have`` completes in the output."""
    to, source = (b.rank + 1) % b.size, (b.rank - 1) % b.size
    shard = b.rank
    for round_ in range(b.size - 1):
        stream = b.size - 1 + round_
        begin, length = parts[shard]
        b.send(to, b.output(begin), length, stream=stream, after=[have])
        shard = (shard - 1) % b.size
        begin, length = parts[shard]
        # In place this overwrites the own contribution: only after it was read.
        have = b.recv(source, b.output(begin), length, stream=stream, after=[readers[shard]] if readers else [])


def seconds(operation: Operation, layout: Layout, chunk: int) -> float:
    """Predicted seconds."""
    each = operation.nbytes if operation.name == "all_gather" else operation.nbytes / layout.size
    gathering = (layout.size - 1) * neighbour_seconds(layout, each)
    reducing = (layout.size - 1) * (neighbour_seconds(layout, each) + 2 * each * layout.reduce)
    if operation.name == "all_gather":
        return gathering + each * layout.copy
    return reducing + (gathering if operation.is_all_reduce else 0.0)
