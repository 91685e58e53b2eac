# SPDX-License-Identifier: Apache-2.0
"""From topologies and clusters of a communicator to layouts."""

from __future__ import annotations

import dataclasses

import pytest

from jhetcc.planner import Capabilities, ClusterShape, Layout, Link, Nic, Profile, Vendor, layout_of, plan, shapes
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


def test_ranks_of_the_host_share_a_nic_that_one_does_not_fill():
    """As many as it takes by the measured stream, the nearest first, and never more than the host has for its NICs."""
    wide = TEXT.replace('"nvidia"', '"cpu"').replace('"rdma": "mlx5_0", ', "").replace('"rdma": "mlx5_1", ', "")
    for stream, borders in ((30e9, (0, 2)), (20e9, (0, 1, 2, 3)), (1e9, (0, 1, 2, 3))):
        [left, _] = layout_of(loads(wide), Profile(tcp=Link(1e-5, 1 / stream))).clusters or ()
        assert left.borders == borders
        assert {nic.bandwidth for nic in left.nics} == {25e9 if len(borders) == 2 else 12.5e9}


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
    able = [Capabilities("oneccl", "2022", uniform=True, refuses=(("prod", "f32"), ("max", "bool")))]
    vendor = Vendor("oneccl", True, (("max", "bool"), ("prod", "f32")))
    assert shapes([two], able) == (ClusterShape((1,), vendor=vendor),)
    assert shapes([one, two], able) == (ClusterShape((0, 2)), ClusterShape((1,), vendor=vendor))


def both(**how):
    """The shapes of two clusters of two libraries, of which one frees calls that are stuck and takes several ranks a process."""
    clusters = [Cluster("a", "cpu", "mpi", "5", (0, 2)), Cluster("b", "nvidia", "nccl", "2.27", (1, 3))]
    able = [Capabilities("mpi", "5"), Capabilities("nccl", "2.27", one_rank_a_process=False, abortable=True)]
    found = shapes(clusters, able, **how)
    assert found is not None and [shape.ranks for shape in found] == [(0, 2), (1, 3)]
    return found


def test_a_library_that_joins_one_rank_of_a_process_is_not_called_for_several():
    assert [shape.vendor for shape in both(processes=(0, 1, 2, 3))] == [Vendor("mpi"), Vendor("nccl")]
    left, right = both(processes=(7, 8, 7, 8))
    assert (left.vendor, left.why_none) == (None, "mpi joins one rank of a process, and process 7 has 2")
    assert (right.vendor, right.why_none) == (Vendor("nccl"), "")
    report = explain(PSUM, Layout((0, 1, 0, 1), clusters=(left, right)), algorithm="hierarchical")
    assert report.stages[0] == f"cluster 0: 2 ranks by our own schedule: {left.why_none}"


def test_a_library_that_may_be_stuck_is_not_called_again():
    left, right = both(trusted=False)
    assert left.vendor is None and "stuck" in left.why_none and right.vendor == Vendor("nccl")


def test_a_library_that_was_not_opened_is_told_even_of_one_cluster():
    """Plans are then as if there were no clusters; only the reason is there."""
    [shape] = shapes([Cluster("a", "cpu", "mpi", "5", (0, 1, 2))], [Capabilities("mpi", "4")]) or ()
    assert (shape.vendor, shape.why_none) == (None, "mpi 5 could not be opened")
    layout = Layout((0, 0, 1), clusters=(shape,))
    report = explain(PSUM, layout)
    assert report.stages[1] == "cluster 0: mpi 5 could not be opened"
    assert report.plan == plan(PSUM, Layout((0, 0, 1)))
    assert report.links == explain(PSUM, Layout((0, 0, 1))).links != ()


def test_one_cluster_over_hosts_bounces_where_its_nics_do_not_reach_devices():
    for direct in (True, False):
        layout = Layout((0, 1), clusters=(ClusterShape((0, 1), (Nic(1e9, direct=direct),), Vendor("a")),))
        report = explain(PSUM, layout, algorithm="two_shot")
        assert report.bounced_bytes == (0 if direct else 2 * PSUM.nbytes)


def test_the_reason_is_no_part_of_a_plan():
    made = [dataclasses.replace(shape, why_none="") for shape in both(trusted=False)]
    plans = [
        plan(PSUM, Layout((0, 0, 1, 1), clusters=clusters), algorithm="hierarchical")
        for clusters in (tuple(made), both(trusted=False))
    ]
    assert plans[0].hash == plans[1].hash and made[0] == both(trusted=False)[0]


def test_a_library_that_cannot_sum_gives_no_mean():
    shape = ClusterShape((0, 1), vendor=Vendor("a", refuses=(("sum", "bf16"),)))
    assert not shape.native("mean", "bf16") and not shape.native("sum", "bf16") and shape.native("max", "bf16")
