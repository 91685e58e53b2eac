# SPDX-License-Identifier: Apache-2.0
"""Border ranks of running jobs: one for each NIC of the topology that was told, or found; on all ranks alike."""

import json
import os

import numpy as np
import pytest
from process_worker import here, joined_by_loopback

import jhetcc
from jhetcc import topology
from jhetcc.errors import BadArgumentError
from jhetcc.topology import Device, Host, Nic, Rank, Topology
from jhetcc.world import machines, members, world

LEFT = {
    "name": "left",
    "devices": [{"name": "cpu[0-1]", "vendor": "cpu", "socket": 0}, {"name": "cpu2", "vendor": "cpu", "socket": 1}],
    "nics": [
        {"name": "far", "rdma": "far", "gbit_per_s": 200, "socket": 1},
        {"name": "near", "rdma": "near", "gbit_per_s": 100, "socket": 0},
    ],
}
RIGHT = {
    "name": "right",
    "devices": [{"name": "cpu0", "vendor": "cpu"}],
    "nics": [{"name": "one", "rdma": "one", "gbit_per_s": 100}, {"name": "two", "rdma": "two", "gbit_per_s": 200}],
}


def written(path, *hosts):
    path.write_text(json.dumps({"jhetcc_topology": 1, "hosts": list(hosts)}))
    return str(path)


def joined(labels, **options):
    """Joins with a label; returns what plans know, what was found, and what a sum gave."""
    os.environ.update({name: value for name, value in options.items() if value})
    os.environ |= {"JHETCC_CLUSTER": labels[here()["process_id"]], "JHETCC_ALGORITHM": "hierarchical"}
    try:
        comm = jhetcc.init(**here() | {"timeout": 30})
        try:
            mine = [np.full(1200, 10.0**rank, np.float32) for rank in comm.local_ranks]
            total = comm.all_reduce(mine if len(mine) > 1 else mine[0])
            total = total[0] if len(mine) > 1 else total
            part = comm.split([-1 if rank == 0 else 0 for rank in comm.local_ranks])
            seen = comm.topology()
            return (
                [(shape.borders, tuple(nic.name for nic in shape.nics)) for shape in comm.layout.clusters],
                [shape.borders for shape in part.layout.clusters] if part else None,
                seen,
                set(total.tolist()),
                comm.explain("psum(f32[1200])"),
            )
        finally:
            comm.close()
    finally:
        for name in (*options, "JHETCC_CLUSTER", "JHETCC_ALGORITHM"):
            os.environ.pop(name, None)


def case_file(labels, path):
    return joined(labels, JHETCC_TOPOLOGY=path)


def test_one_for_each_nic_of_the_file_the_nearest_rank(pools, tmp_path):
    path = written(tmp_path / "two.json", LEFT, RIGHT)
    outcomes = pools(2, 1, 1).attempt(case_file, "aab", path, world=False)
    values = [outcome.get() for outcome in outcomes]
    found, _, seen, _, text = values[0]
    assert [value[0] for value in values] == [found] * 3 and [value[3] for value in values] == [{1111.0}] * 3
    assert found == [((2, 0), ("left/far", "left/near")), ((3, 3), ("right/one", "right/two"))]
    assert "border of cluster 0: rank 2 by left/far, 66.7% of its bytes" in text
    # A part without rank 0, numbered anew: rank 1 is the nearest then.
    assert [value[1] for value in values] == [[(1, 0), (2, 2)]] * 3
    assert seen.hosts == topology.load(path).hosts
    assert seen.ranks == (*(Rank("left", f"cpu{k}") for k in range(3)), Rank("right", "cpu0"))


@pytest.mark.parametrize(
    ("hosts", "match"),
    [
        ((LEFT,), "has 3 ranks and this job 4"),
        (({**LEFT, "devices": [{"name": "gpu[0-3]", "vendor": "amd"}]},), "does not fit this job.*vendor"),
        ((), "cannot be read"),
    ],
)
def test_a_file_that_is_not_of_this_job(pools, tmp_path, hosts, match):
    path = written(tmp_path / "wrong.json", *hosts) if hosts else str(tmp_path / "none.json")
    for outcome in pools(2, 1, 1).attempt(case_file, "aab", path, world=False):
        with pytest.raises(BadArgumentError, match=match) as caught:
            outcome.get()
        assert caught.value.code == "bad_topology" and path in str(caught.value)


def test_a_file_that_not_all_were_told_of(pools, tmp_path):
    path = written(tmp_path / "two.json", LEFT, RIGHT)
    outcomes = pools(2, 1, 1).attempt(case_some, path, world=False)
    for outcome in outcomes:
        with pytest.raises(jhetcc.Error, match="topology is"):
            outcome.get()


def case_some(path):
    return joined("aab", JHETCC_TOPOLOGY=path if here()["process_id"] == 1 else "")


def case_found(nics):
    """As if each process were on a host of its own, with these NICs."""
    me = here()["process_id"]
    kept = (members.host_identity, machines.discover)
    members.host_identity = world.host_identity = lambda: f"host {me}"

    def discover(seen, name, load):
        with pytest.raises(ImportError):  # what begins to use devices is left alone
            load("cupy")
        devices = tuple(Device(f"cpu{k}", "cpu", socket=k % 2) for k in range(len(seen)))
        host = Host(name, devices, tuple(Nic(**nic) for nic in nics))
        return Topology((host,), tuple(Rank(name, device.name) for device in devices), topology.form_clusters(
            [topology.Identity("cpu")] * len(devices)))  # fmt: skip

    machines.discover = discover
    try:
        with joined_by_loopback():
            return joined("abb")
    finally:
        members.host_identity, machines.discover = kept
        world.host_identity = kept[0]


FOUND = {
    "known": ([{"name": "eth0", "gbit_per_s": 1, "socket": 1}], [(1,), (2, 3)]),
    "wide": (
        [{"name": "eth0", "gbit_per_s": 400, "socket": 1}],
        [(1, 0), (2, 3)],
    ),  # one rank's stream does not fill it
    "down": ([{"name": "eth0", "gbit_per_s": 1, "is_up": False}], [(0, 1), (2, 3)]),
    "virtual": ([{"name": "eth0", "gbit_per_s": 1, "kind": "virtual"}], [(0, 1), (2, 3)]),
    "of unknown rate": ([{"name": "eth0"}], [(0, 1), (2, 3)]),
    "none": ([], [(0, 1), (2, 3)]),
}


@pytest.mark.parametrize("which", FOUND)
def test_one_for_each_nic_that_is_found(pools, which):
    nics, borders = FOUND[which]
    for outcome in pools(2, 1, 1).attempt(case_found, nics, world=False):
        found, _, _, total, _ = outcome.get()
        assert [each for each, _ in found] == borders
        assert total == {1111.0}
