# SPDX-License-Identifier: Apache-2.0
"""Nothing grows: memory, descriptors, threads; an idle process uses no processor, a waiting one little, and never Python's lock."""

import gc
import os
import threading
import time

import numpy as np
import pytest
from process_worker import hear, say

import jhetcc

KIB = 1024


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def held():
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))}


def settles(before):
    """Threads that were told to end need a moment."""
    deadline = time.monotonic() + 10
    while (more := {name for name, count in held().items() if count > before[name]}) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not more, (held(), before)


def grows(comm, call, warm, rounds):
    """Bytes of memory a call costs after the warm-up; descriptors and threads must stay the same.

    Of two halves the smaller counts: what leaks does so in both, and what an allocator once keeps is in one.
    """
    for k in range(warm):
        call(k)
    slopes = []
    for half in range(2):
        comm.barrier()
        gc.collect()
        before, memory = held(), resident()
        for k in range(rounds // 2):
            call(warm + half * (rounds // 2) + k)
        comm.barrier()
        gc.collect()
        settles(before)
        slopes.append((resident() - memory) / (rounds // 2))
    return min(slopes)


def case_small_calls(comm):
    data, out = np.ones(16), np.empty(16)
    return grows(comm, lambda _: comm.all_reduce(data, out=out), 2000, 20_000)


def case_sizes_change(comm):
    """C130: another size each time; its schedule is kept, the tables grow by no more than that."""
    data = np.ones(30_000, np.float32)
    return grows(comm, lambda k: comm.all_reduce(data[: 30_000 - k]), 1000, 2000)


def case_gathers(comm):
    """C131."""
    data = np.ones((16, 2048), np.float32)
    return grows(comm, lambda _: comm.all_gather(data), 500, 3000)


def case_messages(comm):
    data, out = np.ones(3000), np.empty(3000)

    def exchange(k):
        comm.sendrecv(data, 1 - comm.rank, 1 - comm.rank, tag=k % 50, out=out)

    return grows(comm, exchange, 1000, 5000)


def case_parts(comm):
    """C132, C133: parts made, used and dropped."""

    def part(k):
        made = comm.split(0, name=f"part{k}")
        assert made.all_reduce(np.array(k)) == 2 * k
        made.close()

    return grows(comm, part, 200, 1000)


def case_failures(comm):
    """Every failure, shrink and part afterwards gives back what it took."""

    def fail(k):
        nonlocal comm
        if comm.rank == k % 2:
            comm.abort("again")
        try:
            comm.all_reduce(np.ones(100))
        except jhetcc.Error:
            comm = comm.shrink(timeout=20)

    for k in range(10):
        fail(k)
    comm.barrier()
    before = held()
    for k in range(20):
        fail(k)
    comm.barrier()
    assert held() == before
    return 0.0


@pytest.mark.parametrize("case", [case_small_calls, case_gathers, case_messages], ids=lambda case: case.__name__)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_calls_leak_nothing(pools, case, transport):
    for slope in pools(1, 1).run(case, options={"JHETCC_TRANSPORT": transport}):
        assert slope < 50, f"{slope:.0f} bytes a call"


def test_changing_sizes_leak_nothing(pools):
    for slope in pools(1, 1).run(case_sizes_change):
        assert slope < KIB, f"{slope:.0f} bytes a call"


def test_parts_leak_nothing(pools):
    for slope in pools(1, 1).run(case_parts):
        assert slope < 4 * KIB, f"{slope:.0f} bytes a part"


def test_failures_leak_nothing(pools):
    pools(1, 1).attempt(case_failures)


def case_worlds(rounds):
    from process_worker import here

    before = held()
    for k in range(rounds):
        if k == 3:
            gc.collect()  # an attempt that came before the last world was over may be in a ring of references
            before["descriptors"] = held()["descriptors"]
        comm = jhetcc.init(**here())
        comm.barrier()
        comm.close()
    gc.collect()
    settles(before)


def test_worlds_leak_nothing(pools):
    for outcome in pools(1, 1).attempt(case_worlds, 12, world=False):
        outcome.get()


# Processor time


def case_idle(comm):
    """C134: idle for seconds with some communicators, then waiting for seconds in a call."""
    parts = [comm.split(0, name=f"part{k}") for k in range(4)]
    for part in parts:
        part.barrier()
    comm.barrier()
    shares = {}
    for name in ("idle", "waiting"):
        if comm.rank == 1:
            say(name)
        begun, used = time.monotonic(), time.process_time()
        if name == "idle" or comm.rank == 1:
            hear()
        if name == "waiting":
            comm.barrier()
        shares[name] = (time.process_time() - used) / (time.monotonic() - begun)
    for part in parts:
        part.close()
    return shares


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_waiting_costs_little(pools, transport):
    running = pools(1, 1).start(case_idle, options={"JHETCC_TRANSPORT": transport})
    running.expect(1, word="idle")
    running.linger(3)
    running.tell(0)
    running.tell(1)
    running.expect(1, word="waiting")
    running.linger(3)
    running.tell(1)
    shares = [outcome.get() for outcome in running.finish()]
    assert all(share["idle"] < 0.01 for share in shares), shares
    assert shares[0]["waiting"] < 0.2, shares


def case_lock(comm):
    """While the main thread waits in a call, another Python thread counts."""
    if comm.rank == 1:
        say("ready")
        hear()
        comm.barrier()
        comm.send(np.ones(1), 0)
        return 0
    counted, done = 0, threading.Event()

    def count():
        nonlocal counted
        while not done.is_set():
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    comm.barrier()
    comm.recv((1,), np.float64, 1)
    done.set()
    thread.join()
    return counted


def test_waiting_never_holds_the_lock(pools):
    running = pools(1, 1).start(case_lock)
    running.expect(1, word="ready")
    running.linger(1.0)
    running.tell(1)
    assert running.finish(0)[0].get() > 1000
    running.finish()


# Load


def case_gradients(comm, rounds):
    """C058: a list like the gradients of a model, many times, under load."""
    rng = np.random.default_rng(1)
    sizes = [70_000 + int(rng.integers(-1, 2)) for _ in range(15)]
    for k in range(rounds):
        for index, size in enumerate(sizes):
            got = comm.all_reduce(np.full(size, k + index + comm.rank, np.float32))
            assert (got == comm.size * (k + index) + sum(range(comm.size))).all(), (k, index)


def test_gradients_under_load(pools):
    pools(1, 1, 1).run(case_gradients, 40)
    pools(1, 1, 1).run(case_gradients, 20, options={"JHETCC_ALGORITHM": "ring", "JHETCC_TRANSPORT": "tcp"})


def case_large(comm):
    """C057: everybody writes before anybody reads."""
    data = np.arange(16_000_000, dtype=np.float32) + comm.rank
    got = comm.all_reduce(data)
    assert got[-1] == comm.size * 15_999_999 + 1 and got[0] == 1
    other = 1 - comm.rank
    assert comm.sendrecv(data, other, other)[0] == other


@pytest.mark.parametrize(
    "options", [{}, {"JHETCC_CMA": "off"}, {"JHETCC_TRANSPORT": "tcp"}], ids=["cma", "segments", "tcp"]
)
def test_large_data_in_small_pipes(pools, options):
    pools(1, 1).run(case_large, options=options)


def case_dropped(comm):
    """C082: parts that nobody closes, forgotten and collected at other times on other ranks, while others are made."""
    for k in range(50):
        part = comm.split(0, name=f"dropped{k}")
        assert part.all_reduce(np.array(k)) == comm.size * k
        del part
        if k % (comm.rank + 2) == 0:
            gc.collect()
    assert comm.all_reduce(np.array(1)) == comm.size


def test_parts_may_be_dropped(pools):
    pools(1, 1, 1).run(case_dropped)
    pools(1, 1, 1).renew()
