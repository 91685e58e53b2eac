# SPDX-License-Identifier: Apache-2.0
"""Every raw collective, dtype and size on several groupings, transports and algorithms: exact against numpy and the interpreter."""

import pytest
import raw_cases
from raw_cases import MOVE, REDUCE

GROUPINGS = [(1,), (1, 1), (1, 1, 1, 1), (2, 1, 1), (3,)]
TRANSPORTS = {
    "shm": {},
    "shared segments": {"JHETCC_CMA": "off"},
    "tcp": {"JHETCC_TRANSPORT": "tcp"},
}
ALGORITHMS = ("direct", "one_shot", "two_shot", "halving_doubling", "ring", "tree")
FEW = ("float32", "int8", "bfloat16", "complex128", "float8_e5m2")
NAMES = [dtype.name for dtype in REDUCE + MOVE]


@pytest.mark.parametrize("grouping", GROUPINGS, ids=str)
def test_every_dtype(pools, grouping):
    pools(*grouping).run(raw_cases.case_tables, NAMES, (0, 1, 7))


@pytest.mark.parametrize("grouping", GROUPINGS, ids=str)
def test_shapes_and_lengths(pools, grouping):
    """C010 and C014 without JAX."""
    pools(*grouping).run(raw_cases.case_shapes)
    pools(*grouping).run(raw_cases.case_lengths, FEW)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("grouping", [(1, 1), (2, 1, 1)], ids=str)
def test_sizes_around_the_protocols(pools, grouping, transport):
    """C015, C016: sizes at which messages change their way, and fewer elements than ranks."""
    pools(*grouping).run(raw_cases.case_tables, FEW, options=TRANSPORTS[transport])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_larger_than_a_chunk(pools, transport):
    pools(1, 1).run(raw_cases.case_tables, ("float32", "int8"), (300_001, 1_000_003), options=TRANSPORTS[transport])
    options = TRANSPORTS[transport] | {"JHETCC_CHUNK_BYTES": "20kb"}
    pools(2, 1, 1).run(raw_cases.case_tables, ("float32", "int8"), (50_001,), options=options)


@pytest.mark.parametrize("grouping", [(1, 1), (2, 1, 1), (1, 1, 1, 1)], ids=str)
def test_forced_algorithms(pools, grouping):
    """C016: every algorithm in turn, in small chunks, with the interpreter's bits (C143)."""
    names, used = ("float32", "bfloat16", "complex64", "int16"), set()
    for algorithm in ALGORITHMS:
        options = {"JHETCC_ALGORITHM": algorithm, "JHETCC_CHUNK_BYTES": "8kb"}
        pool = pools(*grouping)
        pool.run(raw_cases.case_tables, ("float32",), (3, 4096, 5001), options=options)
        for found in pool.run(raw_cases.case_interpreter, names, (1, 5, 6007), options, options=options):
            used |= set(found)
    assert used >= {"one_shot", "two_shot", "ring"}


@pytest.mark.parametrize("grouping", GROUPINGS, ids=str)
def test_bits_are_those_of_the_interpreter(pools, grouping):
    names = [dtype.name for dtype in REDUCE]
    pools(*grouping).run(raw_cases.case_interpreter, names, (1, 7, 4097), {})
    pools(*grouping).run(raw_cases.case_interpreter, ("float32", "float16"), (40_003,), {})
