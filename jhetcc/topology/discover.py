# SPDX-License-Identifier: Apache-2.0
"""This machine as a topology: sysfs first, then what the vendors' libraries add, then the caller's list of JAX devices.

Reads only, and holds nothing. Whatever could not be asked stands in the topology's ``unknown`` with its reason.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from jhetcc.topology import sysfs, vendors
from jhetcc.topology.clusters import Identity, form_clusters
from jhetcc.topology.values import Device, Host, Link, Nic, Rank, Topology, Unknown

__all__ = ["VENDOR_OF_PLATFORM", "Seen", "discover", "host_name"]

# The vendor of a JAX platform's devices; "host" is a world of ranks without JAX.
VENDOR_OF_PLATFORM = {"cpu": "cpu", "host": "cpu", "cuda": "nvidia", "rocm": "amd", "oneapi": "intel"}


@dataclasses.dataclass(frozen=True)
class Seen:
    """One of JAX's local devices, as a plain value.

    Attributes:
      platform: ``"cpu"``, ``"cuda"`` or ``"rocm"``.
      kind: JAX's ``device_kind``.
    """

    platform: str
    kind: str = ""


def discover(
    root: str | os.PathLike[str] = "/",
    seen: Sequence[Seen] | None = None,
    *,
    name: str | None = None,
    label: str = "",
    load: vendors.Load = importlib.import_module,
) -> Topology:
    """Looks at this host.

    Args:
      root: where ``sys`` is.
      seen: JAX's local devices; None where JAX could not be asked.
      name: of the host; default the system's.
      label: of the cluster, as ``JHETCC_CLUSTER`` gives it.
      load: imports a module by its name.

    Returns:
      One host. Its ranks are the accelerators of vendors that JAX sees devices of, else its cpu devices; all accelerators where JAX
      could not be asked.
    """
    tree = Path(root)
    notes: list[Unknown] = []
    sockets = sysfs.sockets(tree, notes)
    told = _told(notes, load)
    devices = _accelerators(sysfs.accelerators(tree, sockets, notes), told, notes)
    links = [*_nvlinks(devices, told), *sysfs.xgmi(tree, devices)]
    nics = _nics(sysfs.nics(tree, sockets, notes), notes, load)
    devices += _of_jax(seen, devices, notes)
    host = Host(
        name or host_name(socket.gethostname()),
        tuple(devices),
        tuple(nics),
        tuple(links),
        sockets,
    )
    taking_part = _taking_part(seen, devices)
    ranks = tuple(Rank(host.name, device.name) for device in taking_part)
    clusters = form_clusters([Identity.of_vendor(device.vendor, label) for device in taking_part])
    return Topology((host,), ranks, clusters, tuple(notes))


def host_name(text: str) -> str:
    """What a host calls itself, as a name of a topology."""
    return re.sub("[^A-Za-z0-9_.:@+-]", "-", text)[:64] or "host"


def _taking_part(seen: Sequence[Seen] | None, devices: list[Device]) -> list[Device]:
    accelerators = [device for device in devices if device.vendor != "cpu"]
    if seen is None:
        return accelerators
    vendors_seen = {VENDOR_OF_PLATFORM.get(each.platform, each.platform) for each in seen}
    used = [device for device in accelerators if device.vendor in vendors_seen]
    return used or [device for device in devices if device.vendor == "cpu"]


def _told(notes: list[Unknown], load: vendors.Load) -> dict[str, vendors.Accelerator]:
    """What the vendors' libraries say, by PCI address; NVML last, for it knows the most."""
    told: dict[str, vendors.Accelerator] = {}
    for what, source in (("CUDA devices", vendors.cuda), ("HIP devices", vendors.hip), ("NVLinks", vendors.nvml)):
        told |= {each.address: each for each in vendors.ask(what, source, notes, load)}
    return told


def _address(device: Device) -> str:
    return device.pci.rpartition("/")[2]


def _accelerators(devices: list[Device], told: dict[str, vendors.Accelerator], notes: list[Unknown]) -> list[Device]:
    """The devices of sysfs with what their vendors' libraries say of them, and those that only a library sees."""
    found = []
    for device in devices:
        fact = told.get(_address(device))
        found.append(dataclasses.replace(device, model=fact.model, memory_bytes=fact.memory_bytes) if fact else device)
    known = {_address(device) for device in devices}
    for fact in told.values():
        if fact.address not in known:
            notes.append(Unknown(f"place of gpu{len(found)}", f"its library sees it at {fact.address}, sysfs does not"))
            found.append(Device(f"gpu{len(found)}", fact.vendor, fact.model, memory_bytes=fact.memory_bytes))
    return found


def _nvlinks(devices: list[Device], told: dict[str, vendors.Accelerator]) -> list[Link]:
    """NVLinks between two devices: their own, or as many as both have to switches, which join all."""
    ends = {device.name: dict(told[_address(device)].links) for device in devices if _address(device) in told}
    places = {_address(device): device.name for device in devices if device.pci}
    switched = {name: sum(n for end, n in of.items() if end not in places) for name, of in ends.items()}
    links = []
    for a, b in itertools.combinations(ends, 2):
        own = sum(n for end, n in ends[a].items() if places.get(end) == b)
        if count := own or min(switched[a], switched[b]):
            links.append(Link(a, b, f"NV{count}"))
    return links


def _nics(nics: list[Nic], notes: list[Unknown], load: vendors.Load) -> list[Nic]:
    """The NICs of sysfs with addresses, and with the rates that sysfs did not know."""
    interfaces = {each.name: each for each in vendors.ask("addresses of NICs", vendors.netlink, notes, load)}
    ports = {each.name: each for each in vendors.ask("rates of RDMA ports", vendors.verbs, notes, load)}
    found = []
    for nic in nics:
        interface, port = interfaces.get(nic.name), ports.get(nic.rdma)
        rates = [nic.gbit_per_s, interface and interface.gbit_per_s, port and port.gbit_per_s]
        nic = dataclasses.replace(nic, gbit_per_s=next((rate for rate in rates if rate), None))
        if interface:
            nic = dataclasses.replace(nic, address=interface.address, is_up=interface.is_up)
        elif port:
            nic = dataclasses.replace(nic, is_up=port.is_up)
        if nic.gbit_per_s is None:
            notes.append(Unknown(f"rate of {nic.name}", "neither its driver nor a library tells it"))
        found.append(nic)
    return found


def _of_jax(seen: Sequence[Seen] | None, devices: list[Device], notes: list[Unknown]) -> list[Device]:
    """The devices that only JAX knows: cpu devices, and accelerators of which this machine shows no place."""
    if seen is None:
        notes.append(Unknown("JAX's devices", "JAX was not asked; without it there are no cpu devices"))
        return []
    added = [Device(f"cpu{k}", "cpu", each.kind) for k, each in enumerate(s for s in seen if s.platform == "cpu")]
    theirs: dict[str, list[Seen]] = {device.vendor: [] for device in devices}
    for each in seen:
        if each.platform != "cpu":
            theirs.setdefault(VENDOR_OF_PLATFORM.get(each.platform, each.platform), []).append(each)
    for vendor, found in theirs.items():
        placed = sum(device.vendor == vendor for device in devices)
        if len(found) < placed:
            which = "which, it does not say" if found else "they take no part"
            notes.append(Unknown(f"{vendor} devices", f"JAX sees {len(found) or 'none'} of {placed}: {which}"))
        for each in found[placed:]:
            name = f"gpu{len(devices) + sum(device.vendor != 'cpu' for device in added)}"
            notes.append(Unknown(f"place of {name}", f"JAX sees it on {each.platform}, sysfs does not"))
            added.append(Device(name, vendor, each.kind))
    return added
