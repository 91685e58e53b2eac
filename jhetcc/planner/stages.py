# SPDX-License-Identifier: Apache-2.0
"""The stages inside a cluster, in two forms: calls of its vendor's library, or messages of our own.

A library's calls are ordered (``Schedule``): those of the last stage come ``LAST_LAG`` iterations after those of the
first, so that one chunk crosses between clusters while the next is reduced. Our own form reduces in the cluster's rank
order in one step, and works on any transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..schedule import Builder, Place
from .clusters import ClusterShape
from .common import AGREEMENT_STREAM, RING_SLOTS, dissemination

__all__ = ["BORDER_LAG", "LAST_LAG", "Held", "agree", "collect", "hand_out"]

BORDER_LAG = 1
LAST_LAG = RING_SLOTS - 1  # chunks that rings can hold on their way while the first stage goes on


@dataclass(frozen=True)
class Held:
    """What a rank has after the first stage.

    Attributes:
      place: at the border rank, where the cluster's reduction lies.
      step: the step that completes it; None where it is the rank's own input.
      reads: the step that reads the rank's input; None where nothing has yet.
    """

    place: Place
    step: int | None
    reads: int | None

    @property
    def steps(self) -> list[int]:
        return [] if self.step is None else [self.step]

    @property
    def read(self) -> list[int]:
        return [] if self.reads is None else [self.reads]

    def empty(self, b: Builder, reader: int) -> None:
        """``reader`` is the last to need it."""
        if self.step is not None:
            b.reuse(self.step, self.place, reader)


def collect(
    b: Builder,
    shape: ClusterShape,
    native: bool,
    border: int,
    source: Place,
    length: int,
    stream: int,
    target: Place | None = None,
) -> Held:
    """Reduces the cluster's contributions at its border rank, into a ring of scratch unless a target is given."""
    if shape.size == 1:
        return Held(source, None, None)
    at_border = b.rank == border
    if at_border:
        target = b.ring(length, RING_SLOTS) if target is None else target
    if native:
        step = b.native_reduce(shape.ranks, border, source, target or Place(0), length)
        return Held(target or Place(0), step, step)
    if target is None or not at_border:
        return Held(Place(0), None, b.send(border, source, length, stream))
    rings = {rank: b.ring(length, RING_SLOTS) for rank in shape.ranks if rank != border}
    received = {rank: b.recv(rank, place, length, stream) for rank, place in rings.items()}
    sources = [rings.get(rank, source) for rank in shape.ranks]
    step = b.reduce(target, sources, length, after=received.values())
    for rank, recv in received.items():
        b.reuse(recv, rings[rank], step)
    return Held(target, step, step)


def hand_out(
    b: Builder,
    shape: ClusterShape,
    native: bool,
    root: int,
    source: Place,
    target: Place,
    length: int,
    stream: int,
    after: Sequence[int] = (),
    lag: int = LAST_LAG,
) -> list[int]:
    """Gives what the root holds in ``source`` to every other member's ``target``; a root's target is set by others.

    Args:
      after: at the root the steps that complete the source, elsewhere those that still read what lies in the target.

    Returns:
      The steps: at the root those that read the source, elsewhere the one that completes the target.
    """
    if shape.size == 1:
        return []
    if native:
        target = source if b.rank == root else target
        return [b.native_broadcast(shape.ranks, root, source, target, length, lag=lag, after=after)]
    if b.rank != root:
        return [b.recv(root, target, length, stream, after=after)]
    begin = shape.ranks.index(root) + 1
    others = [*shape.ranks[begin:], *shape.ranks[: begin - 1]]  # not all roots begin with the same member
    return [b.send(other, source, length, stream, after=after) for other in others]


def agree(b: Builder, clusters: Sequence[ClusterShape]) -> None:
    """Empty messages: members to their first border, rounds among these, and back; who completes knows all have started.

    Calls of libraries wait for it: who calls something else, or nothing, is known before any rank is inside a library,
    where it could not be called back.
    """
    if len(clusters) == 1:
        return b.hold_native(dissemination(b, clusters[0].ranks, []))
    heads = [shape.borders[0] for shape in clusters]
    number = next(number for number, shape in enumerate(clusters) if b.rank in shape.ranks)
    head, members = heads[number], clusters[number].ranks
    if b.rank != head:
        b.send(head, b.input(), 0, AGREEMENT_STREAM)
        return b.hold_native([b.recv(head, b.output(), 0, AGREEMENT_STREAM)])
    others = [rank for rank in members if rank != head]
    heard: list[int] = []
    for rank in others:  # the last one stands for all, or every answer would wait for every rank
        heard = [b.recv(rank, b.output(), 0, AGREEMENT_STREAM, after=heard)]
    heard = dissemination(b, heads, heard)
    for rank in others:
        b.send(rank, b.input(), 0, AGREEMENT_STREAM, after=heard)
    b.hold_native(heard)
