# SPDX-License-Identifier: Apache-2.0
"""All-reduces of columns: the ranks of a communicator in rows of ``columns``, each column by itself.

The rows are the islands of ``("d", "islands")``, whose local stage is XLA's; a column holds the k-th rank of every island.
Each column runs a flat algorithm for as many ranks as there are rows. No column hears of the others, so the ranks of a row
meet first (they have just met in XLA's collective) and send only then: who has everything from its column knows that all
ranks of all rows have started.
"""

from __future__ import annotations

import dataclasses

from ..schedule import Builder, Operation, Plan, Schedule
from .common import dissemination
from .layout import Layout
from .profile import Link

__all__ = ["build", "of_one"]


def of_one(operation: Operation, layout: Layout) -> tuple[Operation, Layout]:
    """What one column does, and on which machines; the columns share the links between hosts."""
    columns = operation.columns
    assert columns is not None
    shared = Link(layout.tcp.alpha, layout.tcp.beta * columns)
    hosts = tuple(beta * columns for beta in layout.profile.hosts)
    profile = dataclasses.replace(layout.profile, tcp=shared, hosts=hosts)
    return dataclasses.replace(operation, columns=None), Layout(layout.hosts[::columns], profile)


def build(plan: Plan, rank: int, column: Plan) -> Schedule:
    """One rank's schedule, from the plan of one column."""
    columns = plan.operation.columns
    assert columns is not None
    row, place = divmod(rank, columns)
    b = Builder(plan, rank)
    heard = dissemination(b, range(row * columns, (row + 1) * columns), [])
    b.embed(column.expand(row), range(place, plan.size, columns), heard)
    return b.finish()
