# SPDX-License-Identifier: Apache-2.0
"""Direct all-reduce, in one shot or two.

one_shot: everybody sends its whole input to everybody and reduces all contributions; one message time, n times the
bytes. two_shot: the owner of a shard gets everybody's part of it, reduces, and sends the result to everybody;
pipelined by chunk. Both reduce all contributions of an element in one step in rank order, so they give the same bits
and fit every dtype.
Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005,
section 4.5 (reduce-scatter then all-gather); the one- and two-shot forms as in P. Patarasuk, X. Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", 2009, section 2.
"""

from __future__ import annotations

from ..schedule import Builder, Operation, Plan, Schedule
from .common import agreement, needs_no_messages, owner_reduce, shards
from .cost import all_pairs_seconds
from .layout import Layout

__all__ = ["build_one_shot", "build_two_shot", "fits", "one_shot_seconds", "two_shot_seconds"]


def fits(operation: Operation, size: int) -> str | None:
    """Why these methods do not fit, or None."""
    return None if operation.is_all_reduce else "it is an all-reduce"


def build_one_shot(plan: Plan, rank: int) -> Schedule:
    b = Builder(plan, rank)
    if needs_no_messages(b):
        pass
    elif not b.input_bytes:
        agreement(b)
    else:
        sent = [b.send(peer, b.input(), b.input_bytes) for peer in b.others()]
        # In place the result overwrites what is sent: it waits for the sends.
        owner_reduce(b, b.input(), b.output(), b.input_bytes, after=sent)
    return b.finish()


def build_two_shot(plan: Plan, rank: int) -> Schedule:
    b = Builder(plan, rank)
    if needs_no_messages(b):
        pass
    elif not b.input_bytes:
        agreement(b)
    else:
        parts = shards(b.operation, b.size)
        begin, length = parts[rank]
        sent = {peer: b.send(peer, b.input(at), part) for peer, (at, part) in _others(b, parts) if part}
        if length:
            reduced = owner_reduce(b, b.input(begin), b.output(begin), length)
            for peer in b.others():
                b.send(peer, b.output(begin), length, stream=1, after=[reduced])
        for peer, (at, part) in _others(b, parts):
            if part:
                # In place this overwrites what was sent to the owner: it waits for that send's same chunk.
                b.recv(peer, b.output(at), part, stream=1, after=[sent[peer]])
    return b.finish()


def _others(b: Builder, parts: list[tuple[int, int]]) -> list[tuple[int, tuple[int, int]]]:
    return [(peer, parts[peer]) for peer in b.others()]


def one_shot_seconds(operation: Operation, layout: Layout, chunk: int) -> float:
    """Predicted seconds of ``one_shot``."""
    nbytes = operation.nbytes
    return all_pairs_seconds(layout, nbytes) + layout.size * nbytes * layout.reduce


def two_shot_seconds(operation: Operation, layout: Layout, chunk: int) -> float:
    """Predicted seconds of ``two_shot``; both shots overlap but for the first chunk."""
    shard = operation.nbytes / layout.size
    return 2 * all_pairs_seconds(layout, shard) + operation.nbytes * layout.reduce
