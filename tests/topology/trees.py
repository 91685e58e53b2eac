# SPDX-License-Identifier: Apache-2.0
"""Builds a sysfs tree of an imagined machine, with the links and files that the kernel makes."""

import os
from pathlib import Path


class Tree:
    """A root folder that holds ``sys``."""

    def __init__(self, root: Path):
        self.root = root

    def write(self, path, text):
        file = self.root / "sys" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def link(self, path, target):
        place = self.root / "sys" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(os.path.relpath(self.root / "sys" / target, place.parent))

    def node(self, number, cpus):
        self.write(f"devices/system/node/node{number}/cpulist", cpus)

    def function(self, pci, vendor, kind, *, node=-1, **files):
        """A PCIe function with its bridges; pci as in a topology."""
        parts = pci.split("/")
        for depth in range(2, len(parts) + 1):
            folder, address = "devices/" + "/".join(parts[:depth]), parts[depth - 1]
            if not (self.root / "sys" / folder / "class").exists():
                last = depth == len(parts)
                self.write(f"{folder}/class", kind if last else "0x060400")
                self.write(f"{folder}/vendor", vendor if last else "0x1000")
                self.write(f"{folder}/device", "0x2330")
                self.write(f"{folder}/numa_node", node)
                self.link(f"bus/pci/devices/{address}", folder)
        for name, text in files.items():
            self.write(f"devices/{pci}/{name}", text)
        return f"devices/{pci}"

    def interface(self, name, device=None, *, kind=1, state="up", speed=None, **files):
        """A network interface; device is the folder of its hardware below sys."""
        folder = f"{device or 'devices/virtual'}/net/{name}"
        self.write(f"{folder}/type", kind)
        self.write(f"{folder}/operstate", state)
        if speed is not None:
            self.write(f"{folder}/speed", speed)
        for file, text in files.items():
            self.write(f"{folder}/{file}", text)
        if device:
            self.link(f"{folder}/device", device)
        self.link(f"class/net/{name}", folder)
        return folder

    def verbs(self, name, device, *, rate="200 Gb/sec (4X HDR)", state="4: ACTIVE", **files):
        folder = f"{device or 'devices/virtual'}/infiniband/{name}"
        self.write(f"{folder}/ports/1/rate", rate)
        self.write(f"{folder}/ports/1/state", state)
        for file, text in files.items():
            self.write(f"{folder}/{file}", text)
        if device:
            self.link(f"{folder}/device", device)
        self.link(f"class/infiniband/{name}", folder)

    def kfd(self, number, location, links=(), domain=0):
        """A node of AMD's compute driver; links are (to, type, MB/s)."""
        folder = f"class/kfd/kfd/topology/nodes/{number}"
        self.write(f"{folder}/properties", f"cpu_cores_count 0\nlocation_id {location}\ndomain {domain}")
        for k, (to, kind, rate) in enumerate(links):
            self.write(
                f"{folder}/io_links/{k}/properties",
                f"type {kind}\nnode_from {number}\nnode_to {to}\nmax_bandwidth {rate}",
            )


def server(root):
    """Two sockets; two NVIDIA and two AMD devices, each pair behind a switch with a NIC; one NIC for administration."""
    tree = Tree(root)
    tree.node(0, "0-7")
    tree.node(1, "8-15")
    for node, bus, vendor in ((0, 0x10, "0x10de"), (1, 0xA0, "0x1002")):
        switch = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        for k in range(2):
            gpu = f"{switch}/0000:{bus + 2:02x}:0{k}.0/0000:{bus + 3 + k:02x}:00.0"
            tree.function(gpu, vendor, "0x030200" if vendor == "0x10de" else "0x120000", node=node)
        nic = tree.function(
            f"{switch}/0000:{bus + 2:02x}:02.0/0000:{bus + 6:02x}:00.0", "0x15b3", "0x020000", node=node
        )
        tree.interface(f"ens{node}", nic, speed=200000)
        tree.verbs(f"mlx5_{node}", nic)
    board = tree.function("pci0000:00/0000:00:03.0", "0x14e4", "0x020000", node=0)
    tree.interface("eno1", board, speed=1000)
    tree.function("pci0000:00/0000:00:02.0", "0x1a03", "0x030000", node=0)  # a display for the console
    tree.interface("lo", kind=772, state="unknown")
    return tree
