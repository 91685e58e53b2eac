# SPDX-License-Identifier: Apache-2.0
"""Topologies that cannot be are refused by name; clusters form by vendor, library, version and label."""

import dataclasses
import doctest
import importlib
import subprocess
import sys

import pytest

from jhetcc.errors import BadArgumentError
from jhetcc.topology import Cluster, Device, Host, Identity, Link, Nic, Rank, Socket, Topology, form_clusters


def two():
    """Two vendors in one host, numbered alternately."""
    devices = (Device("gpu0", "nvidia", socket=0), Device("gpu1", "amd", socket=1), Device("gpu2", "nvidia", socket=0))
    host = Host("h", devices, (Nic("n0"),), (Link("gpu0", "gpu2", "NV4"),))
    ranks = tuple(Rank("h", device.name) for device in devices)
    clusters = form_clusters([Identity.of_vendor(device.vendor) for device in devices])
    return Topology((host,), ranks, clusters)


def test_two_vendors_in_one_host_are_two_clusters():
    topology = two()
    assert [(each.name, each.library, each.ranks) for each in topology.clusters] == [
        ("nvidia-nccl", "nccl", (0, 2)),
        ("amd-rccl", "rccl", (1,)),
    ]
    assert [topology.cluster_of(rank) for rank in range(3)] == [0, 1, 0]
    assert topology.device_of(1).vendor == "amd" and topology.host_of(1).name == "h" and topology.size == 3


def test_sockets_are_those_that_devices_name():
    assert two().hosts[0].sockets == (Socket(0), Socket(1))
    assert Host("h").sockets == (Socket(0),)


def test_a_link_is_found_both_ways_round():
    host = two().hosts[0]
    assert host.link("gpu2", "gpu0") == host.link("gpu0", "gpu2") == Link("gpu0", "gpu2", "NV4")
    assert host.link("gpu0", "gpu1") is None


def host_with(**changes):
    return lambda topology: {"hosts": (dataclasses.replace(topology.hosts[0], **changes),)}


@pytest.mark.parametrize(
    ("change", "needle"),
    [
        (lambda t: {"hosts": t.hosts * 2}, "'h' occurs twice"),
        (host_with(name="a b"), "'a b' is no name"),
        (host_with(nics=(Nic("gpu0"),)), "'gpu0' occurs twice"),
        (host_with(nics=(Nic("n0", socket=7),)), "socket 7 is none of the host's"),
        (host_with(nics=(Nic("n0", gbit_per_s=0.0),)), "gbit_per_s is 0"),
        (host_with(nics=(Nic("n0", gbit_per_s=float("nan")),)), "gbit_per_s is nan"),
        (host_with(nics=(Nic("n0", kind="token ring"),)), "none of ethernet"),
        (host_with(nics=(Nic("n0", pci="0000:17:00.0"),)), "is no place"),
        (host_with(nics=(Nic("n0", network=""),)), "network: '' is no name"),
        (host_with(nics=(Nic("n0", rdma="mlx5[0-1]"),)), "rdma: 'mlx5[0-1]' is no name"),
        (host_with(nics=(Nic("n0", address="10.0.0.[0-1]"),)), "no IP address"),
        (host_with(links=(Link("gpu0", "gpu7", "NV4"),)), "'gpu7', which is none of its devices"),
        (host_with(links=(Link("gpu0", "n0", "NV4"),)), "'n0', which is none of its devices"),
        (host_with(links=(Link("gpu0", "gpu0", "NV4"),)), "joins a device with itself"),
        (host_with(links=(Link("gpu0", "gpu1", "NV4"), Link("gpu1", "gpu0", "NV4"))), "occurs twice"),
        (host_with(sockets=(Socket(0), Socket(0), Socket(1))), "each number is 0 or more and occurs once"),
        (lambda t: {"ranks": (*t.ranks[:2], Rank("elsewhere", "gpu0"))}, "rank 2: there is no host 'elsewhere'"),
        (lambda t: {"ranks": (*t.ranks[:2], Rank("h", "gpu9"))}, "rank 2: host 'h' has no device 'gpu9'"),
        (lambda t: {"ranks": (*t.ranks, t.ranks[0])}, "rank 3: h/gpu0 is rank 0 already"),
        (lambda t: {"ranks": t.ranks[:2]}, "there is no rank 2"),
        (lambda t: {"clusters": t.clusters[:1]}, "rank 1: it is in no cluster"),
        (lambda t: {"clusters": (*t.clusters, t.clusters[0])}, "'nvidia-nccl' occurs twice"),
        (lambda t: {"clusters": (*t.clusters, dataclasses.replace(t.clusters[1], name="x"))}, "rank 1 is in cluster"),
        (lambda t: {"clusters": t.clusters[::-1]}, "in the order of their lowest ranks"),
        (lambda t: {"clusters": (Cluster("all", "nvidia", "nccl", "", (0, 1, 2)),)}, "runs on a device of 'amd'"),
        (lambda t: {"clusters": (Cluster("none", "nvidia", "nccl", "", ()),)}, "one at least"),
        (
            lambda t: {"clusters": (dataclasses.replace(t.clusters[0], library=""), t.clusters[1])},
            "library: '' is no name",
        ),
        (lambda t: {"clusters": (Cluster("n", "nvidia", "nccl", "", (2, 0)),)}, "ascending"),
    ],
)
def test_what_cannot_be_is_refused_by_name(change, needle):
    topology = two()
    with pytest.raises(BadArgumentError) as caught:
        dataclasses.replace(topology, **change(topology))
    assert needle in str(caught.value)
    assert caught.value.code == "bad_topology"


def test_too_many_ranks(monkeypatch):
    monkeypatch.setattr("jhetcc.topology.values.RANKS_MAX", 2)
    with pytest.raises(BadArgumentError, match="3 of them; at most 2"):
        two()


def test_clusters_of_any_numbering():
    nccl, newer, rccl = Identity("nvidia", "nccl", "2.27"), Identity("nvidia", "nccl", "2.28"), Identity("amd", "rccl")
    found = form_clusters([rccl, nccl, newer, nccl, rccl, nccl])
    assert [(each.name, each.ranks) for each in found] == [
        ("amd-rccl", (0, 4)),
        ("nvidia-nccl-2.27", (1, 3, 5)),
        ("nvidia-nccl-2.28", (2,)),
    ]
    assert form_clusters([]) == ()


def test_labels_part_what_would_be_one_cluster():
    found = form_clusters([Identity("cpu", label=label) for label in ("a", "b", "a", "")])
    assert [(each.name, each.ranks) for each in found] == [("a", (0, 2)), ("b", (1,)), ("cpu", (3,))]


@pytest.mark.parametrize(
    "other",
    [
        Identity("amd", "nccl", "2.27", "left"),
        Identity("nvidia", "none", "2.27", "left"),
        Identity("nvidia", "nccl", "2.28", "left"),
    ],
)
def test_a_label_joins_only_ranks_of_one_vendor_library_and_version(other):
    one = Identity("nvidia", "nccl", "2.27", "left")
    with pytest.raises(BadArgumentError) as caught:
        form_clusters([one, Identity("cpu"), other, one])
    text = str(caught.value)
    assert (
        "'left'" in text
        and "nvidia nccl 2.27 on ranks 0, 3" in text
        and "on rank 2" in text
        and "JHETCC_CLUSTER" in text
    )
    assert caught.value.code == "cluster_label" and caught.value.ranks == (0, 2, 3)


def test_a_label_is_a_name():
    with pytest.raises(BadArgumentError, match="rank 1: JHETCC_CLUSTER='my cluster' is no name") as caught:
        form_clusters([Identity("cpu"), Identity("cpu", label="my cluster")])
    assert caught.value.code == "cluster_label" and caught.value.ranks == (1,)
    assert form_clusters([Identity("cpu", "mpi", "4.3 (beta)")])[0].name == "cpu-mpi-4.3--beta-"


def test_a_label_cannot_pose_as_another_cluster():
    with pytest.raises(BadArgumentError, match="'nvidia-nccl'"):
        form_clusters([Identity.of_vendor("nvidia"), Identity("cpu", label="nvidia-nccl")])


def test_the_room_needs_neither_jax_nor_the_core():
    code = "import sys, jhetcc.topology; print(sorted({'jax', 'jhetcc._core', 'pyroute2', 'pynvml', 'cupy', 'hip'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", ["clusters", "distance", "form"])
def test_examples(name):
    results = doctest.testmod(importlib.import_module(f"jhetcc.topology.{name}"))
    assert results.attempted and not results.failed
