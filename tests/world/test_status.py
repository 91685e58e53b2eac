# SPDX-License-Identifier: Apache-2.0
"""What status() counts: the time that operations were in flight, in programs and outside, and none where there was none."""

import threading
import time

import numpy as np
import pytest
from process_worker import hear, here, say

import jhetcc


def seconds(comm):
    return comm.status()["ranks"][0]["seconds_in_operations"]


def call_of(comm, way):
    if way == "plain buffers":
        data = np.ones(1000, np.float32)
        return lambda: comm.all_reduce(data)
    import jax

    program = jhetcc.jit(lambda x: jhetcc.psum(x))
    data = jax.numpy.ones(1000)
    return lambda: jax.block_until_ready(program(data))


def case_waiting(comm, way):
    """Rank 1 comes late; rank 0 tells from a second thread that its operation has begun. Both return what was counted, and then idle."""
    call = call_of(comm, way)
    call()
    before = seconds(comm)

    def watch():
        while comm.status()["ranks"][0]["operation"] is None:
            pass
        say("in flight")

    if comm.rank == 0:
        watcher = threading.Thread(target=watch)
        watcher.start()
        call()
        watcher.join()
    else:
        hear()
        call()
    after = seconds(comm)
    say("idle")
    hear()
    return after - before, seconds(comm) - after


@pytest.mark.parametrize("way", ["plain buffers", "jit"])
def test_time_in_operations_is_counted(pools, way):
    running = pools(1, 1, jax=way == "jit").start(case_waiting, way)
    running.expect(0, word="in flight")
    running.linger(0.3)
    running.tell(1)
    running.expect(0, 1, word="idle")
    running.linger(0.1)
    running.tell(0)
    running.tell(1)
    (waited, idle), (_, idle_too) = [outcome.get() for outcome in running.finish()]
    assert waited >= 0.3 and idle == idle_too == 0


def case_asked_meanwhile(comm):
    """The operation in flight counts, too."""
    if comm.rank == 1:
        hear()
        comm.barrier()
        return None
    waiting = threading.Thread(target=comm.barrier)
    waiting.start()
    while comm.status()["ranks"][0]["operation"] is None:
        pass
    before = seconds(comm)
    say("in flight")
    hear()
    after = seconds(comm)
    say("asked")
    waiting.join()
    return after - before


def test_the_operation_in_flight_counts(pools):
    running = pools(1, 1).start(case_asked_meanwhile)
    running.expect(0, word="in flight")
    running.linger(0.2)
    running.tell(0)
    running.expect(0, word="asked")
    running.tell(1)
    assert running.finish()[0].get() >= 0.2


def case_closed():
    comm = jhetcc.init(**here() | {"timeout": 30})
    comm.barrier()
    if comm.rank == 1:
        comm.close()
        return None
    deadline = time.monotonic() + 20
    while (path := comm.status()["ranks"][0]["paths"][1]).startswith("shm") and time.monotonic() < deadline:
        pass
    comm.close()
    return path


def test_a_path_that_was_closed_is_not_broken(pools):
    path, _ = (outcome.get() for outcome in pools(1, 1).attempt(case_closed, world=False))
    assert path.startswith("closed: rank 1"), path
