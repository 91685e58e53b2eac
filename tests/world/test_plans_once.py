# SPDX-License-Identifier: Apache-2.0
"""Plans are made once for each operation and layout, and kept by value: repeated calls and like communicators plan nothing."""

from collections import Counter

import numpy as np

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
