# SPDX-License-Identifier: Apache-2.0
"""Members of vendors' real libraries that die, stop or disagree: neither library can be told, yet everybody hears of it in time."""

import signal
import time

import library_faults
import pytest
from library_faults import FORCED

TIMEOUT_S = 4.0  # three members of oneCCL that spin on two busy processors need more than two for a first call
SLACK_S = 6.0
SHORT = FORCED | {
    "JHETCC_OPERATION_TIMEOUT": f"{TIMEOUT_S}s",
    "JHETCC_WARN_AFTER": "1s",
    "JHETCC_ABORT_GATHER": "500ms",
    "JHETCC_ABORT_CONFIRM": "1s",
    "JHETCC_CLOSE_TIMEOUT": "1s",
}
TWO_AND_TWO = ("oneccl", "oneccl", "mpi", "mpi")


def settled(pool, case, *arguments, options=SHORT):
    """Starts a case; all of its processes are ready, and go on."""
    everybody = range(len(pool.grouping))
    running = pool.start(case, *arguments, options=options)
    running.expect(*everybody, word="ready")
    for index in everybody:
        running.tell(index)
    return running


def survivors(running, victim):
    """What the survivors say in the end; then the victim is gone for certain, and they end by themselves, soon."""
    rest = [k for k in range(len(running.outcomes)) if k != victim]
    said = [running.word(k, 1) for k in rest]
    running.signal(victim, signal.SIGKILL)
    begun = time.monotonic()
    for k in rest:
        running.tell(k)
    outcomes = running.finish(*rest)
    assert [outcome.code for outcome in outcomes] == [40 + k for k in rest], [o.output for o in outcomes]
    assert time.monotonic() - begun < SLACK_S
    return said


@pytest.mark.parametrize("victim", [1, 2])
@pytest.mark.parametrize("fate", ["killed", "stopped"])
def test_a_member_is_gone_during_a_stream(cluster_pool, victim, fate):
    """Killed: at once; stopped: at the limit. The survivors raise one error, go on with our own schedules, and can end."""
    pool = cluster_pool(*TWO_AND_TWO)
    try:
        running = settled(pool, library_faults.case_stream, 200_000)
        running.linger(0.2)  # in the middle of the stream
        running.signal(victim, signal.SIGKILL if fate == "killed" else signal.SIGSTOP)
        rows = survivors(running, victim)
    finally:
        pool.kill()
    for kind, ranks, text, seconds, (members, plan) in rows:
        # MPICH may notice before the connection does: then its error, on the member that is left, is what all are told.
        by_mpi = victim == 2 and ranks in ((3,), ()) and "MPI says" in text
        assert kind == "PeerLostError" and (by_mpi or (ranks == (victim,) and f"rank {victim}" in text)), (
            kind,
            ranks,
            text,
        )
        assert seconds < TIMEOUT_S + SLACK_S
        assert members == tuple(rank for rank in range(4) if rank != victim)
        assert "cannot abort calls" in plan, plan
    assert len({row[2] for row in rows}) == 1, rows


@pytest.mark.parametrize("job", [("mpi",) * 3, ("oneccl",) * 3], ids=str)
def test_processes_end_with_their_own_code(cluster_pool, job):
    """Right after the error, with a thread in the library and nothing closed."""
    pool = cluster_pool(*job)
    try:
        running = settled(pool, library_faults.case_exit_in_call, 200_000)
        running.linger(0.2)
        running.signal(1, signal.SIGKILL)
        outcomes = running.finish()
        assert [outcome.code for outcome in outcomes] == [40, -9, 42], [outcome.output for outcome in outcomes]
        assert all(outcome.seconds < TIMEOUT_S + 2 * SLACK_S for outcome in outcomes)
    finally:
        pool.kill()


@pytest.mark.parametrize("is_streaming", [False, True])
def test_abort(cluster_pool, is_streaming):
    """Also in the middle of calls, which nobody can free: all raise soon, go on, and end."""
    pool = cluster_pool(*TWO_AND_TWO)
    try:
        running = settled(
            pool, library_faults.case_abort, 3, is_streaming, options=SHORT | {"JHETCC_OPERATION_TIMEOUT": "60s"}
        )
        running.linger(0.3)
        running.tell(3)
        rows = [running.word(k, 1) for k in range(4)]
        for k in range(4):
            running.tell(k)
        assert [outcome.code for outcome in running.finish()] == [40, 41, 42, 43]
    finally:
        pool.kill()
    assert all(
        kind == "AbortedError" and "enough" in text and members == (0, 1, 2, 3) for kind, text, members in rows
    ), rows


@pytest.mark.parametrize("odd", [0, 3])
def test_a_mismatch_is_found_before_a_library_is_called(cluster_pool, odd):
    """The very next job of the same processes uses the libraries again: nobody was left inside one."""
    pool = cluster_pool(*TWO_AND_TWO)
    for outcome in settled(pool, library_faults.case_mismatch, odd).finish():
        kind, text, threads = outcome.get()
        assert kind == "MismatchError" and "f32[5000]" in text and "f32[5001]" in text, text
        assert threads <= 1
    pool.renew()
    rows = pool.run(library_faults.case_sums_and_explain, options=SHORT)
    assert all("oneccl" in row.lower() and "mpi" in row.lower() for row in rows), rows


@pytest.mark.parametrize("victim", [0, 3])
def test_a_part_without_the_victim_goes_on_with_its_libraries(cluster_pool, victim):
    pool = cluster_pool(*TWO_AND_TWO)
    try:
        running = settled(pool, library_faults.case_part_of_survivors, victim, 20_000)
        running.signal(victim, signal.SIGKILL)
        for other in range(4):
            running.tell(other)
        texts = survivors(running, victim)
    finally:
        pool.kill()
    assert all(("mpi" if victim == 0 else "oneccl") in text.lower() for text in texts), texts


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("job", [("mpi",) * 2, ("oneccl",) * 2], ids=str)
def test_processes_that_end_at_different_times_all_end_well(cluster_pool, job, late):
    pool = cluster_pool(*job)
    try:
        running = pool.start(library_faults.case_late, late, options=SHORT)
        running.expect(late, word="waiting")
        (first,) = running.finish(1 - late)
        running.tell(late)
        (last,) = running.finish(late)
        assert (first.code, last.code) == (41 - late, 40 + late), (first.output, last.output)
    finally:
        pool.kill()
