# SPDX-License-Identifier: Apache-2.0
"""A hierarchical schedule with a step dropped, doubled or moved must not pass, and none of its waits is without need."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cluster_drawing import VENDORS, clusters, clusters_of, layout_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planner_drawing import operations
from test_mutations import rebuilt, without_dependency

from jhetcc.planner import plan, why_unfit
from jhetcc.schedule import NATIVE_REDUCE, SEND, Operation, ScheduleError, check_marked_graph, prove

LAWS = settings(max_examples=60, deadline=None, derandomize=True)


def refused(operation, schedules) -> None:
    with pytest.raises(ScheduleError):
        prove(operation, schedules, uniform=True)


@st.composite
def planned(draw, native: bool | None = None):
    made = draw(clusters(size_max=6, native=native))
    size = sum(shape.size for shape in made)
    operation = draw(operations(size, count_max=20))
    name = draw(st.sampled_from(["hierarchical", "hierarchical_border"]))
    name = name if why_unfit(name, operation, layout_of(made)) is None else "hierarchical"
    assume(why_unfit(name, operation, layout_of(made)) is None)
    chunk = draw(st.sampled_from([None, operation.itemsize, 3 * operation.itemsize]))
    schedules = plan(operation, layout_of(made), algorithm=name, chunk_bytes=chunk).expand_all()
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


@pytest.mark.parametrize("name", ["psum", "pmax", "psum_scatter", "all_gather"])
def test_native_calls_that_change_places_on_one_rank_are_caught(name):
    operation = Operation(name, "f32", (6, 4) if name == "psum_scatter" else (24,))
    layout = layout_of(clusters_of([0, 1, 0, 1, 0, 1], vendors=VENDORS[1:]))
    schedules = plan(operation, layout, algorithm="hierarchical", chunk_bytes=8).expand_all()
    prove(operation, schedules)
    for rank, s in enumerate(schedules):
        native = np.flatnonzero(s.kind >= NATIVE_REDUCE).tolist()
        for a, b in itertools.combinations(native, 2):
            order = list(range(s.steps))
            order[a], order[b] = b, a
            if s.stream[a] == s.stream[b]:
                refused(operation, [*schedules[:rank], rebuilt(s, order), *schedules[rank + 1 :]])


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
    refused(operation, [*schedules[:rank], rebuilt(s, order, peer=s.peer, stream=s.stream), *schedules[rank + 1 :]])


def passes(operation, schedules) -> bool:
    try:
        prove(operation, schedules, uniform=True)
        check_marked_graph(dict(enumerate(schedules)))
    except ScheduleError:
        return False
    return True


@pytest.mark.parametrize("vendor", [None, VENDORS[2]], ids=["own", "native"])
@pytest.mark.parametrize("name", ["psum", "psum_scatter", "all_gather", "ppermute"])
def test_every_dependency_is_needed(name, vendor):
    shape = (4, 6) if name == "psum_scatter" else (24,)
    operation = Operation(name, "f32", shape, perm=((0, 2), (2, 1), (1, 0), (3, 3)) if name == "ppermute" else None)
    made = clusters_of([0, 0, 1, 1], vendors=[vendor, vendor])
    schedules = plan(operation, layout_of(made), algorithm="hierarchical", chunk_bytes=4).expand_all()
    for rank, s in enumerate(schedules):
        waiting = np.repeat(np.arange(s.steps), np.diff(s.dependencies_end, prepend=0))
        for index in np.flatnonzero(s.length[waiting] > 0).tolist():  # the agreement's are needed where nothing is sent
            mutant = without_dependency(s, index)
            assert not passes(operation, [*schedules[:rank], mutant, *schedules[rank + 1 :]]), (rank, str(s), index)
