# SPDX-License-Identifier: Apache-2.0
"""What the algorithms share: shards, chunk sizes, scratch rings, agreement rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..schedule import Builder, Operation, Place
from .layout import INLINE_BYTES, Layout

__all__ = [
    "AGREEMENT_STREAM",
    "RING_SLOTS",
    "agreement",
    "chunk_bytes",
    "dissemination",
    "needs_no_messages",
    "owner_reduce",
    "shards",
]

RING_SLOTS = 4
# Streams of the agreement rounds; data streams of an algorithm stay below.
AGREEMENT_STREAM = 0xFF00
_OVERLAP = 8  # chunks of a shard that make its three stages overlap well enough
_SCRATCH_BYTES = 2 << 20  # what a rank's rings may take of its L2 cache


def shards(operation: Operation, size: int) -> list[tuple[int, int]]:
    """(offset, length) in bytes of each rank's shard: whole elements, the first ``count % size`` one element longer."""
    item = operation.itemsize
    each, extra = divmod(operation.nbytes // item, size)
    result = []
    begin = 0
    for rank in range(size):
        length = (each + (rank < extra)) * item
        result.append((begin, length))
        begin += length
    return result


def chunk_bytes(operation: Operation, layout: Layout) -> int:
    """Bytes of one iteration, from operation and layout alone, so all ranks agree.

    A multiple of 64 and of the item size; never below what travels inline. Within a host, a fetch is one system call that pays by the
    page and by the call: 1 MiB where bytes only move; for a reduction 512 KiB while a shard is short, and 128 KiB once it is long
    enough that its chunks should stay in the caches between the steps. Between hosts 1 MiB, less where a reduction would have
    few chunks to overlap. Less, too, where many ranks share the scratch of one.
    """
    chunk = 1 << 20
    if operation.reduction != "none":
        shard = operation.nbytes // layout.size
        if not layout.spans_hosts:
            chunk = (512 << 10) if shard <= 1 << 20 else (128 << 10)
        elif shard < _OVERLAP * chunk:
            chunk = (256 << 10) if shard < _OVERLAP * (512 << 10) else (512 << 10)
    if not operation.is_point_to_point:
        peers = max(1, layout.size - 1)
        room = max(_SCRATCH_BYTES, chunk * RING_SLOTS)
        while chunk > 2 * INLINE_BYTES and chunk * peers * RING_SLOTS > room:
            chunk //= 2
    unit = math.lcm(64, operation.itemsize)
    return max(unit, -(-chunk // unit) * unit)


def agreement(b: Builder) -> None:
    """Dissemination rounds of empty messages: a rank that completes knows that every rank has started.

    Source: D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier synchronization", 1988.
    """
    dissemination(b, range(b.size), [])


def dissemination(b: Builder, ranks: Sequence[int], heard: list[int]) -> list[int]:
    """The rounds among some ranks, of which this is one.

    Args:
      heard: steps that come before the first round.

    Returns:
      Those, and the steps after which this rank knows that all of them have started.
    """
    place, distance, round_ = ranks.index(b.rank), 1, 0
    while distance < len(ranks):
        stream = AGREEMENT_STREAM + round_
        b.send(ranks[(place + distance) % len(ranks)], b.input(), 0, stream, after=heard)
        heard = [*heard, b.recv(ranks[(place - distance) % len(ranks)], b.output(), 0, stream)]
        distance, round_ = distance * 2, round_ + 1
    return heard


def owner_reduce(b: Builder, own: Place, target: Place, length: int, after=()) -> int:
    """Receives everybody's contribution in stream 0 and reduces all of them in rank order, in one step.

    Returns:
      The reduction's step.
    """
    received: dict[int, tuple[int, Place]] = {}
    for peer in b.others():
        place = b.ring(length, RING_SLOTS)
        received[peer] = (b.recv(peer, place, length), place)
    sources = [own if rank == b.rank else received[rank][1] for rank in range(b.size)]
    step = b.reduce(target, sources, length, final=True, after=[*(step for step, _ in received.values()), *after])
    for recv, place in received.values():
        b.reuse(recv, place, step)
    return step


def needs_no_messages(b: Builder) -> bool:
    """A communicator of one: the result is the operand (in place: the copy moves nothing)."""
    if b.size > 1:
        return False
    if b.output_bytes:
        b.copy(b.output(), b.input(), b.output_bytes)
    return True
