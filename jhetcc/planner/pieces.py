# SPDX-License-Identifier: Apache-2.0
"""An operation over clusters, cut into pieces: byte ranges that one border rank of each cluster carries.

Pieces are numbered alike on all ranks; a piece's number is the stream of its messages. They depend on the operation,
the clusters and their shares only, never on the chunk size.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise

from ..schedule import Operation
from .clusters import ClusterShape
from .shares import Share, cut, owner_shares, shares

__all__ = ["PIECES_MAX", "Flow", "Reduced", "Spread", "cluster_of", "count_flows", "flows", "reduced", "spread"]

PIECES_MAX = 0xFF00  # streams below those of the agreement
Clusters = tuple[ClusterShape, ...]


@dataclass(frozen=True)
class Reduced:
    """Bytes that every rank contributes to.

    Attributes:
      begin, length: their place in the input.
      owner: the cluster whose border rank reduces what the clusters hold.
      share: who carries them.
      target: the one rank that gets the result, None for all of them.
      at: place in the target's output.
    """

    begin: int
    length: int
    owner: int
    share: Share
    target: int | None
    at: int


@dataclass(frozen=True)
class Spread:
    """Bytes of one rank that all ranks get."""

    source: int
    begin: int
    length: int
    share: Share
    at: int


@dataclass(frozen=True)
class Flow:
    """Bytes of one rank that one rank gets, by way of ``path``: itself, its border, the other border, the target."""

    path: tuple[int, ...]
    begin: int
    length: int
    at: int
    share: Share | None  # None within a cluster


def cluster_of(clusters: Clusters, size: int) -> list[int]:
    """The number of each rank's cluster."""
    result = [0] * size
    for number, shape in enumerate(clusters):
        for rank in shape.ranks:
            result[rank] = number
    return result


@lru_cache(maxsize=128)
def reduced(operation: Operation, clusters: Clusters, bandwidths: tuple[Fraction, ...]) -> tuple[Reduced, ...]:
    """The pieces of a reduction.

    Args:
      operation: an all-reduce, reduce or psum_scatter.
      clusters: all of them.
      bandwidths: of each cluster, as an owner of an all-reduce's parts; zero for those that cannot be.
    """
    item, size = operation.itemsize, sum(shape.size for shape in clusters)
    count = operation.nbytes // item
    found: list[Reduced] = []

    def add(begin: int, end: int, owner: int, share: Share, target: int | None, at: int) -> None:
        if end > begin:
            found.append(Reduced(begin * item, (end - begin) * item, owner, share, target, at * item))

    if operation.is_all_reduce:
        able = [number for number, bandwidth in enumerate(bandwidths) if bandwidth]
        owned = owner_shares([bandwidths[number] for number in able])
        ends = [int(count * end) for end in accumulate(owned, initial=Fraction(0))]
        for owner, (begin, end) in zip(able, pairwise(ends), strict=True):
            for share in shares(clusters):
                a, b = (begin + x for x in cut(end - begin, share))
                add(a, b, owner, share, None, a)
        return tuple(found)
    for owner, shape in enumerate(clusters):
        if operation.name == "reduce":
            targets = [operation.root] if operation.root in shape.ranks else []
            block = count
        else:
            targets, block = list(shape.ranks), count // size
        for share in shares(clusters) if block else ():
            # The targets' blocks end to end; a share's part of that covers blocks and ends of blocks.
            a, b = cut(block * len(targets), share)
            for number in range(a // block, -(-b // block)):
                low, high = max(a, number * block), min(b, (number + 1) * block)
                target = targets[number]
                base = 0 if operation.name == "reduce" else target * block
                at = low - number * block
                add(base + at, base + high - number * block, owner, share, target, at)
    return tuple(found)


def parts(operation: Operation, size: int) -> list[tuple[int, int]]:
    """(offset, length) in bytes of each rank's part of the gathered or scattered whole."""
    if operation.lengths is not None:
        each = [rows * operation.row_bytes for rows in operation.lengths]
    elif operation.name == "scatter":
        each = [operation.nbytes // size] * size
    else:
        each = [operation.nbytes] * size
    return list(zip(accumulate(each, initial=0), each, strict=False))


@lru_cache(maxsize=128)
def spread(operation: Operation, clusters: Clusters) -> tuple[Spread, ...]:
    """The pieces of an all_gather or broadcast."""
    item, size = operation.itemsize, sum(shape.size for shape in clusters)
    if operation.name == "broadcast":
        assert operation.root is not None
        rows = {operation.root: (0, operation.nbytes)}
    else:
        rows = dict(enumerate(parts(operation, size)))
    found = []
    for shape in clusters:
        own = [(rank, *rows[rank]) for rank in shape.ranks if rank in rows and rows[rank][1]]
        total = sum(length for _, _, length in own) // item
        for share in shares(clusters):
            for (rank, at, _), low, high in _overlaps(own, *cut(total, share), item):
                found.append(Spread(rank, low, high - low, share, at + low))
    return tuple(found)


def _overlaps(own, a: int, b: int, item: int):
    """(row, begin, end) in bytes for the rows, laid end to end, that items a to b cover."""
    at = 0
    for row in own:
        low, high = max(a * item, at), min(b * item, at + row[2])
        if high > low:
            yield row, low - at, high - at
        at += row[2]


def count_flows(operation: Operation, clusters: Clusters) -> int:
    """How many pieces ``flows`` gives at most, without making them."""
    size, cuts = sum(shape.size for shape in clusters), len(shares(clusters))
    many = {"all_to_all": size * size, "ppermute": len(operation.perm or ())}.get(operation.name)
    return size + cuts * len(clusters) if many is None else many * cuts


@lru_cache(maxsize=128)
def flows(operation: Operation, clusters: Clusters) -> tuple[Flow, ...]:
    """The pieces of a gather, scatter, ppermute or all_to_all.

    Where input and output can be the same memory (ppermute, all_to_all), every block is cut at the same places, so
    that what a piece overwrites is sent as one piece too.
    """
    size = sum(shape.size for shape in clusters)
    where = cluster_of(clusters, size)
    name = operation.name
    if name in ("ppermute", "all_to_all"):
        if name == "ppermute":
            pairs = [(a, b, 0, 0, operation.nbytes) for a, b in operation.perm or ()]
        else:
            block = operation.nbytes // size
            pairs = [(a, b, b * block, a * block, block) for a in range(size) for b in range(size)]
        return _cut_alike(operation, clusters, where, pairs)
    root, rows = operation.root or 0, parts(operation, size)
    found: list[Flow] = []
    for number, shape in enumerate(clusters):
        own = [(rank, *rows[rank]) for rank in shape.ranks if rows[rank][1]]
        if number == where[root]:
            for rank, at, length in own:
                ends = (rank, root) if name == "gather" else (root, rank)
                places = (0, at) if name == "gather" else (at, 0)
                found.append(_flow(ends, places[0], length, places[1], None))
            continue
        between = shares((shape, clusters[where[root]]))
        total = sum(length for _, _, length in own) // operation.itemsize
        for share in between:
            for (rank, at, _), low, high in _overlaps(own, *cut(total, share), operation.itemsize):
                near, far = share.borders
                if name == "gather":
                    found.append(_flow((rank, near, far, root), low, high - low, at + low, share))
                else:
                    turned = Share(share.begin, share.end, share.nics[::-1], share.borders[::-1])
                    found.append(_flow((root, far, near, rank), at + low, high - low, low, turned))
    return tuple(found)


def _cut_alike(operation: Operation, clusters: Clusters, where: list[int], pairs) -> tuple[Flow, ...]:
    item = operation.itemsize
    found = []
    for a, b, begin, at, length in pairs:
        for share in shares(clusters):
            low, high = (x * item for x in cut(length // item, share))
            if high > low:
                near, far = where[a], where[b]
                straight = near == far
                path = (a, b) if straight else (a, share.borders[near], share.borders[far], b)
                one = Share(share.begin, share.end, (share.nics[near], share.nics[far]), path[1:3])
                found.append(_flow(path, begin + low, high - low, at + low, None if straight else one))
    return tuple(found)


def _flow(path: tuple[int, ...], begin: int, length: int, at: int, share: Share | None) -> Flow:
    return Flow(tuple(dict.fromkeys(path)), begin, length, at, share)
