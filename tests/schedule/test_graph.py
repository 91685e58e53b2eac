# SPDX-License-Identifier: Apache-2.0
"""The marked graph: liveness without unrolling, cycle ratios, pipelined time."""

from __future__ import annotations

import numpy as np
import pytest

from jhetcc.planner import Layout, plan
from jhetcc.schedule import Operation, ScheduleError, check_marked_graph, pipelined_seconds
from jhetcc.schedule.graph import check_live, cycle_ratio
from jhetcc.schedule.program import Program
from jhetcc.schedule.value import RECV, REDUCE

BIG = Operation("psum", "f32", (16 << 20,))


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot", "ring", "halving_doubling"])
def test_large_operations_are_checked_without_unrolling(algorithm):
    schedules = dict(enumerate(plan(BIG, Layout.local(16), algorithm=algorithm).expand_all()))
    check_marked_graph(schedules)


def test_a_ring_of_waits_through_all_ranks_is_found():
    schedules = plan(BIG, Layout.local(3), algorithm="two_shot", chunk_bytes=4 << 20).expand_all()
    s = schedules[0]
    # Rank 0 reduces only after it has received a result, which nobody can send before.
    late = s.replace(dependency_distance=np.where(s.dependency_distance == 4, 0, s.dependency_distance))
    with pytest.raises(ScheduleError, match="cycle of waits"):
        check_marked_graph({0: late, 1: schedules[1], 2: schedules[2]})


def test_one_sided_messages_are_found():
    s = plan(BIG, Layout.local(2)).expand_all()[0]
    with pytest.raises(ScheduleError, match="one side only"):
        check_marked_graph({0: s})


def test_graph_and_unrolled_events_agree_on_what_is_stuck():
    operation = Operation("psum", "f32", (24,))
    schedules = plan(operation, Layout.local(2), algorithm="two_shot", chunk_bytes=4).expand_all()
    stuck = 0
    for index, distance in enumerate(schedules[0].dependency_distance.tolist()):
        # Later iterations instead of earlier ones, by turning every dependency into one on the whole step.
        changed = np.array(schedules[0].dependency_distance)
        changed[index] = -1 if distance == 0 else distance
        both = {0: schedules[0].replace(dependency_distance=changed), 1: schedules[1]}
        try:
            check_live(Program(both))
        except ScheduleError:
            stuck += 1
            with pytest.raises(ScheduleError):
                check_marked_graph(both)
    assert stuck > 0


def test_cycle_ratio_of_known_graphs():
    # Two nodes of 1 s and 3 s in a cycle with 2 tokens, and a self-loop of 1 s and 1 token.
    assert cycle_ratio(2, [(0, 1, 0), (1, 0, 2), (0, 0, 1)], [1.0, 3.0]) == pytest.approx(2.0)
    assert cycle_ratio(2, [(0, 1, 0), (1, 0, 8), (0, 0, 1)], [1.0, 3.0]) == pytest.approx(1.0)
    assert cycle_ratio(3, [(0, 1, 0), (1, 2, 0)], [1.0, 1.0, 1.0]) == pytest.approx(0.0, abs=1e-9)


def test_pipelining_hides_all_but_the_slowest_step():
    operation = Operation("psum", "f32", (1 << 20,))
    schedules = dict(
        enumerate(plan(operation, Layout.local(2), algorithm="two_shot", chunk_bytes=64 << 10).expand_all())
    )
    count = 32
    cost = {RECV: 2.0, REDUCE: 3.0}
    seconds = pipelined_seconds(schedules, lambda s, step: cost.get(int(s.kind[step]), 0.0))
    first = 2.0 + 3.0 + 2.0  # a contribution, the reduction, a result
    assert seconds == pytest.approx(first + (count - 1) * 3.0)
