# SPDX-License-Identifier: Apache-2.0
"""What the libraries of vendors tell, each loaded late and asked by one function: NVML, CUDA, HIP, verbs, the kernel's netlink.

A function returns plain facts or raises: ImportError where the library is not installed, whatever the library raises where it does not
work. ``ask`` turns both into a noted reason, so that a missing library never harms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from jhetcc.topology.values import Unknown

__all__ = ["Accelerator", "Interface", "Load", "Port", "ask", "cuda", "hip", "netlink", "nvml", "verbs"]

Load = Callable[[str], Any]  # importlib.import_module, or what stands in for it
Fact = TypeVar("Fact")
_WIDTHS = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}  # ibv_port_attr.active_width: lanes
_LANE_GBIT = {1: 2.5, 2: 5.0, 4: 10.0, 8: 10.0, 16: 14.0, 32: 25.0, 64: 50.0, 128: 100.0, 256: 200.0}  # active_speed
_ACTIVE = 4
_NVLINKS_MAX = 18
_SCOPE_LINK = 253
_IPV4 = 2


@dataclass(frozen=True)
class Accelerator:
    """One device as its vendor's library sees it.

    Attributes:
      vendor: as in ``Device``.
      address: PCI address, domain of four digits, lower case.
      links: NVLinks by the PCI address of their other end.
    """

    vendor: str
    address: str
    model: str = ""
    memory_bytes: int | None = None
    links: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Interface:
    """One network interface as the kernel sees it; None and empty where it says nothing."""

    name: str
    is_up: bool
    address: str = ""
    gbit_per_s: float | None = None


@dataclass(frozen=True)
class Port:
    """The first port of one verbs device."""

    name: str
    is_up: bool
    gbit_per_s: float | None = None


def ask(what: str, source: Callable[[Load], list[Fact]], notes: list[Unknown], load: Load) -> list[Fact]:
    """The facts of one source; none, and a note why, where it cannot be asked."""
    package = PACKAGES[source]
    try:
        return source(load)
    except ImportError as why:
        notes.append(Unknown(what, f"{package} is not installed, or does not load: {why}"))
    except Exception as why:  # each library has errors of its own, and no driver is no error of ours
        notes.append(Unknown(what, f"{package}: {type(why).__name__}: {why}"))
    return []


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _address(text: Any) -> str:
    """``00000000:17:00.0`` and ``0000:17:00.0`` are one place; sysfs writes four digits of domain where they suffice."""
    domain, _, rest = _text(text).strip("\0 ").lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def nvml(load: Load) -> list[Accelerator]:
    """NVIDIA devices and their NVLinks, by nvidia-ml-py; needs no CUDA context."""
    lib = load("pynvml")
    lib.nvmlInit()
    try:
        found = []
        for index in range(lib.nvmlDeviceGetCount()):
            handle = lib.nvmlDeviceGetHandleByIndex(index)
            found.append(
                Accelerator(
                    "nvidia",
                    _address(lib.nvmlDeviceGetPciInfo(handle).busId),
                    _text(lib.nvmlDeviceGetName(handle)),
                    int(lib.nvmlDeviceGetMemoryInfo(handle).total),
                    _nvlinks(lib, handle),
                )
            )
        return found
    finally:
        lib.nvmlShutdown()


def _nvlinks(lib: Any, handle: Any) -> tuple[tuple[str, int], ...]:
    ends: dict[str, int] = {}
    for link in range(_NVLINKS_MAX):
        try:
            if lib.nvmlDeviceGetNvLinkState(handle, link):
                end = _address(lib.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
                ends[end] = ends.get(end, 0) + 1
        except lib.NVMLError:
            continue  # fewer links than the largest device has, or none
    return tuple(sorted(ends.items()))


def cuda(load: Load) -> list[Accelerator]:
    """NVIDIA devices that CUDA shows this process, in CUDA's order, by cupy."""
    runtime = load("cupy").cuda.runtime
    found = []
    for index in range(runtime.getDeviceCount()):
        about = runtime.getDeviceProperties(index)
        address = _address(runtime.deviceGetPCIBusId(index))
        found.append(Accelerator("nvidia", address, _text(about["name"]), int(about["totalGlobalMem"])))
    return found


def hip(load: Load) -> list[Accelerator]:
    """AMD devices that HIP shows this process, in HIP's order, by hip-python."""
    lib = load("hip").hip

    def checked(answer: tuple[Any, ...]) -> Any:
        if answer[0] != lib.hipError_t.hipSuccess:
            raise RuntimeError(str(answer[0]))
        return answer[1] if len(answer) > 1 else None

    found = []
    for index in range(checked(lib.hipGetDeviceCount())):
        about = lib.hipDeviceProp_t()
        checked(lib.hipGetDeviceProperties(about, index))
        address = f"{about.pciDomainID:04x}:{about.pciBusID:02x}:{about.pciDeviceID:02x}.0"
        found.append(Accelerator("amd", address, _text(about.name), int(about.totalGlobalMem)))
    return found


def verbs(load: Load) -> list[Port]:
    """RDMA devices, by pyverbs."""
    lib = load("pyverbs.device")
    found = []
    for device in lib.get_device_list():
        name = _text(device.name)
        with lib.Context(name=name) as context:
            port = context.query_port(1)
            lanes, rate = _WIDTHS.get(port.active_width), _LANE_GBIT.get(port.active_speed)
            found.append(Port(name, port.state == _ACTIVE, lanes * rate if lanes and rate else None))
    return found


def netlink(load: Load) -> list[Interface]:
    """State, address and rate of network interfaces, by pyroute2."""
    lib = load("pyroute2")
    with lib.IPRoute() as route:
        links = {
            link["index"]: (link.get_attr("IFLA_IFNAME"), link.get_attr("IFLA_OPERSTATE")) for link in route.get_links()
        }
        addresses: dict[int, list[tuple[int, int, str]]] = {}
        for each in route.get_addr():
            key = (each["scope"] >= _SCOPE_LINK, each["family"] != _IPV4, each.get_attr("IFA_ADDRESS"))
            addresses.setdefault(each["index"], []).append(key)
    with lib.Ethtool() as tool:
        return [
            Interface(
                name,
                state in ("UP", "UNKNOWN"),
                min(addresses[index])[2] if index in addresses else "",
                _rate(tool, name),
            )
            for index, (name, state) in links.items()
        ]


def _rate(tool: Any, name: str) -> float | None:
    try:
        speed = tool.get_link_mode(name).speed
    except Exception:  # a driver without this question; loopback is one
        return None
    return speed / 1e3 if speed else None


# Where each comes from, for people.
PACKAGES: dict[Any, str] = {
    nvml: "nvidia-ml-py",
    cuda: "cupy",
    hip: "hip-python",
    verbs: "pyverbs",
    netlink: "pyroute2",
}
