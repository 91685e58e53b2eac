# SPDX-License-Identifier: Apache-2.0
"""Native steps, by hand: what a library's calls mean, in which order they are made, and what must be refused."""

from __future__ import annotations

import numpy as np
import pytest

from jhetcc.schedule import (
    Builder,
    Operation,
    Place,
    Plan,
    Schedule,
    ScheduleError,
    check_marked_graph,
    pipelined_seconds,
    prove,
    run,
)
from jhetcc.schedule.graph import check_live
from jhetcc.schedule.program import Program
from jhetcc.schedule.value import NATIVE_BROADCAST, NATIVE_REDUCE, SCRATCH, Circle

PSUM = Operation("psum", "f32", (12,))


def by_hand(operation: Operation, writers, chunk: int = 16, agreed: bool = True) -> list[Schedule]:
    """What each rank's writer writes, after a round in which all hear of all unless told not to."""
    plan = Plan(operation, len(writers), "by hand", chunk, lambda plan, rank: None)
    result = []
    for rank, write in enumerate(writers):
        b = Builder(plan, rank)
        if agreed:
            for peer in b.others():
                b.send(peer, b.input(), 0, 99)
            b.hold_native([b.recv(peer, b.output(), 0, 99) for peer in b.others()])
        write(b)
        result.append(Schedule.from_bytes(b.finish().to_bytes()))
    return result


def reduce_and_broadcast(members=(0, 1, 2), root=1, lag=1, wait=True):
    def write(b: Builder) -> None:
        step = b.native_reduce(members, root, b.input(), b.output(), b.input_bytes)
        after = [step] if wait else []
        b.native_broadcast(members, root, b.output(), b.output(), b.output_bytes, lag=lag, after=after)

    return write


def test_a_reduction_and_a_broadcast_make_an_all_reduce():
    schedules = by_hand(PSUM, [reduce_and_broadcast()] * 3)
    proof = prove(PSUM, schedules)
    check_marked_graph(dict(enumerate(schedules)))
    assert proof.orders == {(0, 1, 2)}
    assert proof.terms[0][5] == ("native", None, *(("input", rank, 5) for rank in range(3)))
    inputs = [np.full(12, rank + 1, np.float32) for rank in range(3)]
    for in_place in (False, True):
        assert all(x.tolist() == [6.0] * 12 for x in run(PSUM, schedules, inputs, in_place=in_place).values())
    assert schedules[0].circles == [Circle((0, 1, 2), 0), Circle((0, 1, 2), 1)]
    text = str(schedules[0])
    assert "native_reduce" in text and "circle 1: ranks 0 1 2, lag 1" in text and "root 1" in text


def test_calls_are_made_by_iteration_and_lag():
    s = by_hand(PSUM, [reduce_and_broadcast()] * 3, agreed=False)[1]
    assert s.native_order() == [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (1, 2)]


def test_what_a_library_writes_while_it_still_reads_is_a_race():
    schedules = by_hand(PSUM, [reduce_and_broadcast(wait=False), reduce_and_broadcast(), reduce_and_broadcast()])
    prove(PSUM, schedules, in_place=False)
    with pytest.raises(ScheduleError, match="race on input bytes 0 to 16, in place"):
        prove(PSUM, schedules)


def test_what_is_sent_before_all_have_called_is_refused():
    writers = [reduce_and_broadcast(), reduce_and_broadcast(wait=False), reduce_and_broadcast()]
    with pytest.raises(ScheduleError, match="rank 0 can complete before ranks"):
        prove(PSUM, by_hand(PSUM, writers, agreed=False))


def test_a_call_that_all_have_not_agreed_on_is_refused():
    """Who calls something else must be known before anyone is inside a library that cannot be called back."""
    schedules = by_hand(PSUM, [reduce_and_broadcast()] * 3)
    prove(PSUM, schedules)
    with pytest.raises(
        ScheduleError, match=r"step 0 \(native_reduce\) iteration 0 can be called before ranks \[1, 2\]"
    ):
        prove(PSUM, by_hand(PSUM, [reduce_and_broadcast()] * 3, agreed=False))
    for rank, s in enumerate(schedules):
        first = int(np.flatnonzero(s.kind == NATIVE_REDUCE)[0])
        for dropped in range(len(s.dependencies(first))):
            kept = [item for place, item in enumerate(s.dependencies(first)) if place != dropped]
            mutant = with_dependencies(s, first, kept)
            with pytest.raises(ScheduleError, match=rf"rank {rank} step {first} .* can be called before"):
                prove(PSUM, [*schedules[:rank], mutant, *schedules[rank + 1 :]])


def with_dependencies(s: Schedule, step: int, kept: list[tuple[int, int]]) -> Schedule:
    every = [kept if one == step else s.dependencies(one) for one in range(s.steps)]
    flat = [item for items in every for item in items]
    return s.replace(
        dependencies_end=np.cumsum([len(items) for items in every]),
        dependency_step=[on for on, _ in flat],
        dependency_distance=[distance for _, distance in flat],
    )


@pytest.mark.parametrize(
    ("writers", "why"),
    [
        ([reduce_and_broadcast(), reduce_and_broadcast(root=0), reduce_and_broadcast()], "different calls"),
        ([reduce_and_broadcast(), reduce_and_broadcast(), lambda b: None], "different numbers of calls"),
        ([reduce_and_broadcast(), reduce_and_broadcast(lag=2), reduce_and_broadcast()], "numbers of calls"),
        ([reduce_and_broadcast((0, 1)), reduce_and_broadcast((0, 1)), lambda b: None], r"holds .*not .*\(2, 0\)"),
    ],
)
def test_calls_that_do_not_meet_are_refused(writers, why):
    with pytest.raises(ScheduleError, match=why):
        prove(PSUM, by_hand(PSUM, writers))


def test_calls_in_another_order_on_one_rank_are_caught():
    def write(turned: bool):
        def steps(b: Builder) -> None:
            for root in (1, 0) if turned else (0, 1):
                half = b.input_bytes // 2
                b.native_reduce((0, 1), root, b.input(root * half), b.output(root * half), half)

        return steps

    with pytest.raises(ScheduleError, match="different calls"):
        prove(PSUM, by_hand(PSUM, [write(False), write(True)]))


def test_two_circles_in_crossed_order_get_stuck():
    """Ranks that block in calls of two communicators, each in the other order, wait for ever."""
    operation = Operation("psum", "f32", (4,))

    def write(order):
        def steps(b: Builder) -> None:
            for members in order:
                b.native_all_reduce(members, b.input(), b.ring(16, 1), 16)

        return steps

    one, other = (0, 1), (1, 0)  # two communicators of the same ranks
    stuck = by_hand(operation, [write((one, other)), write((other, one))])
    with pytest.raises(ScheduleError, match="cycle"):
        check_live(Program(dict(enumerate(stuck))))
    with pytest.raises(ScheduleError, match="cycle"):
        check_marked_graph(dict(enumerate(stuck)))
    check_marked_graph(dict(enumerate(by_hand(operation, [write((one, other))] * 2))))


def test_a_lag_lets_the_next_chunk_start_before_the_last_stage_of_this_one():
    """With no lag, the order of calls holds the next reduction up until this chunk's broadcast is made."""

    def write(b: Builder) -> None:
        slot = b.ring(b.input_bytes, 4)
        step = b.native_reduce((0, 1), 0, b.input(), slot, b.input_bytes)
        if b.rank == 0:
            sent = b.send(2, slot, b.input_bytes, after=[step])
            b.reuse(step, slot, sent)
            step = b.recv(2, b.output(), b.output_bytes, after=[step])
        b.native_broadcast((0, 1), 0, b.output(), b.output(), b.output_bytes, lag=3, after=[step])

    def other(b: Builder) -> None:
        slot = b.ring(b.input_bytes, 4)
        recv = b.recv(0, slot, b.input_bytes)
        step = b.reduce(b.output(), [slot, b.input()], b.input_bytes, final=True, after=[recv])
        b.reuse(recv, slot, step)
        b.send(0, b.output(), b.output_bytes, after=[step])

    operation = Operation("psum", "f32", (4 * 64,))
    schedules = by_hand(operation, [write, write, other])
    prove(operation, schedules)

    def total(made) -> float:
        return pipelined_seconds(dict(enumerate(made)), lambda s, step: 1.0 if s.length[step] else 0.0)

    without = [s.replace(circle_lag=np.zeros_like(s.circle_lag)) for s in schedules]
    assert total(schedules) < 0.6 * total(without)


def test_a_lag_that_rings_cannot_hold_gets_stuck():
    def write(b: Builder) -> None:
        slot = b.ring(b.input_bytes, 2)
        step = b.native_reduce((0, 1), 0, b.input(), slot, b.input_bytes)
        if b.rank == 0:
            last = b.native_broadcast((0, 1), 0, slot, slot, b.output_bytes, lag=2, after=[step])
            b.reuse(step, slot, b.copy(b.output(), slot, b.output_bytes, after=[step, last]))
        else:
            b.native_broadcast((0, 1), 0, b.output(), b.output(), b.output_bytes, lag=2, after=[step])

    schedules = by_hand(PSUM, [write, write])
    with pytest.raises(ScheduleError, match="cycle"):
        check_live(Program(dict(enumerate(schedules))))
    with pytest.raises(ScheduleError, match="cycle"):
        check_marked_graph(dict(enumerate(schedules)))


def test_bits_of_a_library_without_promise_are_not_taken_for_equal():
    schedules = by_hand(PSUM, [lambda b: b.native_all_reduce((0, 1), b.input(), b.output(), b.input_bytes)] * 2)
    prove(PSUM, schedules, uniform=True)
    with pytest.raises(ScheduleError, match="another order"):
        prove(PSUM, schedules)


def test_a_library_sums_and_does_not_divide():
    operation = Operation("pmean", "f32", (4,))

    def write(divide: bool):
        def steps(b: Builder) -> None:
            step = b.native_all_reduce((0, 1), b.input(), b.output(), b.input_bytes)
            if divide:
                b.reduce(b.output(), [b.output()], b.output_bytes, final=True, after=[step])

        return steps

    with pytest.raises(ScheduleError, match="divided"):
        prove(operation, by_hand(operation, [write(False)] * 2), uniform=True)
    schedules = by_hand(operation, [write(True)] * 2)
    prove(operation, schedules, uniform=True)
    assert run(operation, schedules, [np.float32([1, 2, 3, 4])] * 2)[1].tolist() == [1, 2, 3, 4]


def _changed(s: Schedule, name: str, index: int, value: int) -> Schedule:
    column = np.array(getattr(s, name))
    column[index] = value
    return s.replace(**{name: column})


@pytest.mark.parametrize(
    ("name", "index", "value", "why"),
    [
        ("kind", 0, 8, "no kind 8"),
        ("stream", 0, 2, "names circle 2 of 2"),
        ("peer", 0, 3, "3 is no root"),
        ("peer", 0, -1, "-1 is no root"),
        ("circle_rank", 0, 7, "each once"),
        ("circle_rank", 0, 1, "each once"),
        ("circle_end", 0, 1, "not two or more"),
        ("circle_end", 1, 5, "does not ascend"),
        ("target_buffer", 0, SCRATCH, "target"),
        ("length", 0, 6, "length"),
    ],
)
def test_damaged_native_steps_are_refused(name, index, value, why):
    s = by_hand(PSUM, [reduce_and_broadcast(root=1)] * 3, agreed=False)[0]
    assert s.kind.tolist() == [NATIVE_REDUCE, NATIVE_BROADCAST] and s.target(0) == Place(0)
    with pytest.raises(ValueError, match=why):
        Schedule.from_bytes(_changed(s, name, index, value).to_bytes())


def test_a_circle_of_one_is_refused():
    with pytest.raises(ValueError, match="not two or more"):
        by_hand(PSUM, [lambda b: b.native_all_reduce((0,), b.input(), b.output(), b.input_bytes), lambda b: None])


def test_low_precision_is_rounded_by_libraries_and_once_by_us():
    operation = Operation("psum", "bf16", (4,))

    def write(native: bool):
        def steps(b: Builder) -> None:
            part = b.ring(8, 1)
            step = b.native_all_reduce((0, 1), b.input(), part, 8) if b.rank < 2 else b.copy(part, b.input(), 8)
            if not native:
                step = b.reduce(part, [part], 8, after=[step])
            sent = [b.send(peer, part, 8, after=[step]) for peer in range(3) if (peer == 2) != (b.rank == 2)]
            other = b.ring(8, 1)
            source = 0 if b.rank == 2 else 2
            got = b.recv(source, other, 8, after=[])
            if b.rank == 2:
                b.recv(1, b.ring(8, 1), 8)
            parts = [other, part] if b.rank == 2 else [part, other]
            b.reduce(b.output(), parts, 8, final=True, after=[got, step, *sent])

        return steps

    prove(operation, by_hand(operation, [write(True)] * 3), uniform=True)
    with pytest.raises(ScheduleError, match="one step"):
        prove(operation, by_hand(operation, [write(False)] * 3), uniform=True)


def test_a_rank_outside_a_circle_is_refused():
    s = by_hand(PSUM, [reduce_and_broadcast((0, 1)), reduce_and_broadcast((0, 1)), lambda b: None], agreed=False)[0]
    with pytest.raises(ValueError, match="which rank 2 is not in"):
        Schedule.from_bytes(s.replace(rank=2).to_bytes())


def test_schedules_without_native_steps_have_the_form_they_had():
    s = by_hand(PSUM, [lambda b: b.copy(b.output(), b.input(), 48)])[0]
    assert len(s.to_bytes()) == 72 + 37 + 13 and s.to_bytes()[14:16] == b"\0\0" and s.to_bytes()[28:32] == b"\0" * 4
