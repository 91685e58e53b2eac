# SPDX-License-Identifier: Apache-2.0
"""Recursive halving and doubling: all-reduce in 2 log2(n) rounds, for sizes that are powers of two.

Order of reduction: neighbours first, then pairs of pairs: ((0 1)(2 3))((4 5)(6 7)); rank order, bracketed as a tree,
the same for every element. Partial results are stored, so sums, products and means of f16 and bf16 do not fit.
Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005,
section 4.5 (Rabenseifner's algorithm), here with the nearest partner first.

Streams: 0 to k-1 the halving rounds, k to 2k-1 the doubling rounds.
"""

from __future__ import annotations

from ..schedule import WHOLE, Builder, Operation, Plan, Schedule
from .common import RING_SLOTS
from .cost import rounds
from .layout import Layout

__all__ = ["build", "fits", "seconds"]


def fits(operation: Operation, size: int) -> str | None:
    """Why this method does not fit, or None."""
    if not operation.is_all_reduce:
        return "it is an all-reduce"
    if size < 2 or size & (size - 1):
        return "the number of ranks is not a power of two"
    if operation.rounds_once:
        return f"{operation.dtype} is rounded once over all contributions, halving stores partial sums"
    return "there are fewer elements than ranks" if operation.nbytes < operation.itemsize * size else None


def build(plan: Plan, rank: int) -> Schedule:
    b = Builder(plan, rank)
    item = plan.operation.itemsize
    low, high = 0, b.input_bytes
    have: int | None = None  # the step that completed the range still held
    given: list[tuple[int, int, int, int]] = []  # (partner, offset, length, step that sent it)
    for round_ in range(rounds(b.size)):
        partner = rank ^ (1 << round_)
        middle = low + (high - low) // item // 2 * item
        kept, sent = ((low, middle), (middle, high)) if rank < partner else ((middle, high), (low, middle))
        place = b.input if have is None else b.output
        after = [] if have is None else [(have, WHOLE)]
        send = b.send(partner, place(sent[0]), sent[1] - sent[0], stream=round_, after=after)
        given.append((partner, sent[0], sent[1] - sent[0], send))
        slot = b.ring(kept[1] - kept[0], RING_SLOTS)
        recv = b.recv(partner, slot, kept[1] - kept[0], stream=round_)
        sources = [place(kept[0]), slot] if rank < partner else [slot, place(kept[0])]
        last = round_ == rounds(b.size) - 1
        have = b.reduce(b.output(kept[0]), sources, kept[1] - kept[0], final=last, after=[recv, *after])
        b.reuse(recv, slot, have)
        low, high = kept
    waits: list[int] = [] if have is None else [have]
    for round_, (partner, offset, length, send) in enumerate(reversed(given)):
        stream = rounds(b.size) + round_
        b.send(partner, b.output(low), high - low, stream=stream, after=[(step, WHOLE) for step in waits])
        # In place this overwrites what was sent while halving: only after the partner has it.
        waits.append(b.recv(partner, b.output(offset), length, stream=stream, after=[send]))
        low, high = min(low, offset), max(high, offset + length)
    return b.finish()


def seconds(operation: Operation, layout: Layout, chunk: int) -> float:
    """Predicted seconds; a round's link is the slowest one among its pairs.

    Rounds do not overlap by chunk, so each reads what the one before it wrote from memory again: a copy's time.
    """
    total = 0.0
    for round_ in range(rounds(layout.size)):
        part = operation.nbytes / (2 << round_)
        crossing: dict[int, int] = {}
        for rank, host in enumerate(layout.hosts):
            if layout.hosts[rank ^ (1 << round_)] != host:
                crossing[host] = crossing.get(host, 0) + 1
        a_byte = max((share * layout.beta_of(host) for host, share in crossing.items()), default=layout.shm.beta)
        total += 2 * (layout.wait(bool(crossing)) + part * a_byte) + part * (2 * layout.reduce + layout.copy)
    return total
