# SPDX-License-Identifier: Apache-2.0
"""Every raw call over the sizes of clusters that matter, in processes that JHETCC_CLUSTER labels: exact against numpy."""

import cluster_cases
import pytest

# Sizes of the clusters -> ranks of each process, label of each process.
VECTORS = {
    (1, 1): ((1, 1), "ab"),
    (2, 1): ((1, 1, 1), "aba"),
    (1, 3): ((1, 1, 1, 1), "abbb"),
    (2, 2): ((1, 1, 1, 1), "abab"),
    (2, 1, 1): ((2, 1, 1), "abc"),
    (3, 2): ((2, 1, 1, 1), "abab"),
}
WAYS = {
    "forced": {"JHETCC_ALGORITHM": "hierarchical", "JHETCC_CHUNK_BYTES": "4kb"},
    "in one chunk": {"JHETCC_ALGORITHM": "hierarchical_sequential"},
    "over tcp": {"JHETCC_ALGORITHM": "hierarchical", "JHETCC_TRANSPORT": "tcp"},
    "free": {},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sizes", VECTORS, ids=str)
def test_every_call(pools, sizes, way):
    """C125, H1: hierarchical schedules forced and free; bits are the interpreter's and the same on all ranks."""
    grouping, labels = VECTORS[sizes]
    names = ("float32", "bfloat16", "complex64", "bool") if way == "forced" else ("float32", "bfloat16")
    arguments = (labels, WAYS[way], names, (0, 3, 3001))
    for outcome in pools(*grouping).attempt(cluster_cases.case_vector, *arguments, world=False):
        found, used = outcome.get()
        assert found == sizes
        assert way == "free" or WAYS[way]["JHETCC_ALGORITHM"] in used


@pytest.mark.parametrize("labels", ["aabb", "abab", "abbb"])
def test_every_root_has_what_flat_schedules_give(pools, labels):
    """C125: chunks of every cluster are there, whichever rank is the root."""
    for outcome in pools(1, 1, 1, 1).attempt(cluster_cases.case_like_flat, labels, (5, 30_000), world=False):
        assert outcome.get() == 2 * (3 * 4 + 2)
