# SPDX-License-Identifier: Apache-2.0
"""From what exists (clusters, topologies) to what the planner plans with: cluster shapes and layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil

from ..topology import Cluster, Topology, borders, by_distance
from .clusters import ClusterShape, Nic, Vendor
from .layout import Layout
from .profile import Profile

__all__ = ["Capabilities", "layout_of", "nics_of", "shapes"]


@dataclass(frozen=True)
class Capabilities:
    """What a vendor's library can do, as it says itself; equal on all ranks of its cluster.

    Attributes:
      name, version: of the library, as in the cluster's identity.
      uniform: whether it promises the same bits of an all-reduce to all members.
      refuses: (reduction, dtype) that it cannot do.
      one_rank_a_process: whether several ranks of one process cannot be members.
      abortable: whether a call that waits for a lost member can be ended.
    """

    name: str
    version: str = ""
    uniform: bool = False
    refuses: tuple[tuple[str, str], ...] = ()
    one_rank_a_process: bool = True
    abortable: bool = False


def shapes(
    clusters: Sequence[Cluster],
    libraries: Sequence[Capabilities] = (),
    *,
    processes: Sequence[int] = (),
    trusted: bool = True,
    nics: Sequence[tuple[Nic, ...]] = (),
) -> tuple[ClusterShape, ...] | None:
    """Clusters as the planner takes them; None for one cluster that nobody expects a library of.

    Args:
      clusters: of a communicator.
      libraries: that were opened; clusters of others run our own schedule, and their shapes say why.
      processes: number of each rank's process; empty where each has its own.
      trusted: no rank was lost yet; else calls of a library that cannot abort may be stuck in it, and it is not called again.
      nics: of each cluster, as ``nics_of`` gives them; empty where nothing is known of them.

    Example:
      >>> shapes([Cluster("a", "cpu", "none", "", (0, 1))]) is None
      True
      >>> [shape] = shapes([Cluster("a", "cpu", "mpi", "5", (0, 1))], [Capabilities("mpi", "5")], processes=(0, 0))
      >>> shape.why_none
      'mpi joins one rank of a process, and process 0 has 2'
    """
    found = []
    for cluster, cards in zip(clusters, nics or [()] * len(clusters), strict=True):
        known = next((one for one in libraries if (one.name, one.version) == (cluster.library, cluster.version)), None)
        why = _why_none(cluster, known, processes, trusted)
        vendor = None
        if known is not None and not why:
            vendor = Vendor(known.name, known.uniform, tuple(sorted(known.refuses)))
        found.append(ClusterShape(cluster.ranks, cards, vendor, why))
    alone = len(found) == 1 and found[0].vendor is None and not found[0].why_none
    return None if alone else tuple(found)


def _why_none(cluster: Cluster, known: Capabilities | None, processes: Sequence[int], trusted: bool) -> str:
    if cluster.library == "none":
        return ""
    if known is None:
        return f"{cluster.library} {cluster.version}".rstrip() + " could not be opened"
    if not trusted and not known.abortable:
        return f"{known.name} cannot abort calls, and some may be stuck in it since a rank was lost"
    crowd = Counter(processes[rank] for rank in cluster.ranks if processes)
    process, many = max(crowd.items(), key=lambda item: item[1], default=(0, 1))
    if known.one_rank_a_process and many > 1:
        return f"{known.name} joins one rank of a process, and process {process} has {many}"
    return ""


def layout_of(topology: Topology, profile: Profile | None = None, libraries: Collection[str] | None = None) -> Layout:
    """The layout of all ranks of a topology.

    Args:
      topology: with ranks and clusters.
      profile: costs; default the built-in ones.
      libraries: those that can be called; None for all that the topology names.

    Returns:
      A layout whose clusters have the NICs of ``nics_of``.

    Raises:
      ValueError: the topology has no ranks.
    """
    if not topology.ranks:
        raise ValueError("the topology has no ranks to plan for: a file can name them, see docs/topology.md")
    profile = profile or Profile()
    if libraries is None:
        libraries = {cluster.library for cluster in topology.clusters} - {"none"}
    numbers = {host.name: number for number, host in enumerate(topology.hosts)}
    made = tuple(
        ClusterShape(cluster.ranks, cards, Vendor(cluster.library) if cluster.library in libraries else None)
        for cluster, cards in zip(topology.clusters, nics_of(topology, profile), strict=True)
    )
    hosts = tuple(numbers[place.host] for place in topology.ranks)
    return Layout(hosts, profile, None if len(made) == 1 and made[0].vendor is None else made)


def nics_of(topology: Topology, profile: Profile) -> list[tuple[Nic, ...]]:
    """The NICs of each cluster, and with them its border ranks.

    Args:
      topology: with ranks and clusters.
      profile: whose link between hosts is what one rank's stream carries, and a NIC of unknown rate.

    Returns:
      One NIC for each border of the topology. Where the ranks' memory is the host's, a rank sends through the kernel: where its stream
      does not fill the NIC, as many of the host's ranks share it as it takes, the nearest first. Bytes are bounced where the NIC has no
      RDMA and the ranks' memory is a device's.
    """
    found: list[list[Nic]] = [[] for _ in topology.clusters]
    chosen = borders(topology)
    for border in chosen:
        host, cluster = topology.host_of(border.rank), topology.clusters[border.cluster]
        card = next(nic for nic in host.nics if nic.name == border.nic)
        rate = card.gbit_per_s * 1e9 / 8 if card.gbit_per_s else 1 / profile.tcp.beta
        name, near, many = f"{host.name}/{card.name}", (border.rank,), 1
        if cluster.vendor == "cpu" and not card.rdma:
            near = by_distance(topology, border)
            beside = sum(other.cluster == border.cluster and topology.host_of(other.rank) == host for other in chosen)
            many = max(1, min(ceil(rate * profile.tcp.beta), len(near) // beside))
        direct = bool(card.rdma) or cluster.vendor == "cpu"
        found[border.cluster] += [Nic(rate / many, near, direct, name)] * many
    return [tuple(cards) for cards in found]
