# SPDX-License-Identifier: Apache-2.0
"""Hierarchical schedules of what only moves: from everybody or one rank to all, and from one rank to one rank.

In place. Input and output may be the same memory where their sizes are equal. ppermute and all_to_all receive beside
and copy once the own bytes of that place are sent: waiting before receiving would be a cycle of waits between ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..schedule import WHOLE, Builder
from .clusters import ClusterShape
from .common import RING_SLOTS
from .pieces import Flow, Spread, cluster_of, flows, parts, spread
from .stages import agree, hand_out

__all__ = ["build_flows", "build_spread"]

Clusters = Sequence[ClusterShape]


def build_spread(b: Builder, clusters: tuple[ClusterShape, ...]) -> None:
    """all_gather and broadcast: to every rank of the own cluster and, by the borders, of the others."""
    operation = b.operation
    pieces = spread(operation, clusters)
    sources = {piece.source for piece in pieces}
    by_library = [shape.size > 1 and shape.vendor is not None for shape in clusters]
    if len(sources) < b.size or any(by_library):  # else a rank that has all rows knows that all have started
        agree(b, clusters)
    where = cluster_of(clusters, b.size)
    mine = where[b.rank]
    native = by_library[mine]
    if b.rank in sources:
        begin, length = (0, b.input_bytes) if operation.name == "broadcast" else parts(operation, b.size)[b.rank]
        if not native:
            b.copy(b.output(begin), b.input(), length)
    for stream, piece in enumerate(pieces):
        if where[piece.source] == mine:
            _spread_from_here(b, clusters, mine, native, stream, piece)
            continue
        border, target = piece.share.borders[mine], b.output(piece.at)
        after = []
        if b.rank == border:
            after = [b.recv(piece.share.borders[where[piece.source]], target, piece.length, stream)]
        hand_out(b, clusters[mine], native, border, target, target, piece.length, stream, after)


def _spread_from_here(b: Builder, clusters: Clusters, mine: int, native: bool, stream: int, piece: Spread) -> None:
    """The stages of a piece in its source's cluster."""
    shape, border, length = clusters[mine], piece.share.borders[mine], piece.length
    source, target = b.input(piece.begin), b.output(piece.at)
    have: list[int] = []
    by_border = b.operation.name == "broadcast" and not native and border != piece.source
    if native:
        have = [b.native_broadcast(shape.ranks, piece.source, source, target, length)]
    elif by_border:  # the source sends its bytes once; each border hands out its part
        rest = tuple(rank for rank in shape.ranks if rank != piece.source)
        if b.rank == piece.source:
            b.send(border, source, length, stream)
        else:
            if b.rank == border:
                have = [b.recv(piece.source, target, length, stream)]
            got = hand_out(b, ClusterShape(rest), False, border, target, target, length, stream, have)
            have = have or got
    else:
        have = hand_out(b, shape, False, piece.source, source, target, length, stream)
    if b.rank == border:
        at_source = b.rank == piece.source
        for number, other in enumerate(piece.share.borders):
            if number != mine:
                b.send(other, source if at_source else target, length, stream, after=[] if at_source else have)


def build_flows(b: Builder, clusters: tuple[ClusterShape, ...]) -> None:
    """gather, scatter, ppermute, all_to_all: each piece along its path, through rings at the borders."""
    agree(b, clusters)
    operation, name = b.operation, b.operation.name
    beside = name in ("ppermute", "all_to_all")
    own = [(stream, flow) for stream, flow in enumerate(flows(operation, clusters)) if b.rank in flow.path]
    sent: dict[int, int] = {}  # place in the input -> the step that sends what lies there
    for stream, flow in own:
        if flow.path[0] == b.rank and len(flow.path) > 1:
            sent[flow.begin] = b.send(flow.path[1], b.input(flow.begin), flow.length, stream)
    for stream, flow in own:
        place = flow.path.index(b.rank)
        if len(flow.path) == 1:
            b.copy(b.output(flow.at), b.input(flow.begin), flow.length)
        elif place == len(flow.path) - 1:
            _arrive(b, stream, flow, sent if beside else None)
        elif place:
            ring = b.ring(flow.length, RING_SLOTS)
            recv = b.recv(flow.path[place - 1], ring, flow.length, stream)
            b.reuse(recv, ring, b.send(flow.path[place + 1], ring, flow.length, stream, after=[recv]))
    _fill(b, list(sent.values()))


def _arrive(b: Builder, stream: int, flow: Flow, sent: dict[int, int] | None) -> None:
    before, target = flow.path[-2], b.output(flow.at)
    if sent is None:
        b.recv(before, target, flow.length, stream)
        return
    ring = b.ring(flow.length, RING_SLOTS)
    recv = b.recv(before, ring, flow.length, stream)
    overwritten = [sent[flow.at]] if flow.at in sent else []
    b.reuse(recv, ring, b.copy(target, ring, flow.length, after=[recv, *overwritten]))


def _fill(b: Builder, sent: list[int]) -> None:
    """Zeros in what nothing comes for."""
    operation, begin = b.operation, 0
    if operation.name == "ppermute":
        begin = b.output_bytes if any(target == b.rank for _, target in operation.perm or ()) else 0
    elif operation.name == "gather":
        begin = b.output_bytes if b.rank == operation.root else 0
    elif operation.name == "scatter":
        begin = parts(operation, b.size)[b.rank][1]
    else:
        return
    if b.output_bytes > begin:
        b.fill(b.output(begin), b.output_bytes - begin, after=[(step, WHOLE) for step in sent])
