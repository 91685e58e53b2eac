# SPDX-License-Identifier: Apache-2.0
"""The NICs of two processes, and which of them are joined by paths: both find the same list. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from jhetcc.errors import BadArgumentError

__all__ = ["Nic", "Way", "flows_over_one_nic", "ways"]


@dataclass(frozen=True)
class Nic:
    """One of a process's NICs, as all others see it.

    Attributes:
      name: of its interface; empty where unknown.
      host: its address, without a scope.
      port: where the process listens on it.
      prefix_length: of its subnet; 0 where unknown.
      mbit_per_s: of its link; 0 where unknown.
      rdma: the RDMA device of that address, if its process would use it; else empty.
    """

    name: str
    host: str
    port: int
    prefix_length: int = 0
    mbit_per_s: int = 0
    rdma: str = ""

    @property
    def address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        return ipaddress.ip_address(self.host)

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        length = self.prefix_length or self.address.max_prefixlen
        return ipaddress.ip_network((self.host, length), strict=False)

    def __str__(self) -> str:
        rate = f" ({self.mbit_per_s / 1e3:g} Gbit/s)" if self.mbit_per_s else ""
        return f"{self.name} {self.host}".strip() + rate + (f" by {self.rdma}" if self.rdma else "")

    def address_from(self, own: Nic) -> str:
        """Where the process listens on it, as a process calls it from a NIC of its own: link-local addresses mean one there."""
        if self.address.version == 4:
            return f"{self.host}:{self.port}"
        scope = f"%{own.name}" if self.address.is_link_local else ""
        return f"[{self.host}{scope}]:{self.port}"

    def reaches(self, other: Nic) -> bool:
        """Whether one is in the other's subnet."""
        if self.address.version != other.address.version:
            return False
        return other.address in self.network or self.address in other.network


@dataclass(frozen=True)
class Way:
    """One path: numbers of the two NICs; tier 0 joins aligned ones, tier 1 crossed ones, which are spare."""

    low: int
    high: int
    tier: int = 0


def ways(low: Sequence[Nic], high: Sequence[Nic], *, same_host: bool, per_nic: int | None) -> list[Way]:
    """The paths between two processes; a path's number is its place in the list.

    NICs of one subnet are aligned with each other, the rest in their order; the side with fewer uses some of them again. Where both
    have several, each is joined with the next one of the other side, too, for the case that no aligned path is left.

    Args:
      low: NICs of the process with the lower number.
      high: of the other.
      same_host: the two are on one machine.
      per_nic: paths of each aligned pair of NICs; None: one, and a spare one where both sides have one NIC that leads out of the machine.

    Raises:
      BadArgumentError: no NIC of one side can reach any of the other.
    """
    # An address that both hosts have, such as that of a bridge in each, leads to the host itself, as does loopback.
    inner = set() if same_host else {n.host for n in low} & {n.host for n in high}
    inner |= set() if same_host else {n.host for n in (*low, *high) if n.address.is_loopback}
    a = [k for k, nic in enumerate(low) if nic.host not in inner]
    b = [k for k, nic in enumerate(high) if nic.host not in inner]
    versions = {low[k].address.version for k in a} & {high[k].address.version for k in b}
    if not versions:
        raise BadArgumentError(
            f"no NIC of one side can reach one of the other: {_listed(low)} here, {_listed(high)} there. JHETCC_INTERFACE names the "
            "NICs to be used",
            code="no_route",
            scope="process",
        )
    version = min(versions)
    a = [k for k in a if low[k].address.version == version]
    b = [k for k in b if high[k].address.version == version]
    a, b = _aligned(a, b, low, high)
    count = max(len(a), len(b))
    aligned = [Way(a[k % len(a)], b[k % len(b)]) for k in range(count)]
    is_alone = len(a) == len(b) == 1 and not same_host
    found = aligned * (per_nic or 1)
    if is_alone and per_nic is None:  # two flows at once would only crowd each other out of the one link
        found += [Way(aligned[0].low, aligned[0].high, 1)]
    if len(a) > 1 and len(b) > 1:
        joined = {(way.low, way.high) for way in aligned}
        crossed = dict.fromkeys((a[k % len(a)], b[(k + 1) % len(b)]) for k in range(count))
        found += [Way(*ends, 1) for ends in crossed if ends not in joined]
    return found


def flows_over_one_nic(nic: Nic, place: str, hosts: int, flows: int) -> str:
    """What it means for hosts that are reached by one NIC here, and have one themselves, that several flows join them.

    Args:
      nic: the one here.
      place: of a process on such a host.
      hosts: how many there are.
      flows: to each rank there.
    """
    others = f" and {hosts - 1} more host{'s' if hosts > 2 else ''}" if hosts > 1 else ""
    return (
        f"one NIC joins this process with {place}{others}: {flows} flows go over {nic}. They protect against the loss of a "
        "connection (a reset, a firewall that forgot it, an unlucky hash in a bundle of links), not against that of the NIC, its "
        "cable or its switch: that takes a second NIC on both sides"
    )


def _aligned(a: list[int], b: list[int], low: Sequence[Nic], high: Sequence[Nic]) -> tuple[list[int], list[int]]:
    """The same numbers, those of one subnet at the same place."""
    first, second, left = [], [], list(b)
    for k in a:
        match = next((j for j in left if low[k].reaches(high[j])), None)
        if match is not None:
            left.remove(match)
            first.append(k)
            second.append(match)
    return first + [k for k in a if k not in first], second + left


def _listed(nics: Sequence[Nic]) -> str:
    return ", ".join(f"{nic.name} {nic.host}".strip() for nic in nics)
