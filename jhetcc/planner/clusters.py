# SPDX-License-Identifier: Apache-2.0
"""What the planner knows of clusters: their ranks, NICs and vendor's library; and which ranks are borders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

__all__ = ["ClusterShape", "Nic", "Vendor", "check_clusters", "split_sizes"]


@dataclass(frozen=True)
class Nic:
    """A network card of a cluster.

    Attributes:
      bandwidth: bytes a second, each way: what the NIC's nominal rate gives, or the profile where that is unknown.
      near: ranks of the cluster by distance, the nearest first; those left out come after, all equally far.
      direct: whether it reads and writes the ranks' memory itself; else bytes are bounced through the host's.
      name: for people.
    """

    bandwidth: float
    near: tuple[int, ...] = ()
    direct: bool = True
    name: str = ""


@dataclass(frozen=True)
class Vendor:
    """The collective library of a cluster, as far as plans depend on it.

    Attributes:
      name: which one; the profile has its costs.
      uniform: whether it promises the same bits of an all-reduce to all members.
      refuses: (reduction, dtype) that it cannot do; these are reduced by our own schedule.
    """

    name: str
    uniform: bool = False
    refuses: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ClusterShape:
    """The ranks one vendor's library can join, or that have none and run our own schedule.

    Attributes:
      ranks: indexes within the communicator, ascending; any interleaving with other clusters.
      nics: its NICs; empty where nothing is known of them: then every rank is a border, all alike.
      vendor: its library, or None.
      why_none: why its library is not called, for people; empty where nobody would expect one.

    Raises:
      ValueError: no ranks, or not ascending; a NIC without bandwidth, or near a rank of another cluster.

    Example:
      >>> ClusterShape((0, 2, 4), nics=(Nic(25e9, near=(2,)), Nic(25e9, near=(2, 0)))).borders
      (2, 0)
    """

    ranks: tuple[int, ...]
    nics: tuple[Nic, ...] = ()
    vendor: Vendor | None = None
    why_none: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.ranks or list(self.ranks) != sorted(set(self.ranks)):
            raise ValueError(f"cluster {self.ranks}: its ranks must be one or more, ascending")
        for nic in self.nics:
            if not 0 < nic.bandwidth < float("inf"):
                raise ValueError(f"cluster {self.ranks}: a NIC has bandwidth {nic.bandwidth}")
            if not set(nic.near) <= set(self.ranks):
                raise ValueError(f"cluster {self.ranks}: a NIC is near {nic.near}, which are not all its ranks")

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def borders(self) -> tuple[int, ...]:
        """The border rank of each NIC."""
        return _borders(self)

    def native(self, reduction: str, dtype: str) -> bool:
        """Whether its library does the stages inside it; nobody needs one for a single rank."""
        asked = "sum" if reduction == "mean" else reduction  # a library sums, the owner divides
        return self.size > 1 and self.vendor is not None and (asked, dtype) not in self.vendor.refuses


@lru_cache(maxsize=256)
def _borders(shape: ClusterShape) -> tuple[int, ...]:
    """The nearest rank of each NIC that no other one has; ranks serve two only when there are more NICs than ranks."""
    if not shape.nics:
        return shape.ranks
    wishes = [tuple(dict.fromkeys((*nic.near, *shape.ranks))) for nic in shape.nics]  # near first, then the others
    chosen: dict[int, int] = {}
    while len(chosen) < len(wishes):
        taken: set[int] = set()
        for place in range(shape.size):
            for number, wish in enumerate(wishes):
                if number not in chosen and wish[place] not in taken:
                    chosen[number] = wish[place]
                    taken.add(wish[place])
    return tuple(chosen[number] for number in range(len(wishes)))


def check_clusters(clusters: Sequence[ClusterShape], size: int) -> None:
    """Checks that clusters hold each rank once.

    Raises:
      ValueError: they do not.
    """
    ranks = [rank for shape in clusters for rank in shape.ranks]
    if sorted(ranks) != list(range(size)):
        raise ValueError(f"clusters {[shape.ranks for shape in clusters]} do not hold each of {size} ranks once")


def split_sizes(sizes: Sequence[int], vendors: Sequence[Vendor | None] = ()) -> tuple[ClusterShape, ...]:
    """Clusters of these sizes, numbered one after the other, with nothing known of their NICs.

    Example:
      >>> [shape.ranks for shape in split_sizes([2, 1])]
      [(0, 1), (2,)]
    """
    result, begin = [], 0
    for number, size in enumerate(sizes):
        vendor = vendors[number] if number < len(vendors) else None
        result.append(ClusterShape(tuple(range(begin, begin + size)), vendor=vendor))
        begin += size
    return tuple(result)
