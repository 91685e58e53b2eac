# SPDX-License-Identifier: Apache-2.0
"""Draws operations, sizes and chunk sizes for the property tests of schedules and planner."""

from __future__ import annotations

from hypothesis import strategies as st

from jhetcc.schedule import Operation
from jhetcc.schedule.operation import can_reduce

REDUCING = ["psum", "pmean", "pmax", "pmin", "pprod", "reduce", "psum_scatter"]
MOVING = ["all_gather", "gather", "all_to_all", "scatter", "ppermute", "broadcast", "barrier"]
DTYPES = ["bool", "i8", "u16", "i32", "f16", "bf16", "f32", "f64", "c64", "c128"]
OF_NAME = {"psum": "sum", "pmean": "mean", "pmax": "max", "pmin": "min", "pprod": "prod"}


@st.composite
def operations(draw, size: int, names=tuple(REDUCING + MOVING), count_max: int = 70) -> Operation:
    """An operation on ``size`` ranks with 0 to ``count_max`` elements."""
    name = draw(st.sampled_from(names))
    if name == "barrier":
        return Operation("barrier")
    count = draw(st.integers(0, count_max))
    root = draw(st.integers(0, size - 1))
    if name in REDUCING:
        op = OF_NAME.get(name) or draw(st.sampled_from(["sum", "max", "mean", "prod"]))
        dtype = draw(st.sampled_from([d for d in DTYPES if can_reduce(d, op)]))
        if name == "reduce":
            return Operation(name, dtype, (count,), op=op, root=root)
        if name == "psum_scatter":
            return Operation(name, dtype, (size, count // size), op=op)
        return Operation(name, dtype, (count,))
    dtype = draw(st.sampled_from(["i8", "f16", "b24", "f32", "b128"]))
    if name in ("all_gather", "gather", "scatter") and draw(st.booleans()):
        lengths = tuple(draw(st.lists(st.integers(0, 4), min_size=size, max_size=size)))
        rows = sum(lengths) if name == "scatter" else max(lengths)
        return Operation(name, dtype, (rows, 3), lengths=lengths, root=None if name == "all_gather" else root)
    if name == "all_gather":
        return Operation(name, dtype, (count,))
    if name in ("gather", "broadcast"):
        return Operation(name, dtype, (count,), root=root)
    if name == "ppermute":
        ends = draw(st.permutations(range(size)))
        pairs = [pair for pair in enumerate(ends) if draw(st.booleans())]
        return Operation(name, dtype, (count,), perm=tuple(pairs))
    return Operation(name, dtype, (size, count // size), root=root if name == "scatter" else None)


def chunk_sizes(operation: Operation):
    """None (the planner's own) or a few items, so that loops have many iterations."""
    return st.one_of(st.none(), st.integers(1, 9).map(lambda items: items * operation.itemsize))
