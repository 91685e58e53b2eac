# SPDX-License-Identifier: Apache-2.0
"""A rank is gone, stuck or late: the others are told who and where, in bounded time; survivors go on."""

import os
import re
import signal
import socket
import sys
import time

import numpy as np
import pytest
from failing import SHORT, SLACK_S, TIMEOUT_S, WIRES, ended, failed, goes_on, value
from process_worker import current, hear, here, say, until_error

import jhetcc
from jhetcc.errors import AbortedError, OperationTimeoutError, PeerLostError

KILL, STOP, CONTINUE = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT


def case_loop(comm, victim, count, fate):
    """Sums until the victim meets its fate; survivors shrink and go on."""
    if comm.rank == victim:
        for _ in range(5):
            comm.all_reduce(value(comm, count))
        if fate == "exit":
            sys.exit(7)
        if fate == "raise":
            raise SystemExit("no more")
        say("ready")
        if fate == "close":
            comm.close()
            return None
        if fate == "killed between":
            hear()
        while True:
            comm.all_reduce(value(comm, count))
    error, seconds = until_error(lambda: comm.all_reduce(value(comm, count)))
    assert isinstance(error, PeerLostError), error
    assert error.ranks == (victim,) and f"rank {victim}" in str(error) and "psum(f32[" in str(error), error
    assert seconds < TIMEOUT_S + SLACK_S
    ended(comm, error)
    return str(error), goes_on(comm, comm.size - 1)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("count", [10, 3_000_000])
@pytest.mark.parametrize("fate", ["exit", "raise", "close", "killed", "killed between"])
def test_a_rank_is_gone(pools, fate, count, wire):
    """C062, C063, C073: named, at once and not at the deadline; the next call fails fast; the others shrink."""
    options = SHORT | WIRES[wire] | {"JHETCC_OPERATION_TIMEOUT": "60s"}
    running = pools(1, 1, 1).start(case_loop, 2, count, fate, options=options)
    if fate.startswith("killed"):
        running.expect(2, word="ready")
        running.signal(2, KILL)
    try:
        outcomes = running.finish()
    finally:
        running.pool.renew()
    assert outcomes[2].code == {"exit": 7, "raise": 1, "close": None}.get(fate, -9)
    texts = {outcome.get()[0] for outcome in outcomes[:2]}
    assert len(texts) == 1, texts
    assert all(outcome.get()[1] == (0, 1) and outcome.seconds < 30 for outcome in outcomes[:2])


def test_process_0_is_killed(pools):
    """C068: the store's process is nobody special: the survivors raise, shrink and go on."""
    running = pools(1, 1, 1).start(case_loop, 0, 1000, "killed", options=SHORT)
    running.expect(0, word="ready")
    running.signal(0, KILL)
    outcomes = running.finish()
    running.pool.renew()
    assert [outcome.get()[1] for outcome in outcomes[1:]] == [(1, 2), (1, 2)]


def case_messages(comm):
    data = np.ones(25_000_000, np.float32)
    if comm.rank == 1:
        for k in range(1000):
            comm.recv(data.shape, data.dtype, 0, out=data)
            if k == 2:
                say("ready")
    error, _ = until_error(lambda: comm.send(data, 1))
    assert isinstance(error, PeerLostError) and error.ranks == (1,)
    assert "send(f32[25000000], to=1" in str(error)
    return time.monotonic(), str(error)


# What the system says of the end of a process, by wire.
CLOSED = {
    "shm": "peer process is gone: connection closed",
    "tcp": "(Connection reset by peer|connection closed by the peer)",
}


@pytest.mark.parametrize("wire", WIRES)
def test_a_receiver_is_killed_in_the_middle(pools, wire):
    """C063: 100 MB messages, the receiver dies; within 2 s the sender is told who, where it ran and what the system says."""
    running = pools(1, 1).start(case_messages, options=WIRES[wire])
    running.expect(1, word="ready")
    killed, pid = time.monotonic(), running.pid(1)
    running.signal(1, KILL)
    outcomes = running.finish()
    running.pool.renew()
    told, text = outcomes[0].get()
    assert told - killed < 2, text
    assert f"rank 1 ({socket.gethostname()}:{pid}): rank 1 is gone ({wire} rank 0 -> rank 1" in text, text
    assert re.search(CLOSED[wire], text), text


# Alive, but not there


def case_stuck(comm, call):
    """At its fifth call rank 1 hears nothing any more."""
    calls = {
        "all_reduce": lambda: comm.all_reduce(value(comm)),
        "barrier": comm.barrier,
        "broadcast": lambda: comm.broadcast(value(comm), root=comm.size - 1),
        "reduce": lambda: comm.reduce(value(comm), root=1),
        "all_gather": lambda: comm.all_gather(value(comm)),
        "gather": lambda: comm.gather(value(comm), root=0),
        "scatter": lambda: comm.scatter(np.ones((comm.size, 3)), root=0),
        "reduce_scatter": lambda: comm.reduce_scatter(np.ones((comm.size, 3))),
        "all_to_all": lambda: comm.all_to_all(np.ones((comm.size, 3))),
        "permute": lambda: comm.permute(value(comm), [(0, comm.size - 1)]),
        "sendrecv": lambda: comm.sendrecv(value(comm), 1 - comm.rank, 1 - comm.rank),
    }
    for _ in range(5):
        calls[call]()
    if comm.rank == 1:
        say("ready")
        hear()
    begun = time.monotonic()
    try:
        calls[call]()
    except jhetcc.Error as error:
        error.took = time.monotonic() - begun
        raise


def attempt_stuck(pools, call, seconds, options):
    running = pools(1, 1).start(case_stuck, call, options=options)
    running.expect(1, word="ready")
    running.linger(seconds, 0)
    running.tell(1)
    outcomes = running.finish()
    running.pool.renew()
    return outcomes


@pytest.mark.parametrize(
    "call",
    [
        "all_reduce",
        "barrier",
        "broadcast",
        "reduce",
        "all_gather",
        "gather",
        "scatter",
        "reduce_scatter",
        "all_to_all",
        "permute",
        "sendrecv",
    ],
)
def test_every_call_obeys_the_limit(pools, call):
    """C053: late below the limit works, later than the limit raises, between once and twice the limit, for each call."""
    options = SHORT | {"JHETCC_OPERATION_TIMEOUT": "1500ms", "JHETCC_WARN_AFTER": "500ms"}
    for outcome in attempt_stuck(pools, call, 0.7, options):
        outcome.get()
    outcomes = attempt_stuck(pools, call, 30, options)
    error = failed(outcomes[0], OperationTimeoutError, "rank 1", "JHETCC_OPERATION_TIMEOUT", "1.5 s")
    assert 1.4 < error.took < 3 + SLACK_S
    failed(outcomes[1], jhetcc.Error, within=60)


def case_stopped(comm):
    comm.all_reduce(value(comm))
    if comm.rank == 1:
        say("ready")
        hear()
        error, _ = until_error(lambda: comm.all_reduce(value(comm)))
        ended(comm, error)
        try:
            comm.shrink(timeout=5)
        except PeerLostError:
            return str(error)
        raise AssertionError("a rank that was given up was let in again")
    error, _ = until_error(lambda: comm.all_reduce(value(comm)))
    assert isinstance(error, PeerLostError) and error.ranks == (1,), error
    assert "connection is up" in str(error) and "#1 psum(f32[1000])" in str(error), error
    assert "JHETCC_OPERATION_TIMEOUT" in str(error), error
    members = goes_on(comm, comm.size - 1)
    say("gone on")
    hear()
    return members


@pytest.mark.parametrize("wire", WIRES)
def test_a_rank_is_stopped_and_resumed(pools, wire):
    """C052: SIGSTOP; the others give up at the limit and say that its connection is up; resumed, it learns its fate."""
    running = pools(1, 1, 1).start(case_stopped, options=SHORT | WIRES[wire])
    running.expect(1, word="ready")
    running.signal(1, STOP)
    running.tell(1)
    running.expect(0, 2, word="gone on")
    running.signal(1, CONTINUE)
    (resumed,) = running.finish(1)
    running.tell(0)
    running.tell(2)
    outcomes = running.finish()
    running.pool.renew()
    assert "rank 1" in resumed.get()
    assert [outcome.get() for outcome in (outcomes[0], outcomes[2])] == [(0, 2), (0, 2)]


def case_never_called(comm):
    """Rank 1 is well but does something else."""
    comm.all_reduce(value(comm))
    comm.all_reduce(value(comm))
    if comm.rank == 1:
        hear()
        comm.check()
    else:
        comm.all_reduce(value(comm))


def test_a_rank_never_calls(pools):
    """C052, C137: its connection is up, it finished #1 and did not come to #2; it learns so itself."""
    running = pools(1, 1).start(case_never_called, options=SHORT)
    failed(
        running.finish(0)[0],
        OperationTimeoutError,
        "rank 1",
        "did not arrive",
        "connection is up",
        "#2 psum",
        "finished #1",
    )
    running.tell(1)
    outcomes = running.finish()
    running.pool.renew()
    failed(outcomes[1], OperationTimeoutError, "rank 1", within=60)


def case_slow(comm, seconds):
    if comm.rank == 1:
        end = time.monotonic() + seconds
        while time.monotonic() < end:  # busy, as a compiler is
            pass
    return int(comm.all_reduce(np.array(1)))


def test_a_slow_rank_is_waited_for(pools):
    """C033, C054, C135: below the limit: a warning names whom one waits for, then all is well."""
    running = pools(1, 1, 1).start(case_slow, 2.5, options=SHORT | {"JHETCC_OPERATION_TIMEOUT": "60s"})
    assert [outcome.get() for outcome in running.finish()] == [3, 3, 3]
    for index in (0, 2):
        running.see(index, f"rank {index} has waited ")
        running.see(index, 'in #0 psum(i64[]) on "world" for rank(s) [1]')
        running.see(index, "goes on: #0 psum(i64[]) is done")
    running.pool.kill()  # what is still to be printed of the first world is none of the second's
    unlimited = {"JHETCC_OPERATION_TIMEOUT": "inf", "JHETCC_WARN_AFTER": "inf"}
    outcomes = pools(1, 1, 1).start(case_slow, 1, options=unlimited).finish()
    assert [(outcome.get(), outcome.output) for outcome in outcomes] == [(3, "")] * 3


# Ended on purpose


def case_abort(comm, who):
    comm.barrier()
    if comm.rank == who:
        comm.abort("the data is used up")
        comm.check()
    comm.all_reduce(value(comm))


@pytest.mark.parametrize("who", [0, 2])
def test_user_abort(pools, who):
    for outcome in pools(1, 1, 1).attempt(case_abort_and_go_on, who, options=SHORT):
        assert outcome.get() == (0, 1, 2)


def case_abort_and_go_on(comm, who):
    """Everybody hears the reason, and all go on in a new communicator of all."""
    try:
        case_abort(comm, who)
    except AbortedError as error:
        assert "the data is used up" in str(error) and f"rank {who}" in str(error)
        ended(comm, error)
    return goes_on(comm, comm.size)


def settle(comm):
    """A barrier that has ended on all ranks, so that none of them meets the fault in it."""
    comm.barrier()
    say("settled")
    hear()


def attempt_settled(pool, case, **how):
    running = pool.start(case, **how)
    everybody = range(len(pool.grouping))
    running.expect(*everybody, word="settled")
    for index in everybody:
        running.tell(index)
    outcomes = running.finish()
    pool.renew()
    return outcomes


def case_abort_of_a_part(comm):
    """C059: rank 2 of {2, 3} exits; calls are under way on both; abort returns soon; three go on."""
    part = comm.split(0 if comm.rank > 1 else -1, name="part")
    settle(comm)
    if comm.rank == 2:
        sys.exit(3)
    error, _ = until_error(lambda: part.all_reduce(np.ones(2)) if part else comm.all_reduce(np.ones(2)))
    begun = time.monotonic()
    for one in (part, comm):
        if one is not None:
            one.abort("rank 2 is gone")
    assert time.monotonic() - begun < 5
    assert isinstance(error, (PeerLostError, AbortedError)), error  # whoever was first
    return goes_on(comm, 3)


def test_abort_of_survivors_ends(pools):
    outcomes = attempt_settled(pools(1, 1, 1, 1), case_abort_of_a_part, options=SHORT)
    assert outcomes[2].code == 3
    assert {outcomes[i].get() for i in (0, 1, 3)} == {(0, 1, 3)}


def case_other_part_lives(comm):
    """A failure in one part does not touch another that does not hold the lost rank."""
    left = comm.split(0 if comm.rank < 2 else 1)
    settle(comm)
    if comm.rank == 3:
        os.kill(os.getpid(), KILL)
    if comm.rank == 2:
        error, _ = until_error(lambda: left.all_reduce(np.ones(1)))
        return type(error).__name__
    return [int(left.all_reduce(np.array(k))) for k in range(200)][-1]


def test_a_part_without_the_lost_rank_goes_on(pools):
    outcomes = attempt_settled(pools(1, 1, 1, 1), case_other_part_lives, options=SHORT)
    assert [outcome.get() for outcome in outcomes[:3]] == [398, 398, "PeerLostError"] and outcomes[3].code == -9


def case_two_at_once(comm):
    settle(comm)
    if comm.rank in (1, 2):
        os.kill(os.getpid(), KILL)
    error, _ = until_error(lambda: comm.all_reduce(value(comm)))
    assert set(error.ranks) <= {1, 2}, error
    while comm.size > 2:  # the second may be found only in the shrunk one
        comm = comm.shrink(timeout=20)
        if comm.size > 2:
            until_error(lambda comm=comm: comm.all_reduce(value(comm)))
    return comm.world_ranks, int(comm.all_reduce(np.array(1)))


def test_two_ranks_die_at_once(pools):
    outcomes = attempt_settled(pools(1, 1, 1, 1), case_two_at_once, options=SHORT)
    assert [outcomes[i].get() for i in (0, 3)] == [((0, 3), 2), ((0, 3), 2)]


# Who comes and goes


def case_last_message(comm):
    """C085: the sender is gone before the receiver has looked at what it got."""
    if comm.rank == 0:
        comm.send(np.arange(50_000.0), 1)
        comm.send(np.arange(3.0), 1)
        sys.exit(0)
    got = comm.recv((50_000,), np.float64, 0)
    assert got[-1] == 49_999
    assert comm.recv((3,), np.float64, 0).tolist() == [0, 1, 2]
    return True


@pytest.mark.parametrize("wire", WIRES)
def test_a_sender_exits_after_its_last_message(pools, wire):
    outcomes = pools(1, 1).attempt(case_last_message, options=SHORT | WIRES[wire])
    assert outcomes[0].code == 0 and outcomes[1].get()


def case_joins_again():
    """Rank 2 is new; the others come from a world that failed, with its errors unread and its communicator open."""
    world = current()
    if world is not None:
        world.close()
    comm = jhetcc.init(**here() | {"timeout": 60.0})
    return int(comm.all_reduce(np.array(1 << comm.rank)))


def test_a_new_process_takes_the_place_of_a_killed_one(pools):
    """C069: the survivors and a new process 2 make the next world at once, at another and then at the same coordinator."""
    pool = pools(1, 1, 1)
    for _ in range(2):
        running = pool.start(case_loop, 2, 1000, "killed", options=SHORT)
        running.expect(2, word="ready")
        running.signal(2, KILL)
        running.finish()
        outcomes = pool.start(case_joins_again, world=False).finish()
        assert [outcome.get() for outcome in outcomes] == [7, 7, 7]


def case_means():
    """C065: the one that stayed, and a new one that comes a second later, agree on who is there before the first mean."""
    say("ready")
    if here()["process_id"] == 1:
        hear()
    world = current()
    if world is not None:
        world.close()
    comm = jhetcc.init(**here() | {"timeout": 60.0})
    for turn in range(10):
        data = np.arange(1_000_000, dtype=np.float32) * (comm.rank + 1) + turn
        mean = comm.all_reduce(data, op="mean")
        assert np.array_equal(mean, np.arange(1_000_000, dtype=np.float32) * 1.5 + turn), turn
    comm.barrier()
    return comm.size


@pytest.mark.parametrize("wire", WIRES)
def test_a_pair_is_joined_anew_a_second_apart(pools, wire):
    pool = pools(1, 1)
    running = pool.start(case_loop, 1, 1000, "exit", options=SHORT | WIRES[wire])
    running.finish()
    running = pool.start(case_means, options=WIRES[wire], world=False)
    running.expect(0, 1, word="ready")
    running.linger(1.0, 0)
    running.tell(1)
    for outcome in running.finish():
        assert outcome.get() == 2 and outcome.seconds < 30
    pool.renew()


def case_killed_while_joining(step):
    if here()["process_id"] == 2:
        from jhetcc.world.rendezvous import Rendezvous

        setattr(Rendezvous, step, lambda *_: os.kill(os.getpid(), KILL))
    try:
        jhetcc.init(**here() | {"timeout": 4.0})
    except jhetcc.Error as error:
        return error


@pytest.mark.parametrize("step", ["gather", "_gather_once", "_wait_for", "connect", "finish"])
def test_a_process_is_killed_while_joining(pools, step):
    """C069: at each step of joining: the others raise within the limit and name it; a retry with a new process works."""
    pool = pools(1, 1, 1)
    outcomes = pool.start(case_killed_while_joining, step, world=False).finish()
    assert outcomes[2].code == -9
    for outcome in outcomes[:2]:
        assert isinstance(outcome.get(), jhetcc.Error) and outcome.seconds < 4 + 2 * SLACK_S, outcome
        assert re.search(r"process 2\b", str(outcome.get())), outcome.get()
    outcomes = pool.start(case_joins_again, world=False).finish()
    assert [outcome.get() for outcome in outcomes] == [7, 7, 7]
