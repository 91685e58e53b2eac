# SPDX-License-Identifier: Apache-2.0
"""Distances in NCCL's words, the NIC of each device with its reason, border ranks."""

import pytest

from jhetcc import topology as topo
from jhetcc.topology import Device, Host, Nic, between, borders, choose_nics
from jhetcc.topology.distance import MEANINGS, way

# A switch below a root port: upstream port 01, downstream ports 02:00 and 02:01; below the latter a second switch.
SWITCH = "pci0000:00/0000:00:01.0/0000:01:00.0"
BEHIND = f"{SWITCH}/0000:02:01.0/0000:04:00.0/0000:05:00.0"


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        (f"{SWITCH}/0000:02:00.0/0000:03:00.0", f"{SWITCH}/0000:02:00.0/0000:03:00.0", "LOC"),
        (f"{SWITCH}/0000:02:00.0/0000:03:00.0", f"{SWITCH}/0000:02:02.0/0000:07:00.0", "PIX"),
        (f"{SWITCH}/0000:02:00.0/0000:03:00.0", f"{SWITCH}/0000:02:00.0/0000:03:00.1", "PIX"),
        (f"{SWITCH}/0000:02:00.0/0000:03:00.0", f"{BEHIND}/0000:06:00.0", "PXB"),
        (f"{BEHIND}/0000:06:00.0", f"{SWITCH}/0000:02:00.0/0000:03:00.0", "PXB"),
        (f"{SWITCH}/0000:02:00.0/0000:03:00.0", f"{SWITCH}/0000:02:01.0/0000:04:00.0/0000:05:00.0", "PXB"),
        (f"{SWITCH}/0000:02:00.0/0000:03:00.0", "pci0000:00/0000:00:02.0/0000:08:00.0", "PHB"),
        ("pci0000:00/0000:00:03.0", "pci0000:00/0000:00:04.0", "PHB"),
        (f"{SWITCH}/0000:02:00.0/0000:03:00.0", "pci0000:40/0000:40:01.0/0000:41:00.0", "NODE"),
        (f"{SWITCH}/0000:02:00.0/0000:03:00.0", "pci0000:80/0000:80:01.0/0000:81:00.0", "SYS"),
    ],
)
def test_places_on_pcie(a, b, distance):
    socket = {"pci0000:00": 0, "pci0000:40": 0, "pci0000:80": 1}
    device = Device("gpu0", "nvidia", socket=socket[a[:10]], pci=a)
    nic = Nic("n0", socket=socket[b[:10]], pci=b)
    host = Host("h", (device,), (nic, Nic("n1", socket=1)))
    assert between(device, nic, host) == between(nic, device, host) == distance
    assert distance in MEANINGS


def test_a_part_of_a_name_is_not_shared():
    host = Host("h", (a := Device("a", "amd", pci="rc0/sw1/x"),), (b := Nic("b", pci="rc0/sw10/x"),))
    assert between(a, b, host) == "PHB"


@pytest.mark.parametrize(
    ("device", "nic", "distance"),
    [
        ({"socket": 0}, {"socket": 0}, "NODE"),
        ({"socket": 0}, {"socket": 1}, "SYS"),
        ({}, {"socket": 1}, "SYS"),
        ({"socket": 1, "pci": "rc0/a"}, {"pci": "rc1/a"}, "SYS"),
        ({"vendor": "cpu", "socket": 1}, {"socket": 1, "pci": "rc0/n"}, "PHB"),
        ({"vendor": "cpu"}, {"socket": 1, "pci": "rc0/n"}, "SYS"),
    ],
)
def test_without_a_place_the_numa_node_decides(device, nic, distance):
    one, other = Device("d", **{"vendor": "amd"} | device), Nic("n", **nic)
    host = Host("h", (one,), (other,), sockets=(topo.Socket(0), topo.Socket(1)))
    assert between(one, other, host) == distance
    if distance == "SYS" and None in (one.socket, other.socket):
        assert "not known" in way(one, other, host)


def test_one_socket_needs_no_number():
    host = Host("h", (a := Device("cpu0", "cpu"),), (b := Nic("eth0", pci="pci0000:00/0000:00:03.0"),))
    assert between(a, b, host) == "PHB"


def four():
    """Two switches of two devices and one NIC each, one of them down, and a slow NIC beside them."""
    devices = tuple(Device(f"gpu{k}", "nvidia", pci=f"rc0/sw{k // 2}/gpu{k}") for k in range(4))
    nics = (Nic("n0", pci="rc0/sw0/n", gbit_per_s=200.0), Nic("n1", pci="rc0/sw1/n", gbit_per_s=200.0))
    return Host("h", devices, (*nics, Nic("mgmt", pci="rc0/m", gbit_per_s=1.0)))


def test_the_nearest_nic():
    assert [(each.nic, each.distance) for each in choose_nics(four())] == [("n0", "PIX")] * 2 + [("n1", "PIX")] * 2
    assert "one PCIe switch" in choose_nics(four())[0].reason and "nearer than n1" in choose_nics(four())[0].reason


def test_a_nic_that_is_down_is_passed_over_and_said():
    host = four()
    down = Host("h", host.devices, (Nic("n0", pci="rc0/sw0/n", gbit_per_s=200.0, is_up=False), *host.nics[1:]))
    choice = choose_nics(down)[0]
    assert (choice.nic, choice.distance) == ("n1", "PHB") and "n0 is down" in choice.reason


def test_a_nic_for_administration_serves_nobody_while_another_is_up():
    host = Host(
        "h",
        (Device("gpu0", "amd", pci="rc0/g"),),
        (Nic("mgmt", pci="rc0/m", gbit_per_s=1.0), Nic("n0", pci="rc1/n", gbit_per_s=100.0)),
    )
    choice = choose_nics(host)[0]
    assert choice.nic == "n0" and "mgmt has only 1 Gbit/s" in choice.reason
    alone = Host("h", host.devices, host.nics[:1])
    assert choose_nics(alone)[0].nic == "mgmt"


def test_equals_share_and_the_faster_wins():
    devices = tuple(Device(f"gpu{k}", "amd", pci=f"rc0/g{k}") for k in range(4))
    host = Host("h", devices, tuple(Nic(f"n{k}", pci=f"rc0/n{k}", gbit_per_s=100.0) for k in range(2)))
    assert [each.nic for each in choose_nics(host)] == ["n0", "n1", "n0", "n1"]
    assert "as near and fast as n1" in choose_nics(host)[0].reason
    faster = Host("h", devices, (*host.nics, Nic("n2", pci="rc0/n2", gbit_per_s=400.0), Nic("n3", pci="rc0/n3")))
    assert {each.nic for each in choose_nics(faster)} == {"n2"}
    assert (
        "faster than n0, n1" in choose_nics(faster)[0].reason and "n3, of unknown rate" in choose_nics(faster)[0].reason
    )


def test_no_nic():
    assert choose_nics(Host("h", (Device("gpu0", "amd"),)))[0].reason == "the host has no NIC"
    down = Host("h", (Device("gpu0", "amd"),), (Nic("n", is_up=False),))
    assert choose_nics(down)[0].nic is None and "no NIC of the host is up" in choose_nics(down)[0].reason


def mixed(left, right, nics):
    hosts = []
    for name, vendor, count in (("a", "nvidia", left), ("b", "amd", right)):
        devices = [{"name": f"gpu{k}", "vendor": vendor, "pci": f"rc0/sw{k % nics}/gpu{k}"} for k in range(count)]
        ports = [{"name": f"n{k}", "pci": f"rc0/sw{k}/nic", "gbit_per_s": 100} for k in range(nics)]
        hosts.append({"name": name, "devices": devices, "nics": ports})
    import json

    return topo.loads(json.dumps({"jhetcc_topology": 1, "hosts": hosts}))


@pytest.mark.parametrize(("left", "right", "nics"), [(1, 1, 1), (4, 2, 2), (1, 8, 4), (3, 5, 3)])
def test_a_border_for_every_nic_whatever_the_sizes(left, right, nics):
    topology = mixed(left, right, nics)
    found = borders(topology)
    for cluster, count in ((0, left), (1, right)):
        mine = [border for border in found if border.cluster == cluster]
        assert [border.nic for border in mine] == [f"n{k}" for k in range(nics)]
        first = topology.clusters[cluster].ranks[0]
        if count >= nics:
            assert [border.rank for border in mine] == [first + k for k in range(nics)]
            assert {border.distance for border in mine} == {"PIX"}
        elif count == 1:
            assert {border.rank for border in mine} == {first}


def test_borders_of_two_vendors_in_one_host():
    host = Host(
        "h",
        (Device("gpu0", "nvidia", pci="rc0/a/g"), Device("gpu1", "amd", pci="rc0/b/g")),
        (Nic("n0", pci="rc0/b/n"), Nic("n1", pci="rc0/c/n", is_up=False)),
    )
    topology = topo.Topology(
        (host,),
        (topo.Rank("h", "gpu0"), topo.Rank("h", "gpu1")),
        topo.form_clusters([topo.Identity.of_vendor("nvidia"), topo.Identity.of_vendor("amd")]),
    )
    assert [(b.cluster, b.rank, b.nic, b.distance) for b in borders(topology)] == [
        (0, 0, "n0", "PHB"),
        (1, 1, "n0", "PIX"),
    ]


def test_one_cluster_has_no_border():
    assert (
        borders(
            topo.loads(
                '{"jhetcc_topology": 1, "hosts": [{"name": "h", "devices": [{"name": "g[0-1]", "vendor": "amd"}]}]}'
            )
        )
        == ()
    )
