# SPDX-License-Identifier: Apache-2.0
"""How things end: abort and close with a peer that does not answer, what every error tells, and what is kept for afterwards."""

import json
import pathlib
import signal
import time

import numpy as np
import pytest
from failing import SHORT, SLACK_S, WIRES, value
from process_worker import hear, say, until_error

import jhetcc
from jhetcc.errors import AbortedError, MismatchError, OperationTimeoutError, PeerLostError

KILL, STOP, CONTINUE = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT


def case_nobody_answers(comm, count):
    comm.barrier()
    say("ready")
    hear()
    if comm.rank == 1:
        return None
    times = {}
    for name, call in {
        "send": lambda: comm.send(np.zeros(count, np.uint8), 1),
        "abort": lambda: comm.abort("enough"),
        "close": lambda: comm.close(),
    }.items():
        begun = time.monotonic()
        try:
            call()
        except jhetcc.Error as error:
            assert name == "send" and isinstance(error, PeerLostError), (name, error)
        times[name] = time.monotonic() - begun
    say("closed")
    return times


@pytest.mark.parametrize("wire", WIRES)
def test_abort_and_close_give_up_on_a_silent_peer(pools, wire):
    """C061: the peer is stopped with much under way to it; abort is at once, close keeps to its limit, the process lives."""
    options = SHORT | WIRES[wire] | {"JHETCC_CLOSE_TIMEOUT": "1s"}
    running = pools(1, 1).start(case_nobody_answers, 50_000_000, options=options)
    running.expect(0, 1, word="ready")
    running.signal(1, STOP)
    running.tell(0)
    running.expect(0, word="closed")
    running.signal(1, CONTINUE)
    running.tell(1)
    outcomes = running.finish()
    running.pool.renew()
    times = outcomes[0].get()
    assert times["abort"] < 1 and times["close"] < 1 + SLACK_S, times


# What every error tells

CAUSES = {
    # name: (class, retryable, whom it names, what to do)
    "lost": (PeerLostError, False, (1,), "shrink()"),
    "late": (OperationTimeoutError, True, (1,), "JHETCC_OPERATION_TIMEOUT"),
    "mismatch": (MismatchError, False, (0, 1), "psum(f32[1000])"),
    "abort": (AbortedError, False, (1,), "shrink()"),
}


def case_cause(comm, cause):
    comm.barrier()
    say("settled")
    hear()
    if comm.rank == 1:
        if cause == "lost":
            raise SystemExit(3)
        if cause == "late":
            say("late")
            hear()
            return None
        if cause == "abort":
            comm.abort("on purpose")
    return until_error(lambda: comm.all_reduce(value(comm, 1000 + (cause == "mismatch" and comm.rank))))[0]


@pytest.mark.parametrize("cause", CAUSES)
def test_an_error_says_what_to_recreate(pools, cause):
    """C064: class, code, whom it is about, what broke, whether to try again, and the next step, for each way to fail."""
    kind, retryable, ranks, remedy = CAUSES[cause]
    running = pools(1, 1).start(case_cause, cause, options=SHORT)
    running.expect(0, 1, word="settled")
    running.tell(0)
    running.tell(1)
    (outcome,) = running.finish(0)
    if cause == "late":
        running.tell(1)
    running.finish()
    running.pool.renew()
    error = outcome.get()
    assert type(error) is kind and error.retryable == retryable and error.scope == "communicator", (error, vars(error))
    assert set(error.ranks) == set(ranks), (error.ranks, error)
    assert remedy in str(error), error
    page = (pathlib.Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
    assert f"`{error.code}`" in page and f"`{kind.__name__}`" in page


# What is kept


def case_recorded(comm):
    for _ in range(3):
        comm.all_reduce(value(comm))
    if comm.rank == 1:
        say("ready")
        hear()
    error, _ = until_error(lambda: comm.all_reduce(value(comm)))
    return str(error)


def test_the_flight_recorder_shows_what_began_and_what_ended(pools, tmp_path):
    """C136: after a kill in the middle, the survivor's file has beginning and end of each operation but the one that was cut."""
    running = pools(1, 1).start(case_recorded, options=SHORT | {"JHETCC_TRACE_DIR": str(tmp_path)})
    running.expect(1, word="ready")
    running.signal(1, KILL)
    outcomes = running.finish()
    assert "psum(f32[1000])" in outcomes[0].get()
    deadline = time.monotonic() + 30
    while not (files := sorted(tmp_path.glob("jhetcc-0-*.json"))):
        assert time.monotonic() < deadline
    running.pool.kill()
    dump = json.loads(files[0].read_text(encoding="utf-8"))
    world = next(event["communicator"] for event in dump["events"] if event["event"] == "operation started")
    of = {
        name: {
            event["sequence"] for event in dump["events"] if event["event"] == name and event["communicator"] == world
        }
        for name in ("operation started", "operation finished")
    }
    assert of["operation started"] >= {0, 1, 2, 3}, of
    assert of["operation finished"] >= {0, 1, 2} and 3 not in of["operation finished"], of
    assert dump["ranks"] and dump["counters"]["aborts"] >= 1
