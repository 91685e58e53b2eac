# SPDX-License-Identifier: Apache-2.0
"""The interpreter: what it refuses, by hand-written schedules, and what it computes."""

from __future__ import annotations

import numpy as np
import pytest

from jhetcc.planner import ALGORITHMS, Layout, plan
from jhetcc.schedule import (
    WHOLE,
    Builder,
    Operation,
    Plan,
    ScheduleError,
    check_marked_graph,
    numpy_dtype,
    prove,
    reduce_terms,
    run,
)
from jhetcc.schedule.expected import ZERO, contributions

PSUM = Operation("psum", "f32", (4,))
PAIR = Operation("ppermute", "f32", (4,), perm=((0, 1), (1, 0)))


def by_hand(operation, *writers, chunk=64):
    """Schedules of as many ranks as there are writers, each a function of a builder."""
    made = Plan(operation, len(writers), "by hand", chunk, lambda plan, rank: None)
    schedules = []
    for rank, write in enumerate(writers):
        builder = Builder(made, rank)
        write(builder)
        schedules.append(builder.finish())
    return schedules


def swap_beside(b):
    peer = 1 - b.rank
    place = b.ring(16, 2)
    sent, got = b.send(peer, b.input(), 16), b.recv(peer, place, 16)
    copied = b.copy(b.output(), place, 16, after=[sent, got])
    b.reuse(got, place, copied)


def swap_after(b):
    sent = b.send(1 - b.rank, b.input(), 16)
    b.recv(1 - b.rank, b.output(), 16, after=[sent])


def swap_at_once(b):
    b.send(1 - b.rank, b.input(), 16)
    b.recv(1 - b.rank, b.output(), 16)


@pytest.mark.parametrize("chunk", [4, 8, 64])
def test_a_right_swap_is_proven(chunk):
    schedules = by_hand(PAIR, swap_beside, swap_beside, chunk=chunk)
    prove(PAIR, schedules)
    check_marked_graph(dict(enumerate(schedules)))


def test_a_swap_that_waits_for_its_own_send_gets_stuck():
    schedules = by_hand(PAIR, swap_after, swap_after)
    with pytest.raises(ScheduleError, match="can never complete: the waits form a cycle"):
        prove(PAIR, schedules)
    with pytest.raises(ScheduleError, match="cycle of waits without a token"):
        check_marked_graph(dict(enumerate(schedules)))
    prove(PAIR, by_hand(PAIR, swap_after, swap_beside))  # one side beside is enough


def test_a_race_in_place_only():
    schedules = by_hand(PAIR, swap_at_once, swap_at_once)
    prove(PAIR, schedules, in_place=False)
    with pytest.raises(ScheduleError, match=r"rank 0 step 0 \(send\).* race on input bytes 0 to 16, in place"):
        prove(PAIR, schedules)


def test_a_completed_send_tells_nothing_of_its_receiver():
    def tells(b):
        b.copy(b.output(), b.input(), 16, after=[b.send(1, b.input(), 0)])

    def hears(b):
        b.recv(0, b.output(), 0)
        b.copy(b.output(), b.input(), 16)

    operation = Operation("ppermute", "f32", (4,), perm=((0, 0), (1, 1)))
    with pytest.raises(ScheduleError, match=r"rank 0 can complete before ranks \[1\] have started"):
        prove(operation, by_hand(operation, tells, hears))


def one_shot(order, after_sends=True, final=True):
    def write(b):
        peer = 1 - b.rank
        place = b.ring(16, 2)
        sent, got = b.send(peer, b.input(), 16), b.recv(peer, place, 16)
        sources = [b.input() if rank == b.rank else place for rank in order]
        after = [got, sent] if after_sends else [got]
        b.reuse(got, place, b.reduce(b.output(), sources, 16, final=final, after=after))

    return write


@pytest.mark.parametrize(
    ("writers", "why"),
    [
        ((one_shot((0, 1)), one_shot((1, 0))), "another order"),
        ((one_shot((0, 1, 1)), one_shot((0, 1, 1))), "holds"),
        ((one_shot((0,)), one_shot((0,))), "holds"),
        ((one_shot((0, 1), final=False),) * 2, "final"),
        ((one_shot((0, 1), after_sends=False),) * 2, "race"),
    ],
)
def test_wrong_all_reduces(writers, why):
    prove(PSUM, by_hand(PSUM, one_shot((0, 1)), one_shot((0, 1))))
    with pytest.raises(ScheduleError, match=why):
        prove(PSUM, by_hand(PSUM, *writers))


def test_half_precision_is_reduced_in_one_step():
    def in_two(b):
        places = [b.ring(8, 2) for _ in range(2)]
        sent = [b.send(peer, b.input(), 8) for peer in b.others()]
        got = [b.recv(peer, place, 8) for peer, place in zip(sorted(b.others()), places, strict=True)]
        ranked = iter(places)
        sources = [b.input() if rank == b.rank else next(ranked) for rank in range(3)]
        partial = b.ring(8, 2)
        first = b.reduce(partial, sources[:2], 8, after=got)
        b.reduce(b.output(), [partial, sources[2]], 8, final=True, after=[first, *got, *sent])

    f32 = Operation("psum", "f32", (2,))
    prove(f32, by_hand(f32, in_two, in_two, in_two))
    f16 = Operation("psum", "f16", (4,))
    with pytest.raises(ScheduleError, match="f16 must be reduced in one step"):
        prove(f16, by_hand(f16, in_two, in_two, in_two))


def test_what_nothing_wrote():
    def reads(b):
        swap_beside(b)
        b.copy(b.output(), b.ring(16, 1), 16, after=[2])

    def leaves(b):
        peer = 1 - b.rank
        b.send(peer, b.input(), 8)
        b.recv(peer, b.output(), 8)

    with pytest.raises(ScheduleError, match=r"step 3 \(copy\) iteration 0 reads what nothing wrote"):
        prove(PAIR, by_hand(PAIR, reads, reads))
    with pytest.raises(ScheduleError, match="output element 2: nothing wrote it"):
        prove(PAIR, by_hand(PAIR, leaves, leaves), in_place=False)


def test_messages_need_two_sides_of_one_length():
    def short(b):
        b.send(1 - b.rank, b.input(), 16)
        b.recv(1 - b.rank, b.output(), 12)

    def silent(b):
        b.recv(1 - b.rank, b.output(), 16)

    with pytest.raises(ScheduleError, match="message from 0 to 1 in stream 0: 16 bytes are sent and 12 received"):
        prove(PAIR, by_hand(PAIR, short, short))
    with pytest.raises(ScheduleError, match="message from 1 to 0 in stream 0: nobody sends it"):
        prove(PAIR, by_hand(PAIR, swap_at_once, silent))


def test_a_ring_without_its_back_dependency_races():
    def write(b):
        peer = 1 - b.rank
        place = b.ring(16, 2)
        assert place.wrap == 2
        sent, got = b.send(peer, b.input(), 16), b.recv(peer, place, 16)
        b.copy(b.output(), place, 16, after=[sent, got])

    with pytest.raises(ScheduleError, match="race on scratch"):
        prove(PAIR, by_hand(PAIR, write, write, chunk=4))


def test_a_whole_dependency_on_a_cycle_is_stuck():
    def write(b):
        peer = 1 - b.rank
        place = b.ring(16, 2)
        sent, got = b.send(peer, b.input(), 16), b.recv(peer, place, 16)
        copied = b.copy(b.output(), place, 16, after=[sent, (got, WHOLE)])
        b.reuse(got, place, copied)

    schedules = by_hand(PAIR, write, write, chunk=4)
    with pytest.raises(ScheduleError, match="waits for itself"):
        prove(PAIR, schedules)
    with pytest.raises(ScheduleError, match="without a token"):
        check_marked_graph(dict(enumerate(schedules)))


def test_the_window_of_messages_under_way_can_block():
    # Everything is sent before anything is received: fine while all of it fits into the window.
    def write(b):
        sent = b.send(1 - b.rank, b.input(), 16)
        place = b.ring(16, 4)
        got = b.recv(1 - b.rank, place, 16)
        b.copy(b.output(), place, 16, after=[(got, WHOLE), (sent, WHOLE)])

    prove(PAIR, by_hand(PAIR, write, write, chunk=4))


def test_headers_must_fit_the_operation():
    schedules = plan(PSUM, Layout.local(2)).expand_all()
    for wrong, why in (
        (Operation("psum", "f32", (5,)), "input and output bytes"),
        (Operation("pmax", "f32", (4,)), "are not those of"),
        (Operation("psum", "i32", (4,)), "are not those of"),
    ):
        with pytest.raises(ScheduleError, match=why):
            prove(wrong, schedules)
    with pytest.raises(ScheduleError, match="rank 1"):
        prove(PSUM, [schedules[0], schedules[1].replace(plan_hash=1)])
    with pytest.raises(ScheduleError, match="holds the schedule of rank"):
        prove(PSUM, schedules[::-1])
    with pytest.raises(ScheduleError, match="all 2"):
        prove(PSUM, schedules[:1])


def inputs_of(operation, size):
    generator = np.random.default_rng(size)
    count = operation.nbytes // operation.itemsize
    kind = numpy_dtype(operation.dtype)
    if kind.kind == "V":
        return [generator.integers(0, 256, operation.nbytes, np.uint8).view(kind) for _ in range(size)]
    return [(generator.standard_normal(count) * 50).astype(kind) for _ in range(size)]


def oracle(operation, size, rank, inputs):
    """The output by the table of contributions, element by element, in rank order."""
    op, kind = operation.reduction, numpy_dtype(operation.dtype)
    result = np.zeros(operation.output_bytes(size) // operation.itemsize, kind)
    for e, pairs in enumerate(contributions(operation, size, rank)):
        if pairs == ZERO:
            continue
        values = [inputs[q][i : i + 1] for q, i in pairs]
        divisor = size if op == "mean" else 0
        result[e] = (values[0] if op == "none" else reduce_terms(values, operation.dtype, op, divisor))[0]
    return result


OPERATIONS = [
    Operation("psum", "f32", (37,)),
    Operation("pmean", "bf16", (37,)),
    Operation("pmax", "f16", (20,)),
    Operation("pprod", "i32", (11,)),
    Operation("reduce", "c64", (9,), op="prod", root=2),
    Operation("psum_scatter", "f16", (3, 10), op="mean"),
    Operation("all_gather", "b24", (7,)),
    Operation("all_gather", "f32", (4, 2), lengths=(1, 0, 4)),
    Operation("gather", "u8", (7,), root=1),
    Operation("scatter", "f64", (5, 3), root=1, lengths=(0, 2, 3)),
    Operation("all_to_all", "i16", (3, 8)),
    Operation("ppermute", "i8", (21,), perm=((0, 1), (1, 2), (2, 0))),
    Operation("ppermute", "i8", (21,), perm=((0, 2),)),
    Operation("broadcast", "f32", (33,), root=2),
    Operation("barrier"),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.text())
def test_values_are_the_oracles_in_any_interleaving(operation):
    size, layout = 3, Layout.local(3)
    names = [name for name, algorithm in ALGORITHMS.items() if algorithm.fits(operation, size) is None]
    inputs = inputs_of(operation, size) if operation.dtype else [np.zeros(0, np.uint8)] * size
    for name in names:
        made = plan(operation, layout, algorithm=name, chunk_bytes=3 * operation.itemsize)
        schedules = made.expand_all()
        for in_place in (False, True):
            for seed in (None, 1, 2):
                outputs = run(operation, schedules, inputs, in_place=in_place, seed=seed)
                for rank in range(size):
                    wanted = oracle(operation, size, rank, inputs) if operation.dtype else np.zeros(0, np.uint8)
                    if name == "ring" and operation.reduction in ("sum", "mean", "prod") and operation.dtype != "i32":
                        assert np.allclose(outputs[rank], wanted, rtol=1e-5, atol=1e-4)
                        assert operation.name != "psum" or outputs[rank].tobytes() == outputs[0].tobytes()
                    else:
                        assert outputs[rank].tobytes() == wanted.tobytes()


def test_inputs_of_the_wrong_length_are_refused():
    schedules = plan(PSUM, Layout.local(2)).expand_all()
    with pytest.raises(ScheduleError, match="rank 1: the input has 12 bytes, the schedule wants 16"):
        run(PSUM, schedules, [np.zeros(4, np.float32), np.zeros(3, np.float32)])
