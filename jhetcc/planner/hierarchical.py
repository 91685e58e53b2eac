# SPDX-License-Identifier: Apache-2.0
"""Hierarchical: native stage, cross stage, native stage, pipelined by chunk; for clusters of any sizes and numbering.

A reduction: each cluster reduces a piece at its border rank; the owner cluster's border reduces what the clusters hold
and its bits go to everybody. Between the clusters by *owner add*, in one step in cluster order, or by the owner's
vendor library over a *border communicator* whose members each hold one contribution (nothing is filled in). What only
moves goes from its rank, or the rank's border, to the other clusters' borders, and from there to who needs it.

Order of reduction: within a cluster in its rank order, or as its library does; then in cluster order. It does not
depend on chunks, shares or NICs; with a border communicator, the owner of an element depends on clusters and
operation alone, for owners' libraries may differ.
Source: the three stages follow HetCCL (arXiv 2605.31000); the owner exchange is a two-shot all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ..schedule import WHOLE, Builder, Operation, Place, Plan, Schedule
from .clusters import ClusterShape
from .common import RING_SLOTS
from .hierarchical_moves import build_flows, build_spread
from .pieces import PIECES_MAX, Reduced, cluster_of, count_flows, reduced
from .shares import shares
from .stages import BORDER_LAG, Held, agree, collect, hand_out

__all__ = ["Basis", "border_able", "build", "calls_libraries", "fits", "owners"]


@dataclass(frozen=True)
class Basis:
    """What a hierarchical plan is made from, besides its operation.

    Attributes:
      clusters: all of them.
      bandwidths: of each one, as the owner of an all-reduce's parts.
      border: reduce between clusters by border communicators, not by owner add.
    """

    clusters: tuple[ClusterShape, ...]
    bandwidths: tuple[Fraction, ...]
    border: bool = False


def border_able(operation: Operation, clusters: tuple[ClusterShape, ...]) -> list[bool]:
    """Which clusters can reduce by a border communicator: one member for each cluster's contribution."""
    many = max(2, len(clusters))
    return [shape.size >= many and shape.native(operation.reduction, operation.dtype) for shape in clusters]


def owners(operation: Operation, clusters: tuple[ClusterShape, ...], bandwidths, border: bool) -> Basis:
    """The basis of a plan; with border communicators the owners are those that can, in equal parts."""
    if border:
        bandwidths = [Fraction(able) for able in border_able(operation, clusters)]
    return Basis(clusters, tuple(bandwidths), border)


def fits(operation: Operation, clusters: tuple[ClusterShape, ...] | None, border: bool = False) -> str | None:
    """Why this method does not fit, or None."""
    if operation.is_point_to_point:
        return "a message between two ranks goes straight"
    if clusters is None:
        return "no clusters are known"
    reduction, many = operation.reduction, len(clusters)
    native = [shape.native(reduction, operation.dtype) for shape in clusters]
    moves = operation.name in ("all_gather", "broadcast") and clusters[0].size > 1 and clusters[0].vendor is not None
    if many == 1 and not (moves or (reduction != "none" and native[0])):
        return "one cluster whose library does not do this is what flat algorithms are for"
    if reduction == "none" and border:
        return "nothing is reduced"
    if border and many == 1:
        return "there is one cluster"
    if operation.rounds_once:
        stored = next((s for s, n in zip(clusters, native, strict=True) if s.size > 1 and not n), None)
        if stored is not None:
            return f"{operation.dtype} is rounded once over all contributions; cluster {stored.ranks} would store partial sums"
    if border:
        able = border_able(operation, clusters)
        if operation.name == "reduce":  # the root's cluster owns all of it
            able = [able[cluster_of(clusters, len_of(clusters))[operation.root or 0]]]
        if not (any(able) if operation.is_all_reduce else all(able)):
            return "a cluster that would reduce has no library for it, or fewer ranks than there are clusters"
    size = len_of(clusters)
    pieces = count_flows(operation, clusters) if reduction == "none" else size + many * len(shares(clusters))
    return f"{pieces} pieces are too many to forward" if pieces >= PIECES_MAX else None


def calls_libraries(operation: Operation, clusters: tuple[ClusterShape, ...]) -> bool:
    """Whether any rank of a plan that fits calls a vendor's library."""
    if operation.reduction != "none":
        return any(shape.native(operation.reduction, operation.dtype) for shape in clusters)
    return operation.name in ("all_gather", "broadcast") and any(s.size > 1 and s.vendor is not None for s in clusters)


def len_of(clusters: tuple[ClusterShape, ...]) -> int:
    return sum(shape.size for shape in clusters)


def build(plan: Plan, rank: int, basis: Basis) -> Schedule:
    b = Builder(plan, rank)
    operation, clusters = plan.operation, basis.clusters
    if operation.reduction != "none":
        _build_reduction(b, basis)
    elif operation.name in ("all_gather", "broadcast"):
        build_spread(b, clusters)
    elif operation.name == "barrier":
        agree(b, clusters)
    else:
        build_flows(b, clusters)
    return b.finish()


def _build_reduction(b: Builder, basis: Basis) -> None:
    operation = b.operation
    pieces = reduced(operation, basis.clusters, basis.bandwidths)
    if operation.name == "reduce" or not pieces or calls_libraries(operation, basis.clusters):
        agree(b, basis.clusters)
    if not pieces:
        return
    only = basis.clusters[0]
    if len(basis.clusters) == 1 and only.vendor is not None and only.vendor.uniform and operation.is_all_reduce:
        step = b.native_all_reduce(only.ranks, b.input(), b.output(), b.input_bytes)
        if operation.reduction == "mean":
            b.reduce(b.output(), [b.output()], b.input_bytes, final=True, after=[step])
        return
    work = _Reduction(b, basis)
    reads = [step for number, piece in enumerate(pieces) for step in work.piece(number, piece)]
    if operation.name == "reduce" and b.rank != operation.root:
        b.fill(b.output(), b.output_bytes, after=[(step, WHOLE) for step in reads])


class _Reduction:
    """One rank's steps for the pieces of a reduction."""

    def __init__(self, b: Builder, basis: Basis):
        self.b = b
        self.basis = basis
        self.clusters = basis.clusters
        self.number = cluster_of(basis.clusters, b.size)[b.rank]
        self.shape = basis.clusters[self.number]
        self.native = self.shape.native(b.operation.reduction, b.operation.dtype)

    def piece(self, stream: int, piece: Reduced) -> list[int]:
        """Adds the steps of one piece; returns those that read the input."""
        b, borders, length = self.b, piece.share.borders, piece.length
        border, owner = borders[self.number], borders[piece.owner]
        source = b.input(piece.begin)
        if b.rank == owner:
            everyone = piece.target is None or piece.target == owner
            result = b.output(piece.at) if everyone else b.ring(length, RING_SLOTS)
            held, final = self._own(stream, piece, source, result)
            self._give_result(stream, piece, result, final)
            return [final] if held.reads is None else held.read
        held = collect(b, self.shape, self.native, border, source, length, stream)
        read = held.read
        if b.rank == border:
            to = owner if not self.basis.border else self._holders(piece)[self.number]
            sent = b.send(to, held.place, length, stream, after=held.steps)
            held.empty(b, sent)
            read = read or [sent]
        if self.basis.border and self.number == piece.owner:
            self._hold(stream, piece, owner)
        if piece.target == b.rank:
            b.recv(owner, b.output(piece.at), length, stream, after=read)
        elif piece.target is None:
            self._take_result(stream, piece, border, owner, read)
        return read

    def _own(self, stream: int, piece: Reduced, source: Place, result: Place) -> tuple[Held, int]:
        """Reduces what the clusters hold into ``result``; returns the own cluster's part and the final step."""
        b, length = self.b, piece.length
        mean = b.operation.reduction == "mean"
        alone = len(self.clusters) == 1 and not mean
        held = collect(b, self.shape, self.native, b.rank, source, length, stream, result if alone else None)
        if alone and held.step is not None:
            return held, held.step
        if self.basis.border:
            members = self._holders(piece)
            final = b.native_reduce(members, b.rank, held.place, result, length, BORDER_LAG, after=held.steps)
            held.empty(b, final)
            return held, b.reduce(result, [result], length, final=True, after=[final]) if mean else final
        rings = {other: b.ring(length, RING_SLOTS) for other in range(len(self.clusters)) if other != piece.owner}
        received = {other: b.recv(piece.share.borders[other], place, length, stream) for other, place in rings.items()}
        sources = [rings.get(number, held.place) for number in range(len(self.clusters))]
        final = b.reduce(result, sources, length, final=True, after=[*received.values(), *held.steps])
        held.empty(b, final)
        for other, recv in received.items():
            b.reuse(recv, rings[other], final)
        return held, final

    def _holders(self, piece: Reduced) -> list[int]:
        """The owner cluster's ranks that each hold one cluster's contribution, in cluster order; the owner its own."""
        shape = self.clusters[piece.owner]
        place = shape.ranks.index(piece.share.borders[piece.owner])
        others = iter([*shape.ranks[place + 1 :], *shape.ranks[:place]])
        owner = shape.ranks[place]
        return [owner if number == piece.owner else next(others) for number in range(len(self.clusters))]

    def _hold(self, stream: int, piece: Reduced, owner: int) -> None:
        """Receives another cluster's contribution and gives it to the border communicator, if this rank holds one."""
        b, members = self.b, self._holders(piece)
        if b.rank not in members:
            return
        place = b.ring(piece.length, RING_SLOTS)
        recv = b.recv(piece.share.borders[members.index(b.rank)], place, piece.length, stream)
        step = b.native_reduce(members, owner, place, Place(0), piece.length, BORDER_LAG, after=[recv])
        b.reuse(recv, place, step)

    def _give_result(self, stream: int, piece: Reduced, result: Place, final: int) -> None:
        b = self.b
        if piece.target is None:
            for number, border in enumerate(piece.share.borders):
                if number != self.number:
                    b.send(border, result, piece.length, stream, after=[final])
            hand_out(b, self.shape, self.native, b.rank, result, result, piece.length, stream, [final])
        elif piece.target != b.rank:
            b.reuse(final, result, b.send(piece.target, result, piece.length, stream, after=[final]))

    def _take_result(self, stream: int, piece: Reduced, border: int, owner: int, read: list[int]) -> None:
        b, target = self.b, self.b.output(piece.at)
        after = read
        if b.rank == border:
            after = [b.recv(owner, target, piece.length, stream, after=read)]
        hand_out(b, self.shape, self.native, border, target, target, piece.length, stream, after)
