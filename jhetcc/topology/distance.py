# SPDX-License-Identifier: Apache-2.0
"""How far a device is from a NIC, in the words of NCCL and ``nvidia-smi topo``; which NIC serves a device; border ranks. Pure.

A place on PCIe is host bridge, bridges, function. A PCIe switch is two bridges on a way through it: its upstream port, which all below
it share, and one downstream port a side.
"""

from __future__ import annotations

from dataclasses import dataclass

from jhetcc.topology.values import Device, Host, Nic, Topology

__all__ = ["MEANINGS", "Border", "Choice", "between", "borders", "by_distance", "choose_nics", "way"]

# Nearest first; the words of the legend.
MEANINGS = {
    "LOC": "the same PCIe function",
    "PIX": "at most one PCIe switch between them",
    "PXB": "several PCIe switches, but not the host bridge",
    "PHB": "through the PCIe host bridge (the CPU)",
    "NODE": "within one NUMA node, through several host bridges or on a way not known",
    "SYS": "through the link between NUMA nodes, or not known at all",
}
_ORDER = list(MEANINGS)
# A NIC this many times slower than the host's fastest is for administration: no device is served by it while another is up.
_SLOW = 10.0


@dataclass(frozen=True)
class Choice:
    """The NIC of a device; nic is None where the host has none that is up.

    Attributes:
      device: its name.
      nic: name of the chosen one.
      distance: one of ``MEANINGS``; empty where there is no NIC.
      reason: for people.
    """

    device: str
    nic: str | None
    distance: str
    reason: str


@dataclass(frozen=True)
class Border:
    """A border rank: it carries its cluster's traffic over one NIC of its host.

    Attributes:
      cluster: index in the topology's clusters.
      rank: world rank.
      nic: name of a NIC of the rank's host.
      distance: between the rank's device and the NIC.
    """

    cluster: int
    rank: int
    nic: str
    distance: str


def between(a: Device | Nic, b: Device | Nic, host: Host) -> str:
    """The distance of two parts of a host: one of ``MEANINGS``."""
    return _measure(a, b, host)[0]


def way(a: Device | Nic, b: Device | Nic, host: Host) -> str:
    """What lies between two parts of a host, in words."""
    return _measure(a, b, host)[1]


def _measure(a: Device | Nic, b: Device | Nic, host: Host) -> tuple[str, str]:
    if a == b or (a.pci and a.pci == b.pci):
        return "LOC", "the same PCIe function"
    if a.pci and b.pci and (a.pci.split("/")[0] == b.pci.split("/")[0]):
        return _on_one_host_bridge(a.pci.split("/"), b.pci.split("/"))
    one, other = (_socket(part, host) for part in (a, b))
    if one is None or other is None:
        lost = [part.name for part, number in ((a, one), (b, other)) if number is None]
        return "SYS", f"not known: nobody says on which NUMA node {' and '.join(lost)} is"
    if one != other:
        return "SYS", f"across the link between NUMA nodes {one} and {other}"
    if a.pci and b.pci:
        return "NODE", f"through two host bridges of NUMA node {one}"
    if "cpu" in (getattr(a, "vendor", ""), getattr(b, "vendor", "")) and (a.pci or b.pci):
        return "PHB", f"through the host bridge of NUMA node {one}"
    return "NODE", f"within NUMA node {one}; the places on PCIe are not known"


def _on_one_host_bridge(a: list[str], b: list[str]) -> tuple[str, str]:
    shared = next(k for k, (one, other) in enumerate(zip([*a, ""], [*b, ""], strict=False)) if one != other)
    if shared == 1:
        return "PHB", f"through the host bridge {a[0]}"
    # Each side's own part is its function and, where a switch is between, the switch's downstream port.
    if max(len(a), len(b)) - shared <= 2:
        return "PIX", f"one PCIe switch between them, below {a[shared - 1]}"
    return "PXB", f"several PCIe switches between them, below {a[shared - 1]}"


def _socket(part: Device | Nic, host: Host) -> int | None:
    if part.socket is None and len(host.sockets) == 1:
        return host.sockets[0].number
    return part.socket


def _usable(host: Host) -> list[Nic]:
    up = [nic for nic in host.nics if nic.is_up]
    fastest = max((nic.gbit_per_s or 0.0 for nic in up), default=0.0)
    return [nic for nic in up if nic.gbit_per_s is None or nic.gbit_per_s * _SLOW > fastest]


def choose_nics(host: Host) -> tuple[Choice, ...]:
    """The NIC of every device: the nearest that is up and not far slower than the rest; among equals the one with fewest devices.

    Example:
      >>> host = Host("h", (Device("gpu0", "nvidia", pci="rc0/sw/gpu"),), (Nic("n0", pci="rc0/sw/nic"), Nic("n1", pci="rc1/nic")))
      >>> choose_nics(host)[0].nic
      'n0'
    """
    usable, served, choices = _usable(host), dict.fromkeys((nic.name for nic in host.nics), 0), []
    for device in host.devices:
        if not usable:
            lack = "no NIC of the host is up" if host.nics else "the host has no NIC"
            choices.append(Choice(device.name, None, "", lack))
            continue
        near = min(_ORDER.index(between(device, nic, host)) for nic in usable)
        nearest = [nic for nic in usable if _ORDER.index(between(device, nic, host)) == near]
        fastest = max(nic.gbit_per_s or 0.0 for nic in nearest)
        equals = [nic for nic in nearest if (nic.gbit_per_s or 0.0) == fastest]
        chosen = min(equals, key=lambda nic: served[nic.name])
        served[chosen.name] += 1
        reason = _reason(device, chosen, nearest, equals, host)
        choices.append(Choice(device.name, chosen.name, _ORDER[near], reason))
    return tuple(choices)


def _reason(device: Device, chosen: Nic, nearest: list[Nic], equals: list[Nic], host: Host) -> str:
    parts = [way(device, chosen, host)]
    near = _ORDER.index(between(device, chosen, host))
    usable = _usable(host)
    if others := _names([nic for nic in equals if nic != chosen]):
        parts.append(
            f"as near and fast as {others}, which serve{'s' if ',' not in others else ''} as many devices or more"
        )
    beaten = [nic for nic in nearest if nic not in equals]
    if slower := _names([nic for nic in beaten if nic.gbit_per_s]):
        parts.append(f"faster than {slower}")
    if silent := _names([nic for nic in beaten if not nic.gbit_per_s]):
        parts.append(f"preferred to {silent}, of unknown rate")
    if farther := _names([nic for nic in usable if nic not in nearest]):
        parts.append(f"nearer than {farther}")
    for nic in host.nics:
        closer = _ORDER.index(between(device, nic, host)) <= near
        if closer and not nic.is_up:
            parts.append(f"{nic.name} is down")
        elif closer and nic not in usable:
            parts.append(f"{nic.name} has only {nic.gbit_per_s:g} Gbit/s")
    return "; ".join(parts)


def _names(nics: list[Nic]) -> str:
    return ", ".join(nic.name for nic in nics)


def borders(topology: Topology) -> tuple[Border, ...]:
    """The border ranks of every cluster: for each usable NIC of each of its hosts the rank whose device is nearest.

    The nearest pairs are made first; among equally near ranks it is the one that has fewest NICs yet, then the lowest. A cluster of one
    rank has that rank at every NIC, so a cluster has never fewer borders than NICs. A topology of one cluster has none.
    """
    if len(topology.clusters) < 2:
        return ()
    by_host: dict[tuple[int, str], list[int]] = {}
    for rank, place in enumerate(topology.ranks):
        by_host.setdefault((topology.cluster_of(rank), place.host), []).append(rank)
    found = []
    for (cluster, _), ranks in sorted(by_host.items(), key=lambda item: (item[0][0], item[1][0])):
        host, carried = topology.host_of(ranks[0]), dict.fromkeys(ranks, 0)
        usable = _usable(host)
        far = {
            (rank, nic.name): _ORDER.index(between(topology.device_of(rank), nic, host))
            for rank in ranks
            for nic in usable
        }
        chosen = {}
        for nic in sorted(usable, key=lambda nic: min(far[rank, nic.name] for rank in ranks)):
            chosen[nic.name] = min(ranks, key=lambda rank: (far[rank, nic.name], carried[rank], rank))
            carried[chosen[nic.name]] += 1
        found += [
            Border(cluster, chosen[nic.name], nic.name, _ORDER[far[chosen[nic.name], nic.name]]) for nic in usable
        ]
    return tuple(found)


def by_distance(topology: Topology, border: Border) -> tuple[int, ...]:
    """The ranks of a border's cluster on its host: itself, then the others, the nearest to its NIC first."""
    host = topology.host_of(border.rank)
    card = next(nic for nic in host.nics if nic.name == border.nic)
    here = [rank for rank in topology.clusters[border.cluster].ranks if topology.host_of(rank) == host]
    far = {rank: _ORDER.index(between(topology.device_of(rank), card, host)) for rank in here}
    return tuple(sorted(here, key=lambda rank: (rank != border.rank, far[rank], rank)))
