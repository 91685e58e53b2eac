# SPDX-License-Identifier: Apache-2.0
"""Every raw call over clusters with two vendors' real libraries, against numpy; the same bits on all ranks."""

import library_cases
import pytest

JOBS = {
    "2+2": ("oneccl", "oneccl", "mpi", "mpi"),
    "interleaved": ("oneccl", "mpi", "oneccl", "mpi"),
    "2+1": ("oneccl", "oneccl", "none"),
    "1+3": ("none", "mpi", "mpi", "mpi"),
    "two of one": ("mpi", "mpi"),
    "four of one": ("oneccl", "oneccl", "oneccl", "oneccl"),
}
WAYS = {
    "forced": {"JHETCC_ALGORITHM": "hierarchical", "JHETCC_CHUNK_BYTES": "8kb"},
    "border": {"JHETCC_ALGORITHM": "hierarchical_border", "JHETCC_CHUNK_BYTES": "8kb"},
    "free": {},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("job", JOBS)
def test_every_call(cluster_pool, job, way):
    """C125 with real libraries; fewer elements than ranks, none, numbers that do not divide, several chunks."""
    pool, options = cluster_pool(*JOBS[job]), WAYS[way]
    texts = pool.run(library_cases.case_tables, ("float32",), (0, 1, 7, 5003), options=options)
    if way == "forced":
        for name in set(JOBS[job]) - {"none"}:
            assert name in texts[0].lower(), texts[0]
    bits = pool.run(library_cases.case_bits, library_cases.ALL, (1, 3001), options=options)
    assert len(set(bits)) == 1, bits
