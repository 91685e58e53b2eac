# SPDX-License-Identifier: Apache-2.0
"""What a hierarchical plan puts on links, NICs and clusters; counted from its pieces, without expanding any rank."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from ..schedule import Operation
from .clusters import ClusterShape
from .hierarchical import Basis
from .pieces import cluster_of, flows, reduced, spread
from .shares import Share

__all__ = ["Load", "Local", "load"]


@dataclass
class Local:
    """A stage inside one cluster.

    Attributes:
      nbytes: bytes that each member gives or gets, its own included.
      by_root: bytes of the pieces that each border (or source) takes in or gives out; of how many pieces.
      single: bytes that go from one member to one other, by the member that sends or receives them.
      reduces: whether the members' bytes are reduced.
    """

    nbytes: int = 0
    by_root: Counter[int] = field(default_factory=Counter)
    pieces: Counter[int] = field(default_factory=Counter)
    single: Counter[int] = field(default_factory=Counter)
    reduces: bool = False

    def rooted(self, root: int, length: int) -> None:
        self.nbytes += length
        self.by_root[root] += length
        self.pieces[root] += 1

    def hop(self, a: int, b: int, length: int) -> None:
        if a != b:
            self.single[a] += length
            self.single[b] += length


@dataclass
class Load:
    """A whole operation.

    Attributes:
      first, last: the stages inside each cluster.
      out, into: bytes of each (cluster, NIC, phase); phase 0 carries contributions, phase 1 results.
      sent, taken: pieces of each (cluster, NIC, phase) that go out and come in.
      links: bytes from (cluster, NIC) to (cluster, NIC).
      pairs: (cluster, cluster) with traffic, by phase.
      owned: bytes that each owner rank reduces between clusters.
      longest: bytes of the longest piece.
      copied: bytes that a rank copies from where it received them.
    """

    first: list[Local]
    last: list[Local]
    out: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    into: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    sent: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    taken: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    links: Counter[tuple[int, int, int, int]] = field(default_factory=Counter)
    pairs: tuple[set[tuple[int, int]], set[tuple[int, int]]] = field(default_factory=lambda: (set(), set()))
    owned: Counter[int] = field(default_factory=Counter)
    longest: int = 0
    copied: int = 0

    def cross(self, a: int, nic_a: int, b: int, nic_b: int, length: int, phase: int) -> None:
        self.out[a, nic_a, phase] += length
        self.into[b, nic_b, phase] += length
        self.sent[a, nic_a, phase] += 1
        self.taken[b, nic_b, phase] += 1
        self.links[a, nic_a, b, nic_b] += length
        self.pairs[phase].add((a, b))


@lru_cache(maxsize=128)
def load(operation: Operation, basis: Basis) -> Load:
    """The load of an operation."""
    clusters = basis.clusters
    result = Load([Local() for _ in clusters], [Local() for _ in clusters])
    if operation.reduction != "none":
        for piece in reduced(operation, clusters, basis.bandwidths):
            _add_reduced(result, clusters, piece)
    elif operation.name in ("all_gather", "broadcast"):
        where = cluster_of(clusters, sum(shape.size for shape in clusters))
        for piece in spread(operation, clusters):
            _add_spread(result, clusters, where[piece.source], piece)
    elif operation.name != "barrier":
        where = cluster_of(clusters, sum(shape.size for shape in clusters))
        for flow in flows(operation, clusters):
            _add_flow(result, where, flow)
        if operation.name in ("ppermute", "all_to_all"):
            result.copied = operation.nbytes
    return result


def _add_reduced(result: Load, clusters: tuple[ClusterShape, ...], piece) -> None:
    share: Share = piece.share
    owner, length = piece.owner, piece.length
    result.longest = max(result.longest, length)
    result.owned[share.borders[owner]] += length
    for number, shape in enumerate(clusters):
        border = share.borders[number]
        if shape.size > 1:
            result.first[number].reduces = True
            result.first[number].rooted(border, length)
            if piece.target is None:
                result.last[number].rooted(border, length)
        if number != owner:
            result.cross(number, share.nics[number], owner, share.nics[owner], length, 0)
            if piece.target is None:
                result.cross(owner, share.nics[owner], number, share.nics[number], length, 1)
    if piece.target is not None:
        result.last[owner].hop(share.borders[owner], piece.target, length)


def _add_spread(result: Load, clusters: tuple[ClusterShape, ...], home: int, piece) -> None:
    share: Share = piece.share
    result.longest = max(result.longest, piece.length)
    for number, shape in enumerate(clusters):
        if number != home:
            result.cross(home, share.nics[home], number, share.nics[number], piece.length, 0)
        if shape.size > 1:
            stage = result.first if number == home else result.last
            stage[number].rooted(piece.source if number == home else share.borders[number], piece.length)


def _add_flow(result: Load, where: list[int], flow) -> None:
    result.longest = max(result.longest, flow.length)
    source, target = flow.path[0], flow.path[-1]
    if flow.share is None:
        result.first[where[source]].hop(source, target, flow.length)
        return
    near, far = flow.share.borders
    result.first[where[source]].hop(source, near, flow.length)
    result.last[where[target]].hop(far, target, flow.length)
    nic_a, nic_b = flow.share.nics
    result.cross(where[source], nic_a, where[target], nic_b, flow.length, 0)
