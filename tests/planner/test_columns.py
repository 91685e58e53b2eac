# SPDX-License-Identifier: Apache-2.0
"""All-reduces of columns: proven by the interpreter for many shapes, and what a mistake in them would look like."""

import numpy as np
import pytest

from jhetcc.planner import ALGORITHMS, Layout, Link, Profile, candidates, explain, plan, why_unfit
from jhetcc.schedule import SEND, WHOLE, Operation, ScheduleError, prove, run

SHAPES = [(1, 1), (1, 3), (2, 1), (2, 2), (2, 4), (3, 2), (3, 3), (4, 3), (5, 2), (8, 2)]  # rows, columns


def layout_of(rows, columns):
    """Every row is a host."""
    return Layout(tuple(rank // columns for rank in range(rows * columns)))


def plans(rows, columns, name="psum", dtype="f32", count=7):
    operation = Operation(name, dtype, (count,), columns=columns)
    layout = layout_of(rows, columns)
    for algorithm in ALGORITHMS:
        if why_unfit(algorithm, operation, layout) is None:
            for chunk in (None, 16):
                yield plan(operation, layout, algorithm=algorithm, chunk_bytes=chunk)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("count", [0, 1, 7])
def test_proof(rows, columns, count):
    """Every algorithm: each column by itself, in one order, and everybody has started when somebody ends."""
    for name, dtype in (("psum", "f32"), ("pmax", "i16"), ("pprod", "bf16")):
        found = list(plans(rows, columns, name, dtype, count))
        assert found
        for one in found:
            orders = prove(one.operation, one.expand_all()).orders
            assert all(len({rank % columns for rank in order}) == 1 for order in orders)


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (3, 2), (2, 3)])
def test_values(rows, columns):
    """Sums of columns; a mean divides by all ranks, for a contribution stands for its row."""
    size = rows * columns
    inputs = [np.arange(7, dtype=np.float32) * 3 + rank for rank in range(size)]
    for name, divisor in (("psum", 1), ("pmean", size)):
        for one in plans(rows, columns, name):
            outputs = run(one.operation, one.expand_all(), inputs, seed=5)
            for rank in range(size):
                want = sum(inputs[rank % columns :: columns]) / np.float32(divisor)
                np.testing.assert_array_equal(outputs[rank], want)


def test_only_columns_talk():
    """What crosses rows are the messages of a column; within a row only empty ones pass."""
    one = plan(Operation("psum", "f32", (1 << 16,), columns=4), layout_of(3, 4))
    for schedule in one.expand_all():
        for step in np.flatnonzero(schedule.kind == SEND).tolist():
            peer = int(schedule.peer[step])
            assert (peer % 4 == schedule.rank % 4) or (peer // 4 == schedule.rank // 4 and schedule.length[step] == 0)


def test_bytes():
    """A row's ranks together send what one rank would for the whole: each byte crosses once."""
    whole = plan(Operation("psum", "f32", (1 << 20,)), layout_of(2, 1)).expand(0)
    shards = plan(Operation("psum", "f32", (1 << 18,), columns=4), layout_of(2, 4))
    sent = [int(s.length[s.kind == SEND].sum()) for s in shards.expand_all()]
    assert len(set(sent)) == 1 and sum(sent[:4]) == int(whole.length[whole.kind == SEND].sum())


def test_a_row_that_does_not_meet_is_caught():
    """Without the wait for its row a rank could end before ranks of other columns have started."""
    one = plan(Operation("psum", "f32", (8,), columns=2), layout_of(2, 2))
    schedules = one.expand_all()
    for rank, schedule in enumerate(schedules):
        kept = schedule.dependency_distance != WHOLE
        ends = np.cumsum(np.concatenate([[0], kept]))[schedule.dependencies_end]
        schedules[rank] = schedule.replace(
            dependency_step=schedule.dependency_step[kept],
            dependency_distance=schedule.dependency_distance[kept],
            dependencies_end=ends,
        )
    with pytest.raises(ScheduleError, match="can complete before ranks"):
        prove(one.operation, schedules)


def test_text_and_refusals():
    """The key in the text; what does not divide, and operations without columns, are refused."""
    operation = Operation("psum", "f32", (8, 2), columns=2)
    assert operation.text() == "psum(f32[8,2], columns=2)" and Operation.parse(operation.text()) == operation
    for columns in (0, 3, -2):
        with pytest.raises(ValueError, match="do not divide 4 ranks"):
            Operation("psum", "f32", (8,), columns=columns).check(4)
    with pytest.raises(ValueError, match="nobody to divide"):
        Operation("pmean", "f32", (8,), columns=4).check(4)
    with pytest.raises(ValueError, match="has no columns"):
        Operation("reduce", "f32", (8,), op="sum", root=0, columns=2)
    with pytest.raises(ValueError, match="does not fit"):
        plan(operation, layout_of(2, 2), algorithm="hierarchical")


def test_plans_differ():
    """Ranks that mean other columns do not meet, and the report says what is done."""
    texts = [Operation("psum", "f32", (8,), columns=columns) for columns in (None, 1, 2, 4)]
    assert len({plan(one, layout_of(2, 2)).hash for one in texts}) == 4
    assert "the ranks of each of 2 columns" in explain(texts[2], layout_of(2, 2)).text()


def test_columns_share_the_links_of_their_hosts():
    """Two columns of three rows, a row a host: each host's link carries both."""
    free = {"shm": Link(0, 0), "copy": 0, "reduce": 0}
    found = []
    for profile in (Profile(tcp=Link(0, 4e-9), **free), Profile(tcp=Link(0, 4e-9), hosts=(1e-9, 1e-9, 4e-9), **free)):
        operation = Operation("psum", "f32", (3 << 20,), columns=2)
        found.append(dict(candidates(operation, Layout((0, 0, 1, 1, 2, 2), profile)))["two_shot"])
    assert found == pytest.approx([4 * 2 * (1 << 22) * 4e-9] * 2)
