# SPDX-License-Identifier: Apache-2.0
"""The clusters of a communicator: labels, numbering within, and labels that join what cannot be joined."""

import os
import types

import numpy as np
import pytest
from process_worker import here

import jhetcc
from jhetcc.topology import Cluster
from jhetcc.world import library, rendezvous, world


def case_labelled(labels):
    """Joins with a label of its own; returns the clusters of the world, of the islands and of a split in reverse order."""
    me = here()["process_id"]
    os.environ["JHETCC_CLUSTER"] = labels[me]
    comm = jhetcc.init(**here(), timeout=30)
    try:
        islands = jhetcc.world.state.communicator("islands").clusters
        half = comm.split([-1 if rank == 0 else 0 for rank in comm.local_ranks], [-rank for rank in comm.local_ranks])
        return comm.clusters, islands, half.clusters if half else None
    finally:
        comm.close()


def case_other_library(versions):
    """One label for all, but processes whose vendor's library differs."""
    me = here()["process_id"]
    kept, planner, opening = library.load, world.Planner, rendezvous.Rendezvous.open_library

    def load(options, *_):
        can = {"uniform": False, "refuses": [], "one_rank_a_process": True, "abortable": False}
        return types.SimpleNamespace(name=options.library, version=versions[me], **can)

    os.environ["JHETCC_CLUSTER"], os.environ["JHETCC_LIBRARY"] = "left", "oneccl"
    library.load, rendezvous.Rendezvous.open_library = load, lambda *_: None
    if len(set(versions)) > 1:
        world.Planner = None  # a refusal comes before anything is made
    try:
        comm = jhetcc.init(**here(), timeout=30)
        comm.close()
        return comm.clusters
    finally:
        library.load, world.Planner, rendezvous.Rendezvous.open_library = kept, planner, opening
        del os.environ["JHETCC_CLUSTER"], os.environ["JHETCC_LIBRARY"]


def cpus(name, *ranks):
    return Cluster(name, "cpu", "none", "", ranks)


def test_labels_of_three_processes(pools):
    outcomes = pools(1, 1, 1).attempt(case_labelled, ("a", "b", "a"), world=False)
    everybody = (cpus("a", 0, 2), cpus("b", 1))
    values = [outcome.get() for outcome in outcomes]
    assert [value[:2] for value in values] == [(everybody, everybody)] * 3
    # Ranks 2 and 1, in this order, are 0 and 1 of the split.
    assert [value[2] for value in values] == [None, *[(cpus("a", 0), cpus("b", 1))] * 2]


def test_ranks_of_one_process_share_its_cluster(pools):
    outcomes = pools(2, 1, 1).attempt(case_labelled, ("", "b", ""), world=False)
    values = [outcome.get() for outcome in outcomes]
    assert values[0][:2] == ((cpus("cpu", 0, 1, 3), cpus("b", 2)), (cpus("cpu", 0, 2), cpus("b", 1)))
    assert values[1] == values[2] == (*values[0][:2], (cpus("cpu", 0, 2), cpus("b", 1)))


def test_a_label_for_two_libraries_is_refused_on_all(pools):
    pool = pools(1, 1, 1)
    for outcome in pool.attempt(case_other_library, ("2021.17", "2021.17", "2021.18"), world=False):
        with pytest.raises(jhetcc.BadArgumentError) as caught:
            outcome.get()
        text = str(caught.value)
        assert "'left'" in text and "oneccl 2021.17 on ranks 0, 1" in text and "oneccl 2021.18 on rank 2" in text
        assert caught.value.code == "cluster_label"
    agreed = (Cluster("left", "cpu", "oneccl", "2021.17", (0, 1, 2)),)
    assert [o.get() for o in pool.attempt(case_other_library, ("2021.17",) * 3, world=False)] == [agreed] * 3


def test_a_lone_process(monkeypatch):
    monkeypatch.setenv("JHETCC_CLUSTER", "alone")
    comm = jhetcc.init(num_processes=1, devices=2)
    try:
        assert comm.clusters == (cpus("alone", 0, 1),)
    finally:
        comm.close()


def case_planned(labels):
    """Runs over the clusters its labels make, and returns what explain says."""
    from jhetcc.schedule import Operation, run

    os.environ["JHETCC_CLUSTER"] = labels[here()["process_id"]]
    os.environ["JHETCC_ALGORITHM"] = "hierarchical"
    comm = jhetcc.init(**here(), timeout=30)
    try:
        operation = Operation("psum", "f32", (5001,))
        inputs = [np.random.default_rng(rank).normal(size=5001).astype(np.float32) for rank in range(comm.size)]
        plan = comm._world.planner.plan(operation.text(), comm.layout)
        want = run(operation, plan.expand_all(), inputs)[comm.rank]
        assert comm.all_reduce(inputs[comm.rank]).tobytes() == want.tobytes()
        return comm.explain(operation.text())
    finally:
        comm.close()
        del os.environ["JHETCC_ALGORITHM"], os.environ["JHETCC_CLUSTER"]


def test_labels_give_hierarchical_plans(pools):
    for outcome in pools(1, 1, 1).attempt(case_planned, ("a", "b", "a"), world=False):
        text = outcome.get()
        assert "* hierarchical " in text and "psum(f32[5001]) on 3 ranks by hierarchical" in text
        assert "border of cluster 1: rank 1" in text and "bounced through host memory: 0 bytes" in text
        assert text.splitlines()[-1].startswith("  path")


def test_explain_without_clusters():
    comm = jhetcc.init(num_processes=1, devices=2)
    try:
        assert "* one_shot" in comm.explain("psum(f32[16])")
        with pytest.raises(jhetcc.BadArgumentError, match="root=2"):
            comm.explain("broadcast(f32[4], root=2)")
    finally:
        comm.close()
