# SPDX-License-Identifier: Apache-2.0
"""comm.topology(): hosts as they are found, with ranks and clusters on them, equal on all ranks."""

import dataclasses
import os

import numpy as np
import pytest
from process_worker import here

import jhetcc
from jhetcc import topology
from jhetcc.topology import Rank
from jhetcc.world import machines


def pretend(comm, hosts):
    """As if the processes were on these hosts, "name/number", and one island."""
    found = comm._world
    keys = list(dict.fromkeys(hosts))
    found._hosts = tuple(keys.index(hosts[process]) for process in found._processes)
    found._islands = (0,) * len(found._processes)
    names = [host.partition("/")[0] for host in hosts]
    found.members = [dataclasses.replace(each, host=name) for each, name in zip(found.members, names, strict=True)]


def case_topology(labels, hosts):
    """Joins with a label; returns the topology, how often this process looked at its host, and that of a split without rank 0."""
    os.environ["JHETCC_CLUSTER"] = labels[here()["process_id"]]
    discover, looked = machines.discover, []
    machines.discover = lambda **how: looked.append(how["name"]) or discover(**how)
    try:
        comm = jhetcc.init(**here(), timeout=30)
        try:
            pretend(comm, hosts)
            whole, count = comm.topology(), len(looked)
            part = comm.split([-1 if rank == 0 else 0 for rank in comm.local_ranks], [-r for r in comm.local_ranks])
            return whole, count, part.topology() if part else None
        finally:
            comm.close()
    finally:
        machines.discover = discover
        del os.environ["JHETCC_CLUSTER"]


def test_clusters_on_one_host(pools):
    outcomes = pools(2, 1, 1).attempt(case_topology, ("a", "b", "b"), ("one",) * 3, world=False)
    values = [outcome.get() for outcome in outcomes]
    whole, _, part = values[0]
    assert [value[0] for value in values] == [whole] * 3 and [value[2] for value in values] == [part] * 3
    assert [value[1] for value in values] == [1, 0, 0], "one process looks at the host"
    assert [host.name for host in whole.hosts] == ["one"]
    assert whole.ranks == tuple(Rank("one", f"cpu{k}") for k in range(4))
    assert [(cluster.name, cluster.ranks) for cluster in whole.clusters] == [("a", (0, 1)), ("b", (2, 3))]
    assert whole.unknown, "what could not be asked is told to all"
    found = topology.discover(seen=[topology.Seen("cpu")] * 4, name="one")
    assert whole.hosts == found.hosts
    # Ranks 3, 2 and 1, in this order, are 0, 1 and 2 of the split; devices keep their names.
    assert part.ranks == (Rank("one", "cpu3"), Rank("one", "cpu2"), Rank("one", "cpu1"))
    assert [(cluster.name, cluster.ranks) for cluster in part.clusters] == [("b", (0, 1)), ("a", (2,))]
    assert part.hosts == whole.hosts


def test_hosts_that_call_themselves_alike(pools):
    hosts = ("box/1", "box/2", "box/1")
    outcomes = pools(2, 1, 1).attempt(case_topology, ("a", "b", "a"), hosts, world=False)
    values = [outcome.get() for outcome in outcomes]
    whole, _, part = values[0]
    assert [value[0] for value in values] == [whole] * 3 and [value[2] for value in values] == [part] * 3
    assert [value[1] for value in values] == [1, 1, 0]
    assert [host.name for host in whole.hosts] == ["box", "box-2"]
    assert [f"{rank.host}/{rank.device}" for rank in whole.ranks] == ["box/cpu0", "box/cpu1", "box-2/cpu0", "box/cpu2"]
    assert all(one.what.startswith(("box: ", "box-2: ")) for one in whole.unknown)
    assert [host.name for host in part.hosts] == ["box", "box-2"], "in the order of their first ranks"


def test_the_picture_draws_hosts_clusters_and_borders(pools):
    outcomes = pools(1, 1, 1).attempt(case_topology, ("a", "b", "b"), ("left", "right", "right"), world=False)
    whole = outcomes[2].get()[0]
    drawn = jhetcc.topology.svg(whole)
    for text in (
        "hosts: 2, ranks: 3, clusters: 2",
        ">left<",
        ">right<",
        "a (cpu, none): rank 0",
        "b (cpu, none): ranks 1-2",
    ):
        assert text in drawn
    assert drawn.count('data-kind="border"') == len(topology.borders(whole))


def test_names_of_hosts():
    assert machines.unique_names(["a", "b", "a", "a-2", "a"]) == ["a", "b", "a-2", "a-2-2", "a-3"]
    assert machines.unique_names(["x" * 99, "x" * 99, "no name"]) == ["x" * 64, "x" * 56 + "-2", "no-name"]


def case_exchange(comm, sizes):
    """Texts of any length, none among them, from the first rank of each process."""
    text = np.random.default_rng(comm.local_ranks[0]).bytes(sizes[here()["process_id"]])
    return text, machines.exchange(comm, text)


@pytest.mark.parametrize("sizes", [(0, 0, 0), (5, 0, 70000), (0, 1, 0)])
def test_exchange(pools, sizes):
    values = pools(2, 1, 1).run(case_exchange, sizes)
    texts = [text for text, _ in values]
    assert all(heard == [texts[0], b"", *texts[1:]] for _, heard in values)


def test_a_closed_world_has_no_topology():
    comm = jhetcc.init(num_processes=1, devices=1)
    comm.close()
    with pytest.raises(jhetcc.AbortedError, match="closed"):
        comm.topology()
