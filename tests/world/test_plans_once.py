# SPDX-License-Identifier: Apache-2.0
"""Plans are made once for each operation and layout, and kept by value: repeated calls and like communicators plan nothing."""

import queue
from collections import Counter
from types import SimpleNamespace

import numpy as np

from jhetcc.config import Options
from jhetcc.errors import BadArgumentError
from jhetcc.planner import Layout
from jhetcc.world.planning import Planner

TEXT = "psum(f32[5003])"


def case_counted(comm, repeats):
    """How often an operation was planned, and its schedules expanded here: after calls, after more, and on other communicators."""
    from jhetcc.schedule import Plan
    from jhetcc.world import planning

    planned, expanded, counts = Counter(), Counter(), []
    kept_plan, kept_expand = planning.plan, Plan.expand

    def plan(operation, *arguments, **how):
        planned[operation.text()] += 1
        return kept_plan(operation, *arguments, **how)

    def expand(self, rank):
        expanded[self.operation.text()] += 1
        return kept_expand(self, rank)

    def calls(communicator, times):
        for _ in range(times):
            data = np.ones(5003, np.float32)
            for one in np.atleast_2d(communicator.all_reduce([data] * len(communicator.local_ranks))):
                assert (one == communicator.size).all()
        counts.append((planned[TEXT], expanded[TEXT]))

    planning.planned.cache_clear()
    planning.plan, Plan.expand = plan, expand
    try:
        calls(comm, 1)
        calls(comm, repeats)
        twin = comm.split(0, name="twin")
        assert twin.layout == comm.layout
        calls(twin, repeats)
        smaller = comm.shrink(timeout=30)
        calls(smaller, 1)
        calls(smaller, repeats)
        return counts
    finally:
        planning.plan, Plan.expand = kept_plan, kept_expand


def test_an_operation_is_planned_once(pools):
    for outcome in pools(2, 1).attempt(case_counted, 20):
        (first, again, twin, shrunk, shrunk_again), local = outcome.get(), 2 if outcome.index == 0 else 1
        assert first == again == (1, local)  # each local rank's schedule once
        assert twin == (1, 2 * local)  # the plan is found by value; the core wants the schedules of each communicator
        assert shrunk == shrunk_again and shrunk[0] <= 2 and shrunk[1] == 3 * local


def test_a_communicator_that_goes_while_it_is_planned_for_ends_no_planner():
    """The core refuses the answer; those who ask later still get theirs."""
    asked, answered = queue.Queue(), queue.Queue()

    def next_request(timeout):
        try:
            return asked.get(timeout=timeout)
        except queue.Empty:
            return None

    def answer(name, epoch, text, schedules, failure):
        answered.put((name, [member for member, _ in schedules], failure))
        if name == "gone":
            raise BadArgumentError("no such communicator")

    planner = Planner(
        SimpleNamespace(next_plan_request=next_request, answer_plan=answer),
        Options(),
        lambda name, epoch: (Layout((0, 0)), (1,)),
    )
    for name in ("gone", "here"):
        asked.put((name, 0, 0, TEXT))
        assert answered.get(timeout=20) == (name, [1], None)
    planner.close()
