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
    alone = Share(Fraction(0), Fraction(1), (0,), clusters[0].ranks[:1])  # nothing crosses
    cuts = shares(clusters) if len(clusters) > 1 else (alone,)
    for shape in clusters:
        own = [(rank, *rows[rank]) for rank in shape.ranks if rank in rows and rows[rank][1]]
        total = sum(length for _, _, length in own) // item
        for share in cuts:
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


def _cuts(clusters: Clusters) -> tuple[Share, ...]:
    """The shares of clusters whose NICs are known; the others have none: there every rank sends and receives its own."""
    known = tuple(shape for shape in clusters if shape.nics)
    return shares(known) if known else (Share(Fraction(0), Fraction(1), (), ()),)


def _on_way(clusters: Clusters, share: Share, numbers: tuple[int, int], ends: tuple[int, int]) -> Share:
    """A share of ``_cuts`` on the way from one rank to another: with the NICs and borders of these two's clusters."""
    known = [number for number, shape in enumerate(clusters) if shape.nics]
    nics, borders = [], []
    for number, end in zip(numbers, ends, strict=True):
        if number in known:
            nics.append(share.nics[known.index(number)])
            borders.append(share.borders[known.index(number)])
        else:
            nics.append(clusters[number].ranks.index(end))
            borders.append(end)
    return Share(share.begin, share.end, tuple(nics), tuple(borders))


def count_flows(operation: Operation, clusters: Clusters) -> int:
    """How many pieces ``flows`` gives at most, without making them."""
    cuts, size = len(_cuts(clusters)), sum(shape.size for shape in clusters)
    blocks = {"all_to_all": size * size, "ppermute": len(operation.perm or ())}.get(operation.name)
    return size + cuts * len(clusters) if blocks is None else blocks * cuts


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
                ends, places = ((rank, root), (0, at)) if name == "gather" else ((root, rank), (at, 0))
                found.append(_flow(ends, places[0], length, places[1], None))
            continue
        pair = (shape, clusters[where[root]])
        total = sum(length for _, _, length in own) // operation.itemsize
        for share in _cuts(pair):
            for (rank, at, _), low, high in _overlaps(own, *cut(total, share), operation.itemsize):
                if name == "gather":
                    one = _on_way(pair, share, (0, 1), (rank, root))
                    found.append(_flow((rank, *one.borders, root), low, high - low, at + low, one))
                else:
                    one = _on_way(pair, share, (1, 0), (root, rank))
                    found.append(_flow((root, *one.borders, rank), at + low, high - low, low, one))
    return tuple(found)


def _cut_alike(operation: Operation, clusters: Clusters, where: list[int], pairs) -> tuple[Flow, ...]:
    item = operation.itemsize
    found = []
    for a, b, begin, at, length in pairs:
        straight = where[a] == where[b]
        for share in _cuts(clusters):
            low, high = (x * item for x in cut(length // item, share))
            if high > low:
                one = None if straight else _on_way(clusters, share, (where[a], where[b]), (a, b))
                path = (a, b) if one is None else (a, *one.borders, b)
                found.append(_flow(path, begin + low, high - low, at + low, one))
    return tuple(found)


def _flow(path: tuple[int, ...], begin: int, length: int, at: int, share: Share | None) -> Flow:
    return Flow(tuple(dict.fromkeys(path)), begin, length, at, share)
