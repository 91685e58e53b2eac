# SPDX-License-Identifier: Apache-2.0
"""A schedule with one thing wrong must not pass; and the schedules of the hot paths hold no dependency without need."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planner_drawing import operations

from jhetcc.planner import Layout, candidates, plan
from jhetcc.schedule import Operation, Schedule, ScheduleError, prove
from jhetcc.schedule.value import RECV, REDUCE, SEND

LAWS = settings(max_examples=70, deadline=None, derandomize=True)


def rebuilt(s: Schedule, steps: list[int], **changes) -> Schedule:
    """The schedule with these of its steps, in this order; dependencies on missing steps are dropped."""
    place = {}
    for new, old in enumerate(steps):
        place.setdefault(old, new)
    sources = [s.sources(step) for step in steps]
    after = [[(place[on], d) for on, d in s.dependencies(step) if on in place] for step in steps]
    flat, flat_after = [p for places in sources for p in places], [a for items in after for a in items]
    columns = {name: getattr(s, name)[steps] for name in ("kind", "final", "stream", "peer", "length")}
    columns |= {f"target_{name}": getattr(s, f"target_{name}")[steps] for name in ("buffer", "offset", "wrap")}
    columns |= {f"source_{name}": [p[i] for p in flat] for i, name in enumerate(("buffer", "offset", "wrap"))}
    columns |= {
        "sources_end": np.cumsum([len(p) for p in sources]),
        "dependencies_end": np.cumsum([len(a) for a in after]),
    }
    columns |= {"dependency_step": [a[0] for a in flat_after], "dependency_distance": [a[1] for a in flat_after]}
    return s.replace(**columns | changes)


def without_dependency(s: Schedule, index: int) -> Schedule:
    keep = np.arange(len(s.dependency_step)) != index
    ends = s.dependencies_end - (s.dependencies_end > index)
    return s.replace(
        dependency_step=s.dependency_step[keep], dependency_distance=s.dependency_distance[keep], dependencies_end=ends
    )


def changed(s: Schedule, name: str, index: int, value: int) -> Schedule:
    column = np.array(getattr(s, name))
    column[index] = value
    return s.replace(**{name: column})


def refused(operation: Operation, schedules: list[Schedule]) -> None:
    with pytest.raises(ScheduleError):
        prove(operation, schedules)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", ["one_shot", "two_shot", "ring"])
def test_every_dependency_is_needed(name, size):
    operation = Operation("psum", "f32", (12 * size,))
    schedules = plan(operation, Layout.local(size), algorithm=name, chunk_bytes=4).expand_all()
    prove(operation, schedules)
    for rank, s in enumerate(schedules):
        for index in range(len(s.dependency_step)):
            mutant = without_dependency(s, index)
            refused(operation, [*schedules[:rank], mutant, *schedules[rank + 1 :]])


@pytest.mark.parametrize("name", ["all_to_all", "psum_scatter", "ppermute", "reduce"])
def test_every_dependency_of_the_direct_exchange_is_needed(name):
    keys = {"ppermute": {"perm": ((0, 1), (1, 0))}, "reduce": {"root": 1, "op": "sum"}}.get(name, {})
    operation = Operation(name, "f32", (2, 12), **keys)
    schedules = plan(operation, Layout.local(2), chunk_bytes=4).expand_all()
    for rank, s in enumerate(schedules):
        for index in range(len(s.dependency_step)):
            mutant = without_dependency(s, index)
            refused(operation, [*schedules[:rank], mutant, *schedules[rank + 1 :]])


@st.composite
def planned(draw):
    size = draw(st.integers(2, 5))
    operation = draw(operations(size, count_max=40))
    name = draw(st.sampled_from([name for name, _ in candidates(operation, Layout.local(size))]))
    chunk = draw(st.sampled_from([None, operation.itemsize, 3 * operation.itemsize]))
    schedules = plan(operation, Layout.local(size), algorithm=name, chunk_bytes=chunk).expand_all()
    rank = draw(st.integers(0, size - 1))
    assume(schedules[rank].steps > 0)
    return operation, schedules, rank, draw(st.integers(0, schedules[rank].steps - 1))


@LAWS
@given(planned())
def test_a_dropped_step_is_caught(case):
    operation, schedules, rank, step = case
    s = schedules[rank]
    mutant = rebuilt(s, [other for other in range(s.steps) if other != step])
    refused(operation, [*schedules[:rank], mutant, *schedules[rank + 1 :]])


@LAWS
@given(planned())
def test_a_doubled_step_is_caught(case):
    operation, schedules, rank, step = case
    s = schedules[rank]
    mutant = rebuilt(s, [*range(s.steps), step])
    refused(operation, [*schedules[:rank], mutant, *schedules[rank + 1 :]])


@LAWS
@given(planned(), st.integers(1, 3))
def test_a_shifted_target_is_caught(case, items):
    operation, schedules, rank, step = case
    s = schedules[rank]
    assume(s.kind[step] != SEND and s.length[step] > 0)
    target = int(s.target_offset[step])
    shifted = changed(s, "target_offset", step, target + items * operation.itemsize)
    refused(operation, [*schedules[:rank], shifted, *schedules[rank + 1 :]])


@LAWS
@given(planned(), st.integers(1, 3))
def test_a_shifted_source_is_caught(case, items):
    operation, schedules, rank, step = case
    s = schedules[rank]
    places = s.sources(step)
    assume(places and s.length[step] > 0)
    begin = int(s.sources_end[step]) - len(places)
    shifted = changed(s, "source_offset", begin, places[0].offset + items * operation.itemsize)
    refused(operation, [*schedules[:rank], shifted, *schedules[rank + 1 :]])


@LAWS
@given(planned(), st.integers(1, 4))
def test_a_swapped_peer_is_caught(case, turn):
    operation, schedules, rank, step = case
    s = schedules[rank]
    assume(s.kind[step] in (SEND, RECV))
    peer = (int(s.peer[step]) + turn) % len(schedules)
    assume(peer != s.peer[step])
    refused(operation, [*schedules[:rank], changed(s, "peer", step, peer), *schedules[rank + 1 :]])


@LAWS
@given(planned())
def test_two_messages_that_change_places_are_caught(case):
    operation, schedules, rank, _ = case
    s = schedules[rank]
    sends = [step for step in range(s.steps) if s.kind[step] == SEND and s.length[step] > 0]
    assume(len(sends) > 1)
    a, b = sends[0], sends[-1]
    same = s.sources(a) == s.sources(b) and s.dependencies(a) == s.dependencies(b) and s.length[a] == s.length[b]
    assume(not same)
    order = list(range(s.steps))
    order[a], order[b] = b, a
    # Their peers and streams stay: each now carries what the other should.
    mutant = rebuilt(s, order, peer=s.peer, stream=s.stream)
    refused(operation, [*schedules[:rank], mutant, *schedules[rank + 1 :]])


@pytest.mark.parametrize("name", ["one_shot", "two_shot"])
def test_another_order_of_reduction_is_caught(name):
    operation = Operation("psum", "f32", (12,))
    schedules = plan(operation, Layout.local(3), algorithm=name).expand_all()
    s = schedules[0]
    step = s.kind.tolist().index(REDUCE)
    places = s.sources(step)
    begin = int(s.sources_end[step]) - len(places)
    mutant = s
    for i, place in enumerate(reversed(places)):
        mutant = changed(
            changed(mutant, "source_offset", begin + i, place.offset), "source_buffer", begin + i, place.buffer
        )
    mutated = [mutant, *schedules[1:]]
    if name == "one_shot":
        refused(operation, mutated)  # the ranks would hold different bits
    else:  # the owner's bits go to all: one order, but not the promised one
        assert (2, 1, 0) in prove(operation, mutated).orders


def test_a_missing_final_is_caught():
    operation = Operation("pmean", "f32", (12,))
    for name in ("one_shot", "two_shot", "ring"):
        schedules = plan(operation, Layout.local(3), algorithm=name).expand_all()
        s = schedules[1]
        for step in np.flatnonzero(s.kind == REDUCE).tolist():
            refused(operation, [schedules[0], changed(s, "final", step, 1 - int(s.final[step])), schedules[2]])
