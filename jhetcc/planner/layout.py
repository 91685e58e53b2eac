# SPDX-License-Identifier: Apache-2.0
"""What the planner knows of the machines: which host each rank is on, which clusters there are, and what things cost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .clusters import ClusterShape, check_clusters
from .profile import SHM, TCP, Link, Profile

__all__ = ["INLINE_BYTES", "SHM", "TCP", "Layout", "Link"]

INLINE_BYTES = 16 * 1024  # longer messages are offered to the receiver, which fetches them
_PUSHED_BYTES = 2 << 20  # between hosts, what comes right behind its offer; longer messages are asked for
_ASKED_WAYS = 3  # the offer, the request, the bytes


@dataclass(frozen=True)
class Layout:
    """The machines under one communicator. Equal on all its ranks, so that all choose alike.

    Attributes:
      hosts: number of the host of each rank, by index within the communicator.
      profile: what links and memory cost.
      clusters: the homogeneous clusters; None where all ranks are alike, so that only flat algorithms fit.

    Raises:
      ValueError: the clusters do not hold each rank once.

    Example:
      >>> Layout((0, 0, 1)).kind(0, 2)
      'tcp'
      >>> Layout.local(2).size
      2
    """

    hosts: tuple[int, ...]
    profile: Profile = Profile()  # noqa: RUF009 - a frozen value
    clusters: tuple[ClusterShape, ...] | None = None

    def __post_init__(self) -> None:
        if self.clusters is not None:
            check_clusters(self.clusters, self.size)

    @staticmethod
    def local(size: int) -> Layout:
        """``size`` ranks of one host."""
        return Layout((0,) * size)

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def spans_hosts(self) -> bool:
        return len(set(self.hosts)) > 1

    @property
    def shm(self) -> Link:
        """The link between ranks of one host."""
        return self.profile.shm

    @cached_property
    def tcp(self) -> Link:
        """The link between hosts: where NICs are known, by their nominal rates, a host's part of those of the slowest cluster."""
        known = [
            sum(nic.bandwidth for nic in shape.nics) / len({self.hosts[rank] for rank in shape.ranks})
            for shape in self.clusters or ()
            if shape.nics
        ]
        return Link(self.profile.tcp.alpha, 1 / min(known)) if known else self.profile.tcp

    def beta_of(self, host: int) -> float:
        """Seconds a byte that a host sends to others, or takes from them."""
        known = self.profile.hosts
        if host < len(known) and not any(shape.nics for shape in self.clusters or ()):
            return known[host]
        return self.tcp.beta

    @property
    def copy(self) -> float:
        return self.profile.copy

    @property
    def reduce(self) -> float:
        return self.profile.reduce

    def kind(self, a: int, b: int) -> str:
        """``"shm"`` or ``"tcp"``."""
        return "shm" if self.hosts[a] == self.hosts[b] else "tcp"

    def wait(self, between: bool, nbytes: float = 0) -> float:
        """Seconds before the bytes of a message begin to come.

        Args:
          between: hosts, or within one.
          nbytes: of a message that may be longer than what flat algorithms send at a time.
        """
        ways = _ASKED_WAYS if between and nbytes > _PUSHED_BYTES else 1
        return ways * (self.tcp if between else self.shm).alpha

    def link(self, a: int, b: int) -> Link:
        return self.shm if self.hosts[a] == self.hosts[b] else self.tcp

    @cached_property
    def slowest(self) -> Link:
        """The link that paces a round in which everybody sends."""
        return self.tcp if self.spans_hosts else self.shm
