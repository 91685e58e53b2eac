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
    """C125 with real libraries; fewer elements than ranks, none, numbers that do not divide, several chunks.

    Every reduction, also max, min and prod, into new memory and in place, across clusters of one host.
    """
    pool, options = cluster_pool(*JOBS[job]), WAYS[way]
    texts = pool.run(
        library_cases.case_tables, ("float32",), (0, 1, 5003) if way == "forced" else (7,), options=options
    )
    if way == "forced":
        for name in set(JOBS[job]) - {"none"}:
            assert name in texts[0].lower(), texts[0]
    bits = pool.run(library_cases.case_bits, library_cases.ALL, (3001,), options=options)
    assert len(set(bits)) == 1, bits


@pytest.mark.parametrize("job", JOBS)
def test_nans(cluster_pool, job):
    """Canonical where clusters are joined; where one library does it all, as docs/libraries.md says of it."""
    found = cluster_pool(*JOBS[job]).run(library_cases.case_nans, options=WAYS["forced"])
    one_cluster = len(set(JOBS[job])) == 1
    assert found == [[["ffc00000"], ["ffc00005"]] if one_cluster else [["7fc00000"]] * 2] * len(found)


@pytest.mark.parametrize("job", ["2+2", "interleaved"])
def test_parts_within_and_across_clusters(cluster_pool, job):
    """Circles are made when a part first calls its library; parts of parts, and the whole again."""
    pool = cluster_pool(*JOBS[job])
    for colors in ([0, 1, 0, 1], [0, 0, 0, -1]) if job == "interleaved" else ([0, 0, 1, 1],):
        texts = pool.run(library_cases.case_parts, colors, [3, 2, 1, 0], options=WAYS["forced"])
        assert [text is None for text in texts] == [color < 0 for color in colors]
        together = [JOBS[job][rank] for rank in range(4) if colors[rank] == colors[0]]
        for name in {name for name in together if together.count(name) > 1}:
            assert name in texts[0].lower(), texts[0]


@pytest.mark.parametrize("job", ["2+2"])
def test_every_dtype_in_chunks(cluster_pool, job):
    """Pairs that a library refuses are reduced by owner add or flat, with the same bits everywhere."""
    pool = cluster_pool(*JOBS[job])
    pool.run(library_cases.case_tables, library_cases.ALL, (1001,), options=WAYS["forced"])
    digests = pool.run(library_cases.case_scattered_bits, library_cases.FLOATS, 5003, options=WAYS["forced"])
    assert all(digest == digests[0] for digest in digests)


@pytest.mark.parametrize("job", ["2+1"])
def test_inside_jit_and_under_grad(cluster_pool, job):
    pool = cluster_pool(*JOBS[job], jax=True)
    losses = pool.run(library_cases.case_training, options=WAYS["forced"])
    assert len(set(losses)) == 1
