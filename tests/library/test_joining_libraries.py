# SPDX-License-Identifier: Apache-2.0
"""init() with vendors' libraries: slow ones are told of, and what cannot be used is one clear error for every process, in time."""

import library_faults
import processes
import pytest
import vendor_libraries


def test_slow_loading_is_told(cluster_pool):
    """C127: the others say whom they wait for and what it does, and then all works."""
    pool = cluster_pool("oneccl", "oneccl", "mpi", "mpi")
    running = pool.start(library_faults.case_slow_loading, 2, 6.5, library_faults.FORCED, world=False)
    for index in (0, 1, 3):
        running.see(index, "have loaded the library of their cluster, missing: 2")
    for outcome in running.finish():
        outcome.get()


WRONG = {
    "unknown name": ({"JHETCC_LIBRARY": "onecll"}, "BadArgumentError", ("JHETCC_LIBRARY", "oneccl, mpi")),
    "missing path": (
        {"JHETCC_LIBRARY": "mpi", "JHETCC_LIBRARY_PATH": "/nowhere/at/all"},
        "UnavailableError",
        ("/nowhere/at/all",),
    ),
    "two devices": (
        {"JHETCC_LIBRARY": "oneccl", "devices": "2"},
        "BadArgumentError",
        ("JHETCC_LIBRARY=oneccl", "one process a device"),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_used_is_refused_on_all(cluster_pool, wrong):
    """The process itself is told what to do, the others that it failed and why; nobody waits for init_timeout."""
    environment, kind, words = WRONG[wrong]
    if "devices" in environment:
        cluster_pool("oneccl")  # skipped where it is not there
        environment = vendor_libraries.options("oneccl") | environment
    pool = cluster_pool("none", "none", "none")
    # A wrong setting is refused before anybody is met: the others wait for that process as for any that ended.
    timeout = 6 if wrong == "unknown name" else 60
    outcomes = pool.attempt(library_faults.case_init, [{}, environment, {}], timeout, world=False)
    rows = [outcome.get() for outcome in outcomes]
    assert rows[1][0] == kind, rows
    for word in words:
        assert word in rows[1][2], rows[1]
    for row in (rows[0], rows[2]):
        if wrong == "unknown name":
            assert row[1] == "init_timeout" and "process 1 of 3" in row[2], row
        else:
            assert row[1] == "init_failed" and rows[1][2] in row[2], row
    assert all(row[3] < 20 for row in rows), rows


def test_versions_that_differ_under_one_label_are_refused(cluster_pool):
    pool = cluster_pool("mpi", "mpi", "none")
    mine = vendor_libraries.options("mpi") | {"JHETCC_CLUSTER": "left"}
    outcomes = pool.attempt(library_faults.case_two_versions, [mine, mine, {}], ["5.0", "5.1", ""], 60, world=False)
    texts = {outcome.get()[2] for outcome in outcomes}
    assert all(outcome.get()[:2] == ("BadArgumentError", "cluster_label") for outcome in outcomes)
    (text,) = texts
    assert "'left'" in text and "5.0" in text and "5.1" in text


def test_versions_that_differ_are_two_clusters(cluster_pool):
    pool = cluster_pool("mpi", "mpi")
    names = pool.attempt(library_faults.case_two_clusters, ["5.0", "5.1"], world=False)
    assert [outcome.get() for outcome in names] == [2, 2]


@pytest.mark.parametrize("who", [0, 1])
def test_a_library_that_does_not_open_fails_on_all_at_once(cluster_pool, who):
    pool = cluster_pool("oneccl", "oneccl", "oneccl")
    rows = [o.get() for o in pool.attempt(library_faults.case_open_fails, who, 60, world=False)]
    assert rows[who][1] == "library_failed" and "no way between them" in rows[who][2]
    for k, row in enumerate(rows):
        assert row[3] < 20, rows
        if k != who:
            assert "no way between them" in row[2], row


@pytest.mark.parametrize("names", [("oneccl", "oneccl", "none"), ("mpi", "mpi", "none")])
@pytest.mark.parametrize("who", [0, 1])
def test_a_member_killed_while_its_cluster_opens_is_named_to_all_at_once(cluster_pool, names, who):
    pool = cluster_pool(*names)
    running = pool.start(library_faults.case_killed_in_opening, who, 60, world=False)
    rest = [index for index in range(3) if index != who]
    for index in rest:
        kind, code, ranks, text, seconds = running.word(index, 0)
        assert (kind, code, ranks) == ("PeerLostError", "init_failed", (who,)), text
        assert ("process 0, which holds the coordinator" if who == 0 else "(rank 1) ended") in text
        assert seconds < 20, (seconds, text)
        running.tell(index)
    outcomes = running.finish()
    assert [outcomes[index].code for index in rest] == [40, 40]  # a thread stuck in the library holds nobody


@pytest.mark.parametrize("name", ["oneccl", "mpi"])
def test_the_program_has_its_output_for_itself(name):
    """Nothing that a library remarks on its settings comes between."""
    source = """
import jhetcc, numpy
comm = jhetcc.init(devices=1)
assert (comm.all_reduce(numpy.ones(5000)) == 2).all()
comm.close()
print("mine")
"""
    for code, output, _ in processes.run_scripts(source, extra=vendor_libraries.options(name)):
        assert (code, output) == (0, "mine\n"), output


def test_a_fork_of_a_process_with_a_library_ends():
    """Three ranks: more than processors, so oneCCL has a thread of its own; the child does not wait for it."""
    vendor_libraries.require("oneccl")
    settings = vendor_libraries.options("oneccl")
    source = """
import jhetcc, numpy, sys, time
comm = jhetcc.init(devices=1)
comm.all_reduce(numpy.ones(1000))
child = os.fork()
if child == 0:
    sys.exit(7)
deadline = time.monotonic() + 20
while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
    time.sleep(0.01)
if ended == (0, 0):
    os.kill(child, 9)
    os.waitpid(child, 0)
comm.all_reduce(numpy.ones(1000))
comm.close()
print(ended != (0, 0) and os.waitstatus_to_exitcode(ended[1]), flush=True)
"""
    extra = settings | {"JHETCC_ALGORITHM": "hierarchical"}
    for code, output, _ in processes.run_scripts(source, (1, 1, 1), extra=extra):
        assert code == 0 and output.splitlines()[-1] == "7", output
