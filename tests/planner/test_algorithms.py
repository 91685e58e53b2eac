# SPDX-License-Identifier: Apache-2.0
"""Every algorithm's schedules are proven, for all operations, sizes, dtypes and chunk sizes, in place and not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_drawing import chunk_sizes, operations

from jhetcc.planner import ALGORITHMS, Layout, candidates, plan
from jhetcc.schedule import Operation, Schedule, check_marked_graph, prove

LAWS = settings(max_examples=100, deadline=None, derandomize=True)


@LAWS
@given(st.data())
def test_every_candidate_is_proven(data):
    size = data.draw(st.integers(1, 9))
    operation = data.draw(operations(size))
    layout = Layout(tuple(data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))))
    chunk = data.draw(chunk_sizes(operation))
    for name, seconds in candidates(operation, layout):
        assert seconds >= 0
        schedules = plan(operation, layout, algorithm=name, chunk_bytes=chunk).expand_all()
        proof = prove(operation, schedules)
        check_marked_graph(dict(enumerate(schedules)))
        if name in ("direct", "one_shot", "two_shot", "halving_doubling"):
            assert proof.orders <= {tuple(range(size))}
        assert all(Schedule.from_bytes(s.to_bytes()) == s for s in schedules)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("name", ["one_shot", "two_shot", "ring", "halving_doubling"])
def test_all_reduces_with_many_iterations(size, name):
    operation = Operation("psum", "f32", (70,))
    if ALGORITHMS[name].fits(operation, size) is not None:
        assert (name, size & (size - 1) != 0) == ("halving_doubling", True)
        return
    schedules = plan(operation, Layout.local(size), algorithm=name, chunk_bytes=4).expand_all()
    assert max(s.iterations(step) for s in schedules for step in range(s.steps)) >= 70 // size
    prove(operation, schedules)
    check_marked_graph(dict(enumerate(schedules)))


def test_a_ring_reduces_each_shard_round_to_its_owner():
    operation = Operation("psum", "i32", (8,))
    schedules = plan(operation, Layout.local(4), algorithm="ring").expand_all()
    assert prove(operation, schedules).orders == {(1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2), (0, 1, 2, 3)}


@LAWS
@given(st.data())
def test_point_to_point(data):
    size = data.draw(st.integers(1, 6))
    count = data.draw(st.integers(0, 40))
    chunk = data.draw(st.sampled_from([None, 4, 12]))
    layout = Layout.local(size)
    to = data.draw(st.permutations(range(size)))
    asked = {
        rank: Operation("sendrecv", "f32", (count,), to=to[rank], from_=to.index(rank), tag=7) for rank in range(size)
    }
    plans = {rank: plan(operation, layout, chunk_bytes=chunk) for rank, operation in asked.items()}
    assert len({p.hash for p in plans.values()}) == 1
    prove(asked, {rank: p.expand(rank) for rank, p in plans.items()})


@pytest.mark.parametrize("count", [0, 5])
def test_send_meets_recv_and_sendrecv(count):
    layout = Layout.local(4)
    asked = {
        0: Operation("send", "b24", (count,), to=1, tag=3),
        1: Operation("sendrecv", "b24", (count,), to=3, from_=0, tag=3),
        3: Operation("recv", "b24", (count,), from_=1, tag=3),
    }
    prove(asked, {rank: plan(operation, layout, chunk_bytes=6).expand(rank) for rank, operation in asked.items()})


def test_messages_to_itself():
    layout = Layout.local(2)
    with pytest.raises(ValueError, match="itself"):
        plan(Operation("send", "f32", (3,), to=1, tag=0), layout).expand(1)
    with pytest.raises(ValueError, match="itself"):
        plan(Operation("recv", "f32", (3,), from_=1, tag=0), layout).expand(1)
    with pytest.raises(ValueError, match="itself"):
        plan(Operation("sendrecv", "f32", (3,), to=1, from_=0, tag=0), layout).expand(1)
    own = Operation("sendrecv", "f32", (3,), to=1, from_=1, tag=0)
    prove({1: own}, {1: plan(own, layout).expand(1)})


@pytest.mark.parametrize("name", ["psum", "broadcast", "all_to_all", "reduce", "ppermute"])
def test_one_rank_needs_no_messages(name):
    keys = {"broadcast": {"root": 0}, "reduce": {"root": 0, "op": "sum"}, "ppermute": {"perm": ((0, 0),)}}
    operation = Operation(name, "f32", (1, 6), **keys.get(name, {}))
    schedule = plan(operation, Layout.local(1)).expand(0)
    assert schedule.kind.tolist() == [3]
    prove(operation, [schedule])
