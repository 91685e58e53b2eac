# SPDX-License-Identifier: Apache-2.0
"""A topology as text: the matrix of ``nvidia-smi topo -m`` for all vendors, the NIC of each device and why, clusters, borders. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from jhetcc.topology.distance import MEANINGS, between, borders, choose_nics
from jhetcc.topology.values import Device, Host, Nic, Topology, spans

__all__ = ["legend", "matrix", "text"]


def text(topology: Topology) -> str:
    """The whole page that ``jhetcc topo`` prints."""
    parts = [_host(host) for host in topology.hosts]
    parts.append("Legend:\n\n" + legend(topology))
    parts.append(_clusters(topology))
    if found := borders(topology):
        rows = [
            [topology.clusters[b.cluster].name, f"rank {b.rank}", _place(topology, b.rank), b.nic, b.distance]
            for b in found
        ]
        parts.append("Border ranks:\n\n" + _table([["cluster", "rank", "device", "NIC", ""], *rows]))
    if topology.unknown:
        rows = [[each.what, each.why] for each in topology.unknown]
        parts.append("Not known, and why:\n\n" + _table(rows))
    return "\n\n".join(parts) + "\n"


def matrix(host: Host) -> str:
    """Devices and NICs against each other, with the CPUs and the NUMA node of each."""
    parts: list[Device | Nic] = [*host.devices, *host.nics]
    rows = [["", *(part.name for part in parts), "CPU Affinity", "NUMA Affinity"]]
    cpus = {socket.number: socket.cpus for socket in host.sockets}
    for row in parts:
        number = row.socket if row.socket is not None or len(cpus) > 1 else next(iter(cpus))
        cells = ["X" if row is column else _cell(row, column, host) for column in parts]
        rows.append([row.name, *cells, cpus.get(number, "") if number is not None else "", _text(number)])
    return _table(rows)


def _text(number: int | None) -> str:
    return "N/A" if number is None else str(number)


def _cell(row: Device | Nic, column: Device | Nic, host: Host) -> str:
    link = host.link(row.name, column.name)
    return link.kind if link else between(row, column, host)


def legend(topology: Topology) -> str:
    rows = [["X", "= itself"]] + [[name, f"= {meaning}"] for name, meaning in reversed(MEANINGS.items())]
    kinds = {link.kind for host in topology.hosts for link in host.links}
    if any(kind.startswith("NV") for kind in kinds):
        rows.append(["NV#", "= # NVLinks"])
    rows += [[kind, "= a direct link between devices"] for kind in sorted(kinds) if not kind.startswith("NV")]
    return _table(rows)


def _host(host: Host) -> str:
    blocks = [f"Host {host.name}:", matrix(host) if host.devices or host.nics else "  neither devices nor NICs"]
    if host.devices:
        rows = [
            [
                d.name,
                d.vendor,
                d.model if d.model != d.vendor else "",
                f"{d.memory_bytes / 2**30:.0f} GiB" if d.memory_bytes else "",
            ]
            for d in host.devices
        ]
        blocks.append("Devices:\n\n" + _table(rows))
    if host.nics:
        blocks.append("NICs:\n\n" + _table([_nic(nic) for nic in host.nics]))
    if host.devices:
        rows = [
            [choice.device, "->", choice.nic or "none", choice.distance, choice.reason] for choice in choose_nics(host)
        ]
        blocks.append("The NIC of each device:\n\n" + _table(rows))
    return "\n\n".join(blocks)


def _nic(nic: Nic) -> list[str]:
    rate = f"{nic.gbit_per_s:g} Gbit/s" if nic.gbit_per_s else "rate unknown"
    state = "up" if nic.is_up else "down"
    return [
        nic.name,
        nic.kind,
        nic.rdma or "no RDMA",
        rate,
        state,
        nic.address or "address unknown",
        f"network {nic.network}",
    ]


def _clusters(topology: Topology) -> str:
    if not topology.ranks:
        return "Clusters: none, for no device takes part."
    rows = [["cluster", "vendor", "library", "version", "ranks", "hosts"]]
    for cluster in topology.clusters:
        hosts = dict.fromkeys(topology.ranks[rank].host for rank in cluster.ranks)
        shown = spans(cluster.ranks)
        rows.append(
            [
                cluster.name,
                cluster.vendor,
                cluster.library,
                cluster.version or ("-" if cluster.library == "none" else "unknown"),
                shown,
                _few(list(hosts)),
            ]
        )
    return "Clusters:\n\n" + _table(rows)


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _place(topology: Topology, rank: int) -> str:
    return f"{topology.ranks[rank].host}/{topology.ranks[rank].device}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join(
        ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip() for row in rows
    )
