# SPDX-License-Identifier: Apache-2.0
"""Plans of more elements than 32 bits count, and low precision over many ranks; no data of that size is made."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from jhetcc.planner import ALGORITHMS, Layout, plan
from jhetcc.schedule import OUTPUT, Operation, Schedule, run
from jhetcc.schedule.operation import DTYPES

COUNTS = (2**31 - 1, 2**31, 2**32 + 7)


def written(s):
    """What steps write into the output, as sorted (begin, end)."""
    spans = []
    for step in range(s.steps):
        target = s.target(step)
        if int(s.kind[step]) != 0 and target.buffer == OUTPUT and s.length[step]:
            assert not target.wrap
            spans.append((target.offset, target.offset + int(s.length[step])))
    return sorted(spans)


@pytest.mark.parametrize("dtype", ["u8", "i16", "f64"])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", ["psum", "all_gather", "psum_scatter", "all_to_all", "broadcast", "reduce"])
def test_offsets_and_lengths_have_64_bits(name, count, dtype):
    """C017: every byte of the output is written once, by every algorithm that fits, whatever the size."""
    size, tried = 2, 0
    shape = (size, count) if name in ("psum_scatter", "all_to_all") else (count,)
    roots = {"root": 1} if name in ("broadcast", "reduce") else {}
    reduces = {"op": "sum"} if name == "reduce" else {}
    operation = Operation(name, dtype, shape, **roots, **reduces)
    itemsize = DTYPES[dtype][0]
    assert operation.output_bytes(size) == count * itemsize * (size if name in ("all_gather", "all_to_all") else 1)
    for algorithm, module in ALGORITHMS.items():
        if module.fits(operation, size) is not None:
            continue
        tried += 1
        for s in plan(operation, Layout.local(size), algorithm=algorithm).expand_all():
            assert Schedule.from_bytes(s.to_bytes()) == s
            assert (s.input_bytes, s.output_bytes) == (operation.input_bytes(size), operation.output_bytes(size))
            at = 0
            for begin, end in written(s):
                assert begin == at, f"{algorithm}: bytes {at} to {begin} of rank {s.rank}"
                at = end
            assert at == s.output_bytes, f"{algorithm}: rank {s.rank} ends at {at}"
            iterations = [s.iterations(step) for step in range(s.steps)]
            assert all(0 < k < 2**31 for k in iterations)
            assert max(s.target_offset.max(), s.source_offset.max()) < max(s.input_bytes, s.output_bytes)
    assert tried


@pytest.mark.parametrize("size", [2, 3, 8, 16, 64])
@pytest.mark.parametrize("name", ["psum_scatter", "psum"])
def test_low_precision_does_not_get_worse_with_more_ranks(name, size):
    """C146: whatever the algorithm, bfloat16 is rounded once: within half a unit of the last place of the float32 sum."""
    rng, tried = np.random.default_rng(size), 0
    shape = (size, 3) if name == "psum_scatter" else (7,)
    inputs = [rng.normal(size=int(np.prod(shape))).astype(ml_dtypes.bfloat16) for _ in range(size)]
    wide = np.zeros(int(np.prod(shape)), np.float32)
    for one in inputs:
        wide += one.astype(np.float32)
    want = wide.astype(ml_dtypes.bfloat16)
    operation = Operation(name, "bf16", shape)
    for algorithm, module in ALGORITHMS.items():
        if module.fits(operation, size) is not None:
            continue
        tried += 1
        outputs = run(operation, plan(operation, Layout.local(size), algorithm=algorithm).expand_all(), inputs)
        for rank, got in outputs.items():
            mine = want[3 * rank : 3 * rank + 3] if name == "psum_scatter" else want
            assert got.tobytes() == mine.tobytes(), (algorithm, rank)
    assert tried
