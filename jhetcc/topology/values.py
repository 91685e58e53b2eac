# SPDX-License-Identifier: Apache-2.0
"""What exists, as plain frozen values: hosts with sockets, devices, NICs and links; ranks on devices; clusters of ranks. Any thread.

A ``Topology`` that can be made is consistent: names are unique, nothing points at what is not there, every rank is in one cluster.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from jhetcc.errors import BadArgumentError

__all__ = [
    "NAME",
    "RANKS_MAX",
    "Cluster",
    "Device",
    "Host",
    "Link",
    "Nic",
    "Rank",
    "Socket",
    "Topology",
    "Unknown",
    "bad",
    "spans",
]

RANKS_MAX = 65536
NAME = re.compile(r"[A-Za-z0-9_.:@+-]{1,64}")
_PCI = re.compile(r"[A-Za-z0-9_.:-]{1,32}(/[A-Za-z0-9_.:-]{1,32}){1,32}")


def bad(where: str, why: str) -> BadArgumentError:
    """The one error of a topology that cannot be."""
    return BadArgumentError(f"topology: {where}: {why} (docs/topology.md)", code="bad_topology", scope="process")


def spans(ranks: tuple[int, ...]) -> str:
    """Ascending numbers in short: ``"0-3,8"``."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


@dataclass(frozen=True)
class Socket:
    """One NUMA node of a host.

    Attributes:
      number: the system's number of it.
      cpus: its CPUs as the kernel lists them, e.g. ``"0-15,32-47"``; empty where unknown.
    """

    number: int
    cpus: str = ""


@dataclass(frozen=True)
class Device:
    """What a rank runs on.

    Attributes:
      name: unique within the host, e.g. ``"gpu0"``.
      vendor: ``"nvidia"``, ``"amd"``, ``"intel"``, ``"cpu"``, ...
      model: for people.
      socket: number of its NUMA node; None where unknown, or where it is a host's CPUs as a whole.
      pci: its place on PCIe: host bridge, bridges, itself, as in ``"pci0000:16/0000:16:01.0/0000:17:00.0"``; empty where it has none.
      memory_bytes: of its own; None where unknown.
    """

    name: str
    vendor: str
    model: str = ""
    socket: int | None = None
    pci: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Nic:
    """One port to a network.

    Attributes:
      name: unique within the host, e.g. ``"eth0"``.
      kind: ``"ethernet"``, ``"infiniband"`` or ``"virtual"`` (no hardware of its own).
      rdma: name of its verbs device, e.g. ``"mlx5_0"``; empty where it has none.
      socket: number of its NUMA node; None where unknown.
      pci: as for a device.
      gbit_per_s: rate of the link in 10^9 bits a second; None where unknown.
      address: one IP address of it; empty where unknown.
      is_up: whether it can carry traffic.
      network: NICs of one network reach each other.
    """

    name: str
    kind: str = "ethernet"
    rdma: str = ""
    socket: int | None = None
    pci: str = ""
    gbit_per_s: float | None = None
    address: str = ""
    is_up: bool = True
    network: str = "net"


@dataclass(frozen=True)
class Link:
    """A direct way between two devices of one host that is not PCIe: NVLink, xGMI.

    Attributes:
      a: name of one device.
      b: name of the other.
      kind: as the matrix shows it, e.g. ``"NV4"``, ``"XGMI"``.
      gbit_per_s: one direction; None where unknown.
    """

    a: str
    b: str
    kind: str
    gbit_per_s: float | None = None


@dataclass(frozen=True)
class Host:
    """One machine. Without sockets it has those that its devices and NICs name, or one."""

    name: str
    devices: tuple[Device, ...] = ()
    nics: tuple[Nic, ...] = ()
    links: tuple[Link, ...] = ()
    sockets: tuple[Socket, ...] = ()

    def __post_init__(self) -> None:
        if not self.sockets:
            object.__setattr__(self, "sockets", self.implied_sockets)

    @property
    def implied_sockets(self) -> tuple[Socket, ...]:
        named = {part.socket for part in (*self.devices, *self.nics) if part.socket is not None}
        return tuple(Socket(number) for number in sorted(named or {0}))

    def link(self, a: str, b: str) -> Link | None:
        """The direct link between two devices, whichever way round it is written."""
        return next((link for link in self.links if {link.a, link.b} == {a, b}), None)


@dataclass(frozen=True)
class Rank:
    """Where a rank runs: names of a host and of one of its devices."""

    host: str
    device: str


@dataclass(frozen=True)
class Cluster:
    """The ranks that one vendor's collective library can join.

    Attributes:
      name: its label, or vendor, library and version.
      vendor: of its devices.
      library: ``"nccl"``, ``"rccl"``, ``"oneccl"``, ``"mpi"``; ``"none"`` where our own schedules do the native stage.
      version: of the library; empty where there is none or it is unknown.
      ranks: ascending; within the communicator where a communicator was asked.
    """

    name: str
    vendor: str
    library: str
    version: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(filter(None, (self.vendor, self.library, self.version)))})"


@dataclass(frozen=True)
class Unknown:
    """Something that could not be asked, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Topology:
    """Hosts, the ranks on their devices, the clusters they form.

    Attributes:
      hosts: in order.
      ranks: world rank -> place.
      clusters: by lowest rank; together they hold every rank once.
      unknown: what discovery could not ask; no part of what the topology is.

    Raises:
      BadArgumentError: it contradicts itself; says where.
    """

    hosts: tuple[Host, ...]
    ranks: tuple[Rank, ...] = ()
    clusters: tuple[Cluster, ...] = ()
    unknown: tuple[Unknown, ...] = ()

    def __post_init__(self) -> None:
        _unique("hosts", (host.name for host in self.hosts))
        for host in self.hosts:
            _check_host(host)
        _check_ranks(self)
        _check_clusters(self)

    @property
    def size(self) -> int:
        return len(self.ranks)

    @cached_property
    def _hosts(self) -> dict[str, Host]:
        return {host.name: host for host in self.hosts}

    @cached_property
    def _devices(self) -> dict[Rank, Device]:
        return {Rank(host.name, device.name): device for host in self.hosts for device in host.devices}

    @cached_property
    def _cluster_of(self) -> dict[int, int]:
        return {rank: index for index, cluster in enumerate(self.clusters) for rank in cluster.ranks}

    def host_of(self, rank: int) -> Host:
        return self._hosts[self.ranks[rank].host]

    def device_of(self, rank: int) -> Device:
        return self._devices[self.ranks[rank]]

    def cluster_of(self, rank: int) -> int:
        """Index in ``clusters``."""
        return self._cluster_of[rank]


def _unique(where: str, names: Iterable[str]) -> None:
    seen = set()
    for name in names:
        if not NAME.fullmatch(name):
            raise bad(where, f"{name!r} is no name: 1 to 64 letters, digits and _ . : @ + -")
        if name in seen:
            raise bad(where, f"{name!r} occurs twice")
        seen.add(name)


def _check_host(host: Host) -> None:
    where = f"host {host.name!r}"
    _unique(where, (part.name for part in (*host.devices, *host.nics)))
    numbers = [socket.number for socket in host.sockets]
    if len(set(numbers)) < len(numbers) or any(number < 0 for number in numbers):
        raise bad(where, f"its sockets are numbered {numbers}; each number is 0 or more and occurs once")
    for part in (*host.devices, *host.nics):
        _check_part(f"{where}, {part.name!r}", part, numbers)
    names = {device.name for device in host.devices}
    joined = set()
    for link in host.links:
        for end in (link.a, link.b):
            if end not in names:
                raise bad(where, f"a link ends at {end!r}, which is none of its devices ({', '.join(sorted(names))})")
        if link.a == link.b or frozenset((link.a, link.b)) in joined:
            raise bad(where, f"the link {link.a!r} to {link.b!r} joins a device with itself, or occurs twice")
        joined.add(frozenset((link.a, link.b)))
        _positive(f"{where}, link {link.a!r} to {link.b!r}", "gbit_per_s", link.gbit_per_s)
        _unique(f"{where}, link {link.a!r} to {link.b!r}, kind", (link.kind,))


def _check_part(where: str, part: Device | Nic, sockets: list[int]) -> None:
    if part.socket is not None and part.socket not in sockets:
        raise bad(where, f"socket {part.socket} is none of the host's ({', '.join(map(str, sockets))})")
    if part.pci and not _PCI.fullmatch(part.pci):
        raise bad(where, f"pci {part.pci!r} is no place: write host bridge, bridges and the function, joined by /")
    if isinstance(part, Device):
        _unique(f"{where}, vendor", (part.vendor,))
        _positive(where, "memory_bytes", part.memory_bytes)
        return
    _unique(f"{where}, network", (part.network,))
    _unique(f"{where}, rdma", (part.rdma,) if part.rdma else ())
    try:
        ipaddress.ip_address(part.address or "::")
    except ValueError:
        raise bad(where, f"address {part.address!r} is no IP address") from None
    _positive(where, "gbit_per_s", part.gbit_per_s)
    if part.kind not in ("ethernet", "infiniband", "virtual"):
        raise bad(where, f"kind {part.kind!r} is none of ethernet, infiniband, virtual")


def _positive(where: str, what: str, value: float | None) -> None:
    if value is not None and not (0 < value < math.inf):
        raise bad(where, f"{what} is {value:g}; leave it out where it is unknown")


def _check_ranks(topology: Topology) -> None:
    if topology.size > RANKS_MAX:
        raise bad("ranks", f"{topology.size} of them; at most {RANKS_MAX}")
    taken: dict[Rank, int] = {}
    for number, rank in enumerate(topology.ranks):
        if rank.host not in topology._hosts:
            raise bad(f"rank {number}", f"there is no host {rank.host!r}")
        if rank not in topology._devices:
            names = ", ".join(device.name for device in topology._hosts[rank.host].devices[:16])
            raise bad(f"rank {number}", f"host {rank.host!r} has no device {rank.device!r}, only {names or 'none'}")
        if rank in taken:
            raise bad(
                f"rank {number}", f"{rank.host}/{rank.device} is rank {taken[rank]} already; a rank is one device"
            )
        taken[rank] = number


def _check_clusters(topology: Topology) -> None:
    _unique("clusters", (cluster.name for cluster in topology.clusters))
    home: dict[int, str] = {}
    for cluster in topology.clusters:
        where = f"cluster {cluster.name!r}"
        _unique(f"{where}, library", (cluster.library,))
        if not cluster.ranks or list(cluster.ranks) != sorted(set(cluster.ranks)):
            raise bad(where, f"its ranks are {list(cluster.ranks[:16])}; write each once, ascending, one at least")
        for rank in cluster.ranks:
            if not 0 <= rank < topology.size:
                raise bad(where, f"there is no rank {rank}; there are {topology.size}")
            if rank in home:
                raise bad(where, f"rank {rank} is in cluster {home[rank]!r} already")
            home[rank] = cluster.name
            if (vendor := topology.device_of(rank).vendor) != cluster.vendor:
                raise bad(where, f"its vendor is {cluster.vendor!r}, but rank {rank} runs on a device of {vendor!r}")
    for rank in range(topology.size):
        if rank not in home:
            raise bad(f"rank {rank}", "it is in no cluster")
    if [cluster.ranks[0] for cluster in topology.clusters] != sorted(cluster.ranks[0] for cluster in topology.clusters):
        raise bad("clusters", "write them in the order of their lowest ranks")
