# SPDX-License-Identifier: Apache-2.0
"""What the planner knows of the machines: which host each rank is on, and what links and memory cost."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SHM", "TCP", "Layout", "Link"]


@dataclass(frozen=True)
class Link:
    """A way between two ranks.

    Attributes:
      alpha: seconds a message costs whatever its length.
      beta: seconds a byte.
    """

    alpha: float
    beta: float


SHM = Link(2e-6, 1 / 10e9)
TCP = Link(20e-6, 1 / 5e9)


@dataclass(frozen=True)
class Layout:
    """The machines under one communicator. Equal on all its ranks, so that all choose alike.

    Attributes:
      hosts: number of the host of each rank, by index within the communicator.
      shm: link between ranks of one host.
      tcp: link between hosts.
      copy: seconds a byte of a copy in memory.
      reduce: seconds a byte of each source of a reduction.

    Example:
      >>> Layout((0, 0, 1)).kind(0, 2)
      'tcp'
      >>> Layout.local(2).size
      2
    """

    hosts: tuple[int, ...]
    shm: Link = SHM
    tcp: Link = TCP
    copy: float = 1 / 12e9
    reduce: float = 1 / 20e9

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

    def kind(self, a: int, b: int) -> str:
        """``"shm"`` or ``"tcp"``."""
        return "shm" if self.hosts[a] == self.hosts[b] else "tcp"

    def link(self, a: int, b: int) -> Link:
        return self.shm if self.hosts[a] == self.hosts[b] else self.tcp

    @property
    def slowest(self) -> Link:
        """The link that paces a round in which everybody sends."""
        return self.tcp if self.spans_hosts else self.shm
