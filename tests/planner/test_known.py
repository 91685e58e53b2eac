# SPDX-License-Identifier: Apache-2.0
"""From topologies and clusters of a communicator to layouts."""

from __future__ import annotations

import pytest

from jhetcc.planner import ClusterShape, Nic, Profile, Vendor, layout_of, plan, shapes
from jhetcc.planner.report import explain
from jhetcc.schedule import Operation, prove
from jhetcc.topology import Cluster, loads

TEXT = """{"jhetcc_topology": 1, "hosts": [
  {"name": "left", "devices": [
     {"name": "gpu[0-1]", "vendor": "nvidia", "socket": 0, "pci": "rc0/port/up/down[0-1]/gpu"},
     {"name": "gpu[2-3]", "vendor": "nvidia", "socket": 1, "pci": "rc1/port/up/down[0-1]/gpu"}],
   "nics": [
     {"name": "mlx5_0", "rdma": "mlx5_0", "gbit_per_s": 200, "socket": 0, "pci": "rc0/port/up/down2/nic"},
     {"name": "mlx5_1", "rdma": "mlx5_1", "gbit_per_s": 200, "socket": 1, "pci": "rc1/port/up/down2/nic"}]},
  {"name": "right[0-1]", "devices": [{"name": "gpu[0-1]", "vendor": "amd"}], "nics": [{"name": "eth0"}]}]}"""
PSUM = Operation("psum", "f32", (1 << 20,))


def test_borders_and_rates_come_from_the_topology():
    layout = layout_of(loads(TEXT))
    assert layout.hosts == (0, 0, 0, 0, 1, 1, 2, 2)
    fast, slow = 200e9 / 8, 1 / Profile().tcp.beta
    assert layout.clusters == (
        ClusterShape(
            (0, 1, 2, 3),
            (Nic(fast, (0,), True, "left/mlx5_0"), Nic(fast, (2,), True, "left/mlx5_1")),
            Vendor("nccl"),
        ),
        ClusterShape(
            (4, 5, 6, 7),
            (Nic(slow, (4,), False, "right0/eth0"), Nic(slow, (6,), False, "right1/eth0")),
            Vendor("rccl"),
        ),
    )
    assert [shape.borders for shape in layout.clusters] == [(0, 2), (4, 6)]
    report = explain(PSUM, layout, algorithm="hierarchical")
    assert report.bounced_bytes == 2 * PSUM.nbytes  # eth0 is no RDMA device
    assert "border of cluster 0: rank 2 by left/mlx5_1, 50.0% of its bytes" in report.text()
    prove(
        Operation("psum", "f32", (9,)),
        plan(Operation("psum", "f32", (9,)), layout, algorithm="hierarchical").expand_all(),
    )


def test_libraries_that_cannot_be_called_leave_our_own_schedule():
    layout = layout_of(loads(TEXT), libraries=("rccl",))
    assert layout.clusters is not None and [shape.vendor for shape in layout.clusters] == [None, Vendor("rccl")]


def test_a_topology_of_one_cluster_without_a_library_is_flat():
    text = '{"jhetcc_topology": 1, "hosts": [{"name": "a", "devices": [{"name": "cpu[0-2]", "vendor": "cpu"}]}]}'
    assert layout_of(loads(text)).clusters is None
    with pytest.raises(ValueError, match="no ranks"):
        layout_of(loads('{"jhetcc_topology": 1, "hosts": [{"name": "a"}]}'))


def test_clusters_of_a_communicator():
    one, two = Cluster("a", "cpu", "none", "", (0, 2)), Cluster("b", "intel", "oneccl", "2022", (1,))
    assert shapes([one]) is None
    assert shapes([one, two]) == (ClusterShape((0, 2)), ClusterShape((1,)))
    assert shapes([two], ["oneccl"]) == (ClusterShape((1,), vendor=Vendor("oneccl")),)
