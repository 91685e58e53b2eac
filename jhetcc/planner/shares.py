# SPDX-License-Identifier: Apache-2.0
"""Who carries what between clusters: each NIC's share, from which NIC to which, and which cluster reduces what.

Every cluster cuts the unit interval among its NICs by bandwidth; where all their cuts meet, shares begin and end, so
that in each share every cluster has one NIC and one border. This is the north-west corner rule of the transport
problem. Each NIC carries its part of what its cluster sends and receives, so no assignment takes less time: a cluster
of bandwidth B cannot move V bytes in less than V / B.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise

from .clusters import ClusterShape

__all__ = ["Share", "cut", "nic_shares", "owner_shares", "shares"]


@dataclass(frozen=True)
class Share:
    """A part of the bytes between clusters.

    Attributes:
      begin, end: the part, of the unit interval.
      nics: number of each cluster's NIC.
      borders: each cluster's border rank.
    """

    begin: Fraction
    end: Fraction
    nics: tuple[int, ...]
    borders: tuple[int, ...]


def nic_shares(shape: ClusterShape) -> tuple[Fraction, ...]:
    """Each NIC's share of its cluster's bytes; equal ones of all ranks where no NIC is known."""
    weights = [max(1, round(nic.bandwidth)) for nic in shape.nics] or [1] * shape.size
    total = sum(weights)
    return tuple(Fraction(weight, total) for weight in weights)


@lru_cache(maxsize=256)
def shares(clusters: tuple[ClusterShape, ...]) -> tuple[Share, ...]:
    """The shares between these clusters, in order; at most as many as they have NICs.

    Example:
      >>> from .clusters import Nic
      >>> fast = ClusterShape((0, 1), nics=(Nic(3e9), Nic(1e9)))
      >>> [(share.nics, str(share.end)) for share in shares((fast, ClusterShape((2, 3))))]
      [((0, 0), '1/2'), ((0, 1), '3/4'), ((1, 1), '1')]
    """
    ends = [list(accumulate(nic_shares(shape))) for shape in clusters]
    cuts = sorted({Fraction(0), *(end for one in ends for end in one)})
    borders_of = [shape.borders for shape in clusters]
    result = []
    for begin, end in pairwise(cuts):
        nics = tuple(bisect_right(one, begin) for one in ends)
        borders = tuple(borders[nic] for borders, nic in zip(borders_of, nics, strict=True))
        result.append(Share(begin, end, nics, borders))
    return tuple(result)


def cut(count: int, share: Share) -> tuple[int, int]:
    """The items of ``count`` that a share carries, as (begin, end); the shares together carry each once."""
    return int(count * share.begin), int(count * share.end)


def owner_shares(bandwidths: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """How much of an all-reduce each cluster should reduce so that the slowest cluster is done first.

    A cluster that owns the share w of N bytes sends its partial sums of the rest and its results to k - 1 others:
    N * (1 + (k - 2) * w) in all, and receives as much. The longest of these divided by the bandwidth is least when
    clusters own what they can move within one common time: bandwidth fills up like water, by linear parts.
    With two clusters the split does not matter to the links; it then follows the bandwidth, as the reducing does.
    """
    total, many = sum(bandwidths, Fraction(0)), len(bandwidths) - 2
    if many <= 0:
        return tuple(bandwidth / total for bandwidth in bandwidths)
    # A cluster owns (time * bandwidth - 1) / many once that is positive; find the time at which all own 1.
    for first in range(len(bandwidths)):
        filled = sorted(bandwidths)[first:]
        time = Fraction(many + len(filled)) / sum(filled, Fraction(0))
        if time * filled[0] >= 1:
            return tuple(max(Fraction(0), (time * bandwidth - 1) / many) for bandwidth in bandwidths)
    raise AssertionError("the fastest cluster alone always fills up")
