# SPDX-License-Identifier: Apache-2.0
"""Ranks that do not do the same: everybody gets an error that names both sides, soon, and no result."""

import threading

import numpy as np
import pytest
from failing import SHORT, WIRES, ended, failed
from process_worker import hear, say

import jhetcc
from jhetcc.errors import MismatchError

# How the odd rank differs from the others; words that every rank's error must hold.
CASES = {
    "shape": (("all_reduce", (100, 256), "f4"), ("all_reduce", (200, 256), "f4"), ("f32[100,256]", "f32[200,256]")),
    "length": (("all_reduce", (1,), "f4"), ("all_reduce", (2,), "f4"), ("f32[1]", "f32[2]")),
    "layout": (("all_reduce", (4, 2), "f4"), ("all_reduce", (2, 4), "f4"), ("f32[4,2]", "f32[2,4]")),
    "dtype": (("all_reduce", (64,), "f4"), ("all_reduce", (64,), "i4"), ("f32[64]", "i32[64]")),
    "dtype width": (("all_reduce", (64,), "f4"), ("all_reduce", (64,), "f8"), ("f32[64]", "f64[64]")),
    "operation": (("all_reduce", (64,), "f4"), ("all_gather", (64,), "f4"), ("psum(f32[64])", "all_gather(f32[64])")),
    "op": (("all_reduce", (64,), "f4"), ("all_reduce", (64,), "f4", "max"), ("psum(", "pmax(")),
    "gather lengths": (("all_gather", (3,), "f4"), ("all_gather", (5,), "f4"), ("f32[3]", "f32[5]")),
    "root": (("broadcast", (8,), "f4", 0), ("broadcast", (8,), "f4", 1), ("root=0", "root=1")),
    "barrier": (("barrier",), ("all_reduce", (8,), "f4"), ("barrier()", "psum(f32[8])")),
    "large": (("all_reduce", (1 << 20,), "f4"), ("all_reduce", (1 << 19,), "f4"), ("f32[1048576]", "f32[524288]")),
}


def call(comm, name, shape=None, dtype=None, more=None):
    if name == "barrier":
        return comm.barrier()
    data = np.ones(shape, dtype)
    if name == "broadcast":
        return comm.broadcast(data, root=more)
    return getattr(comm, name)(data, *([more] if more else []))


def case_differs(comm, usual, odd):
    before = comm.all_reduce(np.array(comm.rank))
    assert before == sum(range(comm.size))
    try:
        call(comm, *(odd if comm.rank == 1 else usual))
    except jhetcc.Error as error:
        ended(comm, error)
        raise
    raise AssertionError("a result was returned")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("difference", CASES)
def test_one_rank_differs(pools, difference, wire):
    """C023, C025, C027."""
    usual, odd, words = CASES[difference]
    outcomes = pools(1, 1).attempt(case_differs, usual, odd, options=SHORT | WIRES[wire])
    texts = {str(failed(outcome, MismatchError, "#1", "rank 0", "rank 1", *words)) for outcome in outcomes}
    assert len(texts) == 1, texts


def test_one_of_four_differs(pools):
    usual, odd, words = CASES["shape"]
    outcomes = pools(1, 1, 1, 1).attempt(case_differs, usual, odd, options=SHORT)
    errors = [failed(outcome, MismatchError, "rank 1 (", *words) for outcome in outcomes]
    assert all(1 in error.ranks for error in errors) and len({str(error) for error in errors}) == 1, errors


def case_order(comm):
    calls = [lambda: comm.all_reduce(np.ones(4)), lambda: comm.all_reduce(np.ones(4), "max")]
    for one in calls if comm.rank == 0 else reversed(calls):
        one()


def test_another_order(pools):
    for outcome in pools(1, 1).attempt(case_order, options=SHORT):
        failed(outcome, MismatchError, "psum(f64[4])", "pmax(f64[4])")


def case_message(comm, shape, dtype):
    if comm.rank == 0:
        comm.send(np.ones((4, 8), np.float32), 1)
    else:
        comm.recv(shape, dtype, 0)


@pytest.mark.parametrize(("shape", "dtype"), [((2, 8), "f4"), ((8, 8), "f4"), ((4, 8), "f2"), ((4, 8), "i4")], ids=str)
def test_a_message_is_not_what_was_expected(pools, shape, dtype):
    """C024: smaller, larger, other dtypes."""
    short = {"f4": "f32", "f2": "f16", "i4": "i32"}[dtype]
    for outcome in pools(1, 1).attempt(case_message, shape, dtype, options=SHORT):
        failed(outcome, MismatchError, "send(f32[4,8]", f"recv({short}[{shape[0]},{shape[1]}]")


def case_crossed(comm):
    """Groups in another order on another rank: ALL then pair, pair then ALL."""
    pair = comm.split(0 if comm.rank < 2 else -1, name="pair")
    calls = [lambda: comm.all_reduce(np.ones(2)), lambda: pair and pair.all_reduce(np.ones(3))]
    for one in reversed(calls) if comm.rank == 1 else calls:
        one()


def case_receives_cross(comm):
    """Both receive before either sends; three in a ring where there are three."""
    comm.barrier()
    comm.recv((4,), np.float32, (comm.rank + 1) % comm.size)
    comm.send(np.ones(4, np.float32), (comm.rank - 1) % comm.size)


@pytest.mark.parametrize("wire", WIRES)
def test_groups_in_crossed_order(pools, wire):
    """C036: ends at once, not at the deadline, and names both operations."""
    options = SHORT | WIRES[wire] | {"JHETCC_OPERATION_TIMEOUT": "60s"}
    outcomes = pools(1, 1, 1, 1).attempt(case_crossed, options=options)
    for outcome in outcomes[:2]:
        error = failed(outcome, jhetcc.Error, "psum(f64[2])", "psum(f64[3])", within=10)
        assert error.code == "wait_cycle"
    for outcome in outcomes[2:]:
        failed(outcome, jhetcc.Error, within=10)


@pytest.mark.parametrize("grouping", [(1, 1), (1, 1, 1)], ids=str)
def test_receives_that_wait_for_each_other(pools, grouping):
    outcomes = pools(*grouping).attempt(case_receives_cross, options=SHORT | {"JHETCC_OPERATION_TIMEOUT": "60s"})
    for outcome in outcomes:
        assert failed(outcome, jhetcc.Error, "recv(f32[4]", within=10).code == "wait_cycle"


def case_second_thread(comm):
    """Two Python threads on one rank: the second is refused by name, the first goes on."""
    got = []
    thread = threading.Thread(target=lambda: got.append(comm.recv((3,), np.int64, 1)))
    if comm.rank == 0:
        thread.start()
        while comm.status()["ranks"][0]["operation"] is None:
            pass
        try:
            comm.all_reduce(np.ones(1))
        except jhetcc.Error as error:
            assert error.code == "second_thread", error
        else:
            raise AssertionError("a second thread was accepted")
        say("refused")
        thread.join()
        assert got[0].tolist() == [1, 2, 3]
    else:
        hear()
        comm.send(np.array([1, 2, 3]), 0)
    return int(comm.all_reduce(np.array(1)))


def test_a_second_thread(pools):
    running = pools(1, 1).start(case_second_thread)
    running.expect(0, word="refused")
    running.tell(1)
    assert [outcome.get() for outcome in running.finish()] == [2, 2]
