# SPDX-License-Identifier: Apache-2.0
"""How programs use communicators: everybody sends first, several threads; and what is offered for which dtype."""

import random
import threading
import time

import numpy as np
import pytest
import raw_cases

import jhetcc
from jhetcc.schedule import can_reduce
from jhetcc.world.raw import dtype_name

WIRES = {"shm": {}, "shared segments": {"JHETCC_CMA": "off"}, "tcp": {"JHETCC_TRANSPORT": "tcp"}}


# The table of what is offered


def case_table(comm):
    """Each dtype with each reduction and each uneven operation: done, or refused by name on every rank; nothing is sent then."""
    found = {}
    for dtype in raw_cases.REDUCE + raw_cases.MOVE:
        for op in raw_cases.OPS:
            data = raw_cases.contributions(comm, (5,), dtype)[comm.rank]
            try:
                comm.all_reduce(data, op)
            except jhetcc.BadArgumentError as error:
                assert op in str(error) and dtype.name in str(error), error
                found[dtype.name, op] = False
            else:
                found[dtype.name, op] = True
        raw_cases.check_lengths(comm, dtype, [3, 0, 2, 1][: comm.size])
    comm.barrier()
    return found


@pytest.mark.parametrize("wire", WIRES)
def test_every_cell_of_the_table_holds(pools, wire):
    """C028: operation by dtype, and uneven gathers and scatters of every dtype, the same on every transport."""
    for found in pools(1, 1, 1).run(case_table, options=WIRES[wire]):
        for (name, op), done in found.items():
            assert done == can_reduce(dtype_name(raw_cases.named(name)), op), (name, op)


# Messages


def case_all_send_first(comm, count):
    comm.barrier()
    for peer in range(comm.size):
        if peer != comm.rank:
            comm.send(np.full(count, comm.rank, np.uint8), peer)
    for peer in range(comm.size):
        if peer != comm.rank:
            assert (comm.recv((count,), np.uint8, peer) == peer).all()


@pytest.mark.parametrize("wire", WIRES)
def test_everybody_sends_first(pools, wire):
    """C086, C087: ends the same way for 4 bytes and for 64 MB, at once: no hidden size decides."""
    ends = set()
    for count in (4, 20_000, 64_000_000):
        outcomes = pools(1, 1, 1).attempt(
            case_all_send_first, count, options=WIRES[wire] | {"JHETCC_OPERATION_TIMEOUT": "60s"}
        )
        for outcome in outcomes:
            assert outcome.seconds < 20, outcome
            assert outcome.error is None or (
                isinstance(outcome.error, jhetcc.Error) and "send(u8[" in str(outcome.error)
            ), outcome.error
            ends.add(getattr(outcome.error, "code", "done"))
    assert len(ends) == 1, ends


# Threads


def case_threads(comm, rounds):
    """Three communicators in three threads, without an order: values are right, or the use is refused on all ranks."""
    parts = [comm.split(0, name=f"thread{k}") for k in range(3)]
    ends = []

    def work(part, seed):
        rng = random.Random(seed)
        try:
            for k in range(rounds):
                for _ in range(rng.randrange(2000)):
                    pass
                assert part.all_reduce(np.array(k)) == comm.size * k
            ends.append("done")
        except jhetcc.Error as error:
            ends.append(error.code)
        except Exception as error:
            ends.append(repr(error))

    threads = [threading.Thread(target=work, args=(part, 10 * comm.rank + k)) for k, part in enumerate(parts)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - begun < 30
    for part in parts:
        part.close()
    return ends


def test_communicators_in_several_threads(pools):
    """C083: ends soon, with right values or with an error that says why."""
    options = {"JHETCC_OPERATION_TIMEOUT": "60s"}
    for outcome in pools(1, 1).attempt(case_threads, 50, options=options):
        ends = outcome.get()
        assert len(ends) == 3 and set(ends) <= {"done", "wait_cycle", "second_thread"}, ends


def case_overlap(comm):
    """What shares a part of its memory with the input is refused; the input itself is not, nor a neighbour."""
    memory = np.zeros(3000)
    told = []
    for out in (memory[1:1001], memory[999:1999]):
        try:
            comm.all_reduce(memory[:1000], out=out)
        except jhetcc.BadArgumentError as error:
            told.append((error.code, str(error)))
    comm.all_gather(memory[:1000], out=memory[1000:3000].reshape(2, 1000))
    comm.all_reduce(memory[:1000], out=memory[:1000])
    return told


def test_results_that_overlap_the_input_in_part_are_refused(pools):
    for outcome in pools(1, 1).attempt(case_overlap):
        (code, text), second = outcome.get()
        assert (
            code == second[0] == "overlap" and "psum(f64[1000])" in text and "or, where both have the same size" in text
        )
