# SPDX-License-Identifier: Apache-2.0
"""What the kernel tells in sysfs: NUMA nodes, accelerators, NICs, their places on PCIe, xGMI. Reads only; any thread.

Every function takes the root of the tree, ``/`` on a real machine; what is not there is noted with its reason.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from jhetcc.topology.values import NAME, Device, Link, Nic, Socket, Unknown

__all__ = ["accelerators", "nics", "place", "sockets", "xgmi"]

_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
# PCI vendor numbers, and the classes an accelerator has: display controllers (03) and processing accelerators (12).
_VENDORS = {
    "0x10de": "nvidia",
    "0x1002": "amd",
    "0x8086": "intel",
    "0x1da3": "habana",
    "0x19e5": "huawei",
    "0x1d94": "hygon",
}
_CLASSES = ("0x03", "0x12")
_ETHERNET, _INFINIBAND, _LOOPBACK = 1, 32, 772  # ARPHRD numbers
_KFD_XGMI = 11


def _read(path: Path) -> str | None:
    """One attribute; None where it is missing or the driver has no answer."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]+", text) else None


def _list(path: Path) -> list[Path]:
    """Entries in the order people count, eth2 before eth10; PCI addresses are hexadecimal and of one length: as they are written."""
    try:
        entries = list(path.iterdir())
    except OSError:
        return []
    if all(_FUNCTION.fullmatch(each.name) for each in entries):
        return sorted(entries)
    return sorted(entries, key=lambda each: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", each.name)])


def sockets(root: Path, notes: list[Unknown]) -> tuple[Socket, ...]:
    """The NUMA nodes that have CPUs; one for everything where the kernel has none."""
    found = []
    for node in _list(root / "sys/devices/system/node"):
        if re.fullmatch(r"node[0-9]+", node.name) and (cpus := _read(node / "cpulist")):
            found.append(Socket(int(node.name[4:]), cpus))
    if not found:
        notes.append(Unknown("NUMA nodes", "the kernel lists none in /sys/devices/system/node: taken for one"))
        found.append(Socket(0, _read(root / "sys/devices/system/cpu/online") or ""))
    return tuple(found)


def place(path: Path) -> str:
    """Place on PCIe of a device's directory, from the links of sysfs: host bridge, bridges, function; empty where it is on none."""
    found: list[str] = []
    for part in Path(os.path.realpath(path)).parts:
        if _FUNCTION.fullmatch(part) or (not found and _BRIDGE.fullmatch(part)):
            found.append(part)
    return "/".join(found) if len(found) > 1 else ""


def _function(root: Path, pci: str) -> Path:
    return root / "sys/bus/pci/devices" / pci.rpartition("/")[2]


def _socket(root: Path, pci: str, known: tuple[Socket, ...]) -> int | None:
    number = _number(_function(root, pci) / "numa_node") if pci else None
    return number if number in [socket.number for socket in known] else None


def accelerators(root: Path, known: tuple[Socket, ...], notes: list[Unknown]) -> list[Device]:
    """Every PCIe function of an accelerator's class and vendor, in the order of their addresses: gpu0, gpu1, ..."""
    folder = root / "sys/bus/pci/devices"
    functions = _list(folder)
    if not functions:
        notes.append(Unknown("accelerators on PCIe", f"{folder} lists nothing"))
    found = []
    for function in functions:
        vendor = _VENDORS.get(_read(function / "vendor") or "")
        if vendor and (_read(function / "class") or "").startswith(_CLASSES):
            pci = place(function)
            model = _read(function / "label") or f"device {(_read(function / 'device') or '?').removeprefix('0x')}"
            found.append(Device(f"gpu{len(found)}", vendor, model, _socket(root, pci, known), pci))
    return found


def nics(root: Path, known: tuple[Socket, ...], notes: list[Unknown]) -> list[Nic]:
    """Network interfaces that lead somewhere, and verbs devices without one; what is left out is noted."""
    rdma = _verbs(root)
    found = []
    for interface in _list(root / "sys/class/net"):
        hardware = (interface / "device").exists()
        why = None if hardware else _why_not(interface)
        if not NAME.fullmatch(interface.name):
            why = "left out: a topology has no such names"
        if why:
            notes.append(Unknown(f"interface {interface.name}", why))
            continue
        kind = _number(interface / "type")
        if kind not in (_ETHERNET, _INFINIBAND):
            notes.append(
                Unknown(f"interface {interface.name}", f"left out: type {kind} is neither Ethernet nor InfiniBand")
            )
            continue
        pci = place(interface / "device") if hardware else ""
        speed = _number(interface / "speed")
        verbs, rate, _ = rdma.pop(interface.name, ("", None, True))
        if speed is not None and speed > 0:
            rate = speed / 1e3
        found.append(
            Nic(
                interface.name,
                "virtual" if not hardware else "infiniband" if kind == _INFINIBAND else "ethernet",
                verbs,
                _socket(root, pci, known),
                pci,
                rate,
                is_up=_read(interface / "operstate") in ("up", "unknown"),  # some drivers do not say
            )
        )
    for verbs, rate, is_up in rdma.values():  # a verbs device without an interface is a NIC of its own
        pci = place(root / "sys/class/infiniband" / verbs / "device")
        found.append(Nic(verbs, "infiniband", verbs, _socket(root, pci, known), pci, rate, is_up=is_up))
    if not found:
        notes.append(Unknown("NICs", "no interface in /sys/class/net leads anywhere"))
    return found


def _why_not(interface: Path) -> str | None:
    """Why an interface without hardware is no NIC; None for one that is a container's or a guest's way out."""
    if _number(interface / "type") == _LOOPBACK:
        return "left out: loopback leads nowhere"
    if (interface / "master").exists():
        return "left out: a part of another interface"
    if (interface / "bridge").exists():
        return "left out: a bridge within this host"
    if _read(interface / "operstate") != "up":
        return f"left out: virtual, and {_read(interface / 'operstate') or 'without a state'}"
    return None


def _verbs(root: Path) -> dict[str, tuple[str, float | None, bool]]:
    """Verbs devices by the interface they belong to, else by their own name: (name, Gbit/s, port is active)."""
    found = {}
    for device in _list(root / "sys/class/infiniband"):
        ports = _list(device / "ports")
        rate = re.match(r"([0-9.]+) Gb/sec", _read(ports[0] / "rate") or "") if ports else None
        is_up = bool(ports) and "ACTIVE" in (_read(ports[0] / "state") or "")
        names = [each.name for each in _list(device / "device/net")]
        if parent := _read(device / "parent"):  # soft-RoCE sits on an interface
            names = [parent]
        found[names[0] if names else device.name] = (device.name, float(rate.group(1)) if rate else None, is_up)
    return found


def xgmi(root: Path, devices: list[Device]) -> list[Link]:
    """Direct links between AMD devices, as the kernel's compute driver lists them."""
    nodes = {}
    for node in _list(root / "sys/class/kfd/kfd/topology/nodes"):
        about = _properties(node / "properties")
        where = about.get("location_id", 0)
        address = f"{about.get('domain', 0):04x}:{where >> 8 & 255:02x}:{where >> 3 & 31:02x}.{where & 7}"
        nodes[node.name] = next((d.name for d in devices if d.pci.endswith("/" + address)), None)
    found: dict[frozenset[str], Link] = {}
    for node in _list(root / "sys/class/kfd/kfd/topology/nodes"):
        for link in _list(node / "io_links"):
            about = _properties(link / "properties")
            a, b = nodes.get(str(about.get("node_from"))), nodes.get(str(about.get("node_to")))
            if about.get("type") == _KFD_XGMI and a and b and a != b:
                rate = about.get("max_bandwidth", 0) * 8 / 1e3  # from MB/s
                found.setdefault(frozenset((a, b)), Link(a, b, "XGMI", rate or None))
    return list(found.values())


def _properties(path: Path) -> dict[str, int]:
    lines = [line.split() for line in (_read(path) or "").splitlines()]
    return {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdigit()}
