# SPDX-License-Identifier: Apache-2.0
"""Where everything of a topology's picture goes: boxes within boxes and the ways between them, in pixels. Pure.

Hosts stand one below the other. In a host, clusters are stacked at the left, their devices in rows; NICs are stacked at the right; what
leads from a device to a NIC runs below the device's row and then in the gutter. Networks are bars at the right of all hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jhetcc.topology.distance import borders, choose_nics
from jhetcc.topology.values import Device, Host, Nic, Topology, spans

__all__ = ["CHARACTER", "FONT", "LINE", "PAD", "Box", "Picture", "Way", "lay_out"]

FONT, CHARACTER, LINE, PAD = 12.0, 7.2, 16.0, 10.0  # a monospaced character is 0.6 of its size wide
_GAP, _LANE, _A_ROW = 16.0, 6.0, 4


@dataclass(frozen=True)
class Box:
    """A rectangle with lines of text from its top left corner.

    Attributes:
      key: unique, and the parent of what is inside.
      parent: key of the box around it.
      kind: host, cluster, device, nic, network, key or picture.
      lines: texts.
      cluster: index, for its colour; None for what is in no cluster.
      is_marked: a border rank's device; drawn strong.
      is_faint: a NIC that is down; drawn dashed.
    """

    key: str
    parent: str
    kind: str
    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...] = ()
    cluster: int | None = None
    is_marked: bool = False
    is_faint: bool = False


@dataclass(frozen=True)
class Way:
    """A line through corners; key names its ends."""

    key: str
    kind: str
    points: tuple[tuple[float, float], ...]
    cluster: int | None = None


@dataclass(frozen=True)
class Picture:
    """Parents come before what is inside them."""

    boxes: tuple[Box, ...]
    ways: tuple[Way, ...]


@dataclass(frozen=True)
class _Use:
    """A device that works with a NIC: as border rank, or because it is nearest."""

    device: str
    nic: str
    distance: str


def _width(lines: Sequence[str]) -> float:
    return max((len(line) for line in lines), default=0) * CHARACTER + 2 * PAD


def _height(lines: Sequence[str]) -> float:
    return len(lines) * LINE + 2 * PAD


def lay_out(topology: Topology) -> Picture:
    """The picture of a topology."""
    boxes: list[Box] = []
    ways: list[Way] = []
    y = PAD + LINE + PAD
    for index, cluster in enumerate(topology.clusters):
        lines = (f"{cluster}: rank{'s' if len(cluster.ranks) > 1 else ''} {spans(cluster.ranks)}",)
        boxes.append(Box(f"key {index}", "picture", "key", PAD, y, _width(lines), _height(lines), lines, index))
        y += _height(lines) + PAD
    top = y
    ranks: dict[str, dict[str, int]] = {host.name: {} for host in topology.hosts}
    for rank, place in enumerate(topology.ranks):
        ranks[place.host][place.device] = rank
    uses = _uses(topology)
    shapes = [_HostShape(topology, host, ranks[host.name], uses[host.name]) for host in topology.hosts]
    left = max((shape.left for shape in shapes), default=0.0)
    nic = max((shape.nic for shape in shapes), default=0.0)
    width = max([_width([host.name]) for host in topology.hosts] + [PAD + left + nic + PAD])
    for shape in shapes:
        shape.place(PAD, y, width, nic, boxes, ways)
        y += shape.height + _GAP
    _networks(topology, PAD + width + _GAP, top, y - _GAP, boxes, ways)
    title = (f"hosts: {len(topology.hosts)}, ranks: {topology.size}, clusters: {len(topology.clusters)}",)
    right = max([_width(title), *(box.x + box.width for box in boxes)])
    bottom = max([top, *(box.y + box.height for box in boxes)])
    around = Box("picture", "", "picture", 0.0, 0.0, right + PAD, bottom + PAD, title)
    return Picture((around, *boxes), tuple(ways))


def _networks(topology: Topology, x: float, top: float, bottom: float, boxes: list[Box], ways: list[Way]) -> None:
    """A bar for each network, joined with its NICs."""
    at = {box.key: box for box in boxes if box.kind == "nic"}
    for network in dict.fromkeys(nic.network for host in topology.hosts for nic in host.nics):
        bar = Box(f"network {network}", "picture", "network", x, top, _width([network]), bottom - top, (network,))
        for host in topology.hosts:
            for nic in host.nics:
                if nic.network == network and nic.is_up:
                    box = at[f"{host.name}/{nic.name}"]
                    y = box.y + box.height / 2
                    ways.append(Way(f"{box.key} to {bar.key}", "path", ((box.x + box.width, y), (x, y))))
        boxes.append(bar)
        x += bar.width + _GAP


class _HostShape:
    """One host: measured first, then placed."""

    def __init__(self, topology: Topology, host: Host, ranks: dict[str, int], uses: list[_Use]):
        self._host = host
        self._ranks = ranks
        self._uses = uses
        self._is_border = len(topology.clusters) > 1
        self._groups: dict[int | None, list[Device]] = {}
        for device in host.devices:
            rank = self._ranks.get(device.name)
            self._groups.setdefault(None if rank is None else topology.cluster_of(rank), []).append(device)
        self._titles = {key: "takes no part" if key is None else topology.clusters[key].name for key in self._groups}
        self._device = max((self._device_width(device) for device in host.devices), default=0.0)
        self.nic = max((_width(_nic_lines(nic)) for nic in host.nics), default=0.0)
        self._inner = max((self._group_width(key) for key in self._groups), default=0.0)
        gutter = 2 * PAD + _LANE * len(self._uses) if host.nics else 0.0
        self.left = self._inner + gutter
        self._nic_heights = [
            max(_height(_nic_lines(nic)), 2 * PAD + _LANE * sum(use.nic == nic.name for use in self._uses))
            for nic in host.nics
        ]
        groups = sum(self._group_height(key) + PAD for key in self._groups)
        self.height = PAD + LINE + PAD + max(groups, sum(height + PAD for height in self._nic_heights))

    def _device_lines(self, device: Device) -> tuple[str, ...]:
        lines = [device.name, device.vendor]
        if device.name in self._ranks:
            lines.append(f"rank {self._ranks[device.name]}")
        if device.socket is not None and len(self._host.sockets) > 1:
            lines.append(f"NUMA {device.socket}")
        return (*lines, *(f"{use.nic} {use.distance}" for use in self._uses if use.device == device.name))

    def _device_width(self, device: Device) -> float:
        ends = sum(use.device == device.name for use in self._uses)
        return max(_width(self._device_lines(device)), 2 * PAD + _LANE * ends)

    def _rows(self, key: int | None) -> list[list[Device]]:
        group = self._groups[key]
        return [group[k : k + _A_ROW] for k in range(0, len(group), _A_ROW)]

    def _group_width(self, key: int | None) -> float:
        row = min(len(self._groups[key]), _A_ROW)
        return max(row * (self._device + PAD) + PAD, _width([self._titles[key]]))

    def _row_height(self, row: list[Device]) -> float:
        return max(_height(self._device_lines(device)) for device in row)

    def _lanes(self, row: list[Device]) -> list[_Use]:
        return [use for device in row for use in self._uses if use.device == device.name]

    def _group_height(self, key: int | None) -> float:
        rows = self._rows(key)
        return PAD + LINE + PAD + sum(self._row_height(row) + PAD + _LANE * len(self._lanes(row)) for row in rows)

    def place(self, x: float, y: float, width: float, nic_width: float, boxes: list[Box], ways: list[Way]) -> None:
        """Appends the host's boxes and ways, the NICs at the right edge."""
        name = self._host.name
        boxes.append(Box(f"host {name}", "picture", "host", x, y, width, self.height, (name,)))
        nics: dict[str, Box] = {}
        at = y + PAD + LINE + PAD
        for nic, height in zip(self._host.nics, self._nic_heights, strict=True):
            nics[nic.name] = Box(
                f"{name}/{nic.name}", f"host {name}", "nic", x + width - PAD - nic_width, at, nic_width, height,
                _nic_lines(nic), is_faint=not nic.is_up,
            )  # fmt: skip
            at += height + PAD
        boxes += nics.values()
        at, lane = y + PAD + LINE + PAD, _Counter(lambda n: x + PAD + self._inner + PAD + _LANE * n)
        arrivals = {key: _Counter(lambda n, box=box: box.y + PAD + _LANE * n) for key, box in nics.items()}
        for key in self._groups:
            group = Box(
                f"{name} cluster {key}", f"host {name}", "cluster", x + PAD, at, self._inner, self._group_height(key),
                (self._titles[key],), key,
            )  # fmt: skip
            boxes.append(group)
            self._place_rows(group, key, nics, lane, arrivals, boxes, ways)
            at += group.height + PAD

    def _place_rows(self, group: Box, key: int | None, nics, lane, arrivals, boxes: list[Box], ways: list[Way]) -> None:
        at = group.y + PAD + LINE + PAD
        for row in self._rows(key):
            height = self._row_height(row)
            below = _Counter(lambda n, floor=at + height: floor + _LANE * (n + 1))
            for column, device in enumerate(row):
                left = group.x + PAD + column * (self._device + PAD)
                lines = self._device_lines(device)
                uses = [use for use in self._uses if use.device == device.name]
                marked = bool(uses) and self._is_border
                boxes.append(
                    Box(
                        f"{self._host.name}/{device.name}", group.key, "device", left, at, self._device, height,
                        lines, key, marked,
                    )
                )  # fmt: skip
                for n, use in enumerate(uses):
                    start, turn, floor = left + PAD + _LANE * n, lane.next(), below.next()
                    end = (nics[use.nic].x, arrivals[use.nic].next())
                    points = ((start, at + height), (start, floor), (turn, floor), (turn, end[1]), end)
                    kind = "border" if self._is_border else "choice"
                    ways.append(Way(f"{self._host.name}/{device.name} to {use.nic}", kind, points, key))
            at += height + PAD + _LANE * len(self._lanes(row))


class _Counter:
    """Numbers given out one after the other, as coordinates."""

    def __init__(self, coordinate: Callable[[int], float]):
        self._coordinate = coordinate
        self._given = 0

    def next(self) -> float:
        self._given += 1
        return self._coordinate(self._given - 1)


def _uses(topology: Topology) -> dict[str, list[_Use]]:
    """By host: border ranks and their NICs; in a topology of one cluster, every device and its NIC."""
    found: dict[str, list[_Use]] = {host.name: [] for host in topology.hosts}
    for border in borders(topology):
        place = topology.ranks[border.rank]
        found[place.host].append(_Use(place.device, border.nic, border.distance))
    if len(topology.clusters) < 2:
        for host in topology.hosts:
            found[host.name] = [_Use(c.device, c.nic, c.distance) for c in choose_nics(host) if c.nic]
    return found


def _nic_lines(nic: Nic) -> tuple[str, ...]:
    rate = f"{nic.gbit_per_s:g} Gbit/s" if nic.gbit_per_s else "rate unknown"
    return tuple(
        filter(None, (nic.name, rate if nic.is_up else "down", nic.rdma * (nic.rdma != nic.name), nic.address))
    )
