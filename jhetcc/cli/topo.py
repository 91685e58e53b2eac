# SPDX-License-Identifier: Apache-2.0
"""``jhetcc topo``: the machines of a topology file, else this one, as a matrix, as JSON or as a picture."""

from __future__ import annotations

import argparse
import os

from jhetcc import config, topology
from jhetcc.errors import ResourceError


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="jhetcc topo",
        description="Shows hosts, devices, NICs and clusters: those of FILE, else of the file JHETCC_TOPOLOGY names, else of this host.",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="a topology in JSON, as in docs/topology.md")
    parser.add_argument("--json", action="store_true", help="print the topology in the form that FILE has")
    parser.add_argument("--svg", metavar="FILE", help="write a picture as well")
    values = parser.parse_args(arguments)
    found, _ = machines(values.file)
    print(topology.dumps(found) if values.json else topology.text(found), end="")
    if values.svg:
        try:
            with open(values.svg, "w", encoding="utf-8") as file:
                file.write(topology.svg(found))
        except OSError as why:
            raise ResourceError(f"--svg {values.svg}: {why.strerror}", code="resource", scope="process") from why
    return 0


def machines(file: str | None = None) -> tuple[topology.Topology, str]:
    """The topology of a file, else of the one that ``JHETCC_TOPOLOGY`` names, else of this machine; and which one it is."""
    options = config.read(os.environ)
    if file:
        return topology.load(file), file
    if options.topology:
        return topology.load(options.topology), f"JHETCC_TOPOLOGY={options.topology}"
    return topology.discover(seen=_seen(), label=options.cluster or ""), "this machine"


def _seen() -> list[topology.Seen] | None:
    """JAX's local devices as plain values; None where JAX is not installed or finds no backend."""
    try:
        import jax

        devices = jax.local_devices()
        if devices[0].platform != "cpu":
            devices = [*devices, *jax.local_devices(backend="cpu")]
    except (ImportError, RuntimeError):
        return None
    return [topology.Seen(_platform(device), device.device_kind) for device in devices]


def _platform(device: object) -> str:
    platform = str(getattr(device, "platform", ""))
    if platform != "gpu":
        return platform
    version = str(getattr(getattr(device, "client", None), "platform_version", ""))
    return "rocm" if "rocm" in version.lower() else "cuda"
