# SPDX-License-Identifier: Apache-2.0
"""The cases on the real core: every grouping of ranks into processes, started by the launcher."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ALL = "cases_values,cases_transforms,cases_order,cases_point"
GROUPINGS = {
    "cpu:1": ALL,
    "cpu:1,cpu:1": ALL,
    "cpu:1,cpu:1,cpu:1": "cases_point",
    "cpu:1,cpu:1,cpu:1,cpu:1": ALL,
    "cpu:2,cpu:2": "cases_point",
    "cpu:2,cpu:1,cpu:1": ALL,
}


def launch(islands, *arguments, cpus=None, options=None):
    """Runs cases as a job; ``cpus``: the only processors it may use."""
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"} | (options or {})
    pin = f"import os, sys; os.sched_setaffinity(0, {cpus}); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    command = [sys.executable, *(["-c", pin] if cpus else []), "-P", "-m", "jhetcc", "launch", "--islands", islands]
    command += ["--timeout", "240", str(HERE / "run_cases.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280, check=False)
    assert done.returncode == 0, f"{islands}\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize("islands", GROUPINGS)
def test_cases(islands):
    assert "ok cases_point.case_islands" in launch(islands, GROUPINGS[islands])


# What takes long to compile and has little to do with clusters: once is enough.
SLOW = "-case_trees,case_sizes_around_protocols,case_dtypes_move,case_strided,case_donation"
SLOWER = SLOW + ",case_finite_differences,case_vmap,case_solver"
EVERY = "cases_values,cases_transforms,cases_point"
# Sizes of the clusters -> ranks of each process, label of each process, modules of cases, all cases but these.
VECTORS = {
    (1, 1): ("cpu:1,cpu:1", "a,b", "cases_values", ""),
    (2, 1): ("cpu:1,cpu:1,cpu:1", "a,b,a", EVERY, SLOWER),
    (1, 3): ("cpu:1,cpu:3", "a,b", "cases_values", SLOW),
    (2, 2): ("cpu:2,cpu:2", "a,b", EVERY, SLOW),
    (2, 1, 1): ("cpu:2,cpu:1,cpu:1", "a,b,c", "cases_values", SLOW),
    (3, 2): ("cpu:3,cpu:2", "a,b", "cases_values", SLOW),
}


@pytest.mark.parametrize("sizes", VECTORS, ids=str)
def test_over_clusters(sizes):
    """C125: what operations give between clusters, by hierarchical schedules wherever they fit."""
    islands, labels, modules, but = VECTORS[sizes]
    done = launch(islands, modules, but, labels, options={"JHETCC_ALGORITHM": "hierarchical"})
    assert f"clusters {sorted(sizes)}" in done and "* hierarchical " in done, done[:2000]
    for last in ("cases_values.case_large", "cases_transforms.case_training_step", "cases_point.case_islands"):
        assert (f"ok {last}" in done) == (last.partition(".")[0] in modules), last


@pytest.mark.parametrize("islands", ["cpu:1,cpu:1", "cpu:2,cpu:2", "cpu:2,cpu:2,cpu:2"])
def test_islands(islands):
    """Local axes and islands: one operation of each device with those at its place in the other islands."""
    assert "ok cases_islands.case_share" in launch(islands, "cases_islands")


@pytest.mark.parametrize(("islands", "case"), [("cpu:4,cpu:4", "case_two_local_axes"), ("cpu:2,cpu:1", "case_unequal")])
def test_islands_of_four_and_unequal(islands, case):
    assert f"ok cases_islands.{case}" in launch(islands, "cases_islands", case)


def test_one_core():
    """C034: a loop with sums and callbacks in its body, in two processes that share one core."""
    core = {min(os.sched_getaffinity(0))}
    assert "ok cases_order.case_callbacks" in launch("cpu:1,cpu:1", "cases_order", "case_callbacks", cpus=core)
