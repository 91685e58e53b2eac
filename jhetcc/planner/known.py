# SPDX-License-Identifier: Apache-2.0
"""From what exists (clusters, topologies) to what the planner plans with: cluster shapes and layouts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..topology import Cluster, Topology, borders
from .clusters import ClusterShape, Nic, Vendor
from .layout import Layout
from .profile import Profile

__all__ = ["layout_of", "shapes"]


def shapes(clusters: Sequence[Cluster], libraries: Collection[str] = ()) -> tuple[ClusterShape, ...] | None:
    """Clusters as the planner takes them, with nothing known of NICs; None for one cluster without a library.

    Args:
      clusters: of a communicator.
      libraries: vendors' libraries that can be called; clusters of others run our own schedule.

    Example:
      >>> shapes([Cluster("a", "cpu", "none", "", (0, 1))]) is None
      True
    """
    found = tuple(ClusterShape(one.ranks, vendor=_vendor(one, libraries)) for one in clusters)
    return None if len(found) == 1 and found[0].vendor is None else found


def _vendor(cluster: Cluster, libraries: Collection[str]) -> Vendor | None:
    return Vendor(cluster.library) if cluster.library in libraries else None


def layout_of(topology: Topology, profile: Profile | None = None, libraries: Collection[str] | None = None) -> Layout:
    """The layout of all ranks of a topology.

    Args:
      topology: with ranks and clusters.
      profile: costs; default the built-in ones.
      libraries: those that can be called; None for all that the topology names.

    Returns:
      A layout whose clusters have one NIC for each border of the topology; a NIC of unknown rate is as fast as the
      profile's link between hosts. Bytes are bounced where the NIC has no RDMA and the ranks' memory is a device's.

    Raises:
      ValueError: the topology has no ranks.
    """
    if not topology.ranks:
        raise ValueError("the topology has no ranks to plan for: a file can name them, see docs/topology.md")
    profile = profile or Profile()
    if libraries is None:
        libraries = {cluster.library for cluster in topology.clusters} - {"none"}
    numbers = {host.name: number for number, host in enumerate(topology.hosts)}
    nics: list[list[Nic]] = [[] for _ in topology.clusters]
    for border in borders(topology):
        host, cluster = topology.host_of(border.rank), topology.clusters[border.cluster]
        card = next(nic for nic in host.nics if nic.name == border.nic)
        rate = card.gbit_per_s * 1e9 / 8 if card.gbit_per_s else 1 / profile.tcp.beta
        direct = bool(card.rdma) or cluster.vendor == "cpu"
        nics[border.cluster].append(Nic(rate, (border.rank,), direct, f"{host.name}/{card.name}"))
    made = tuple(
        ClusterShape(cluster.ranks, tuple(cards), _vendor(cluster, libraries))
        for cluster, cards in zip(topology.clusters, nics, strict=True)
    )
    hosts = tuple(numbers[place.host] for place in topology.ranks)
    return Layout(hosts, profile, None if len(made) == 1 and made[0].vendor is None else made)
