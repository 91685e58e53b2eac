# SPDX-License-Identifier: Apache-2.0
"""Every raw call over clusters with two vendors' real libraries, against numpy; the same bits on all ranks."""

import library_cases
import pytest
from overlapping import overlaps, steps_of

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


@pytest.mark.parametrize("job", ["2+2", "interleaved", "2+1", "1+3"])
def test_every_root_with_libraries_inside_and_tcp_between(cluster_pool, job):
    """C125: nothing of a cluster is lost, whichever rank is the root."""
    options = WAYS["forced"] | {"JHETCC_TRANSPORT": "tcp"}
    for text in cluster_pool(*JOBS[job]).run(library_cases.case_every_root, (3, 5003), options=options):
        assert "by hierarchical" in text and all(f"ranks by {name}" in text for name in {*JOBS[job]} - {"none"}), text
        paths = [line for line in text.splitlines() if line.startswith("  path")]
        assert paths and all("tcp" in line for line in paths), text


@pytest.mark.parametrize("job", ["2+2"])
def test_every_dtype_in_chunks(cluster_pool, job):
    """Pairs that a library refuses are reduced by owner add or flat, with the same bits everywhere."""
    pool = cluster_pool(*JOBS[job])
    pool.run(library_cases.case_tables, library_cases.ALL, (1001,), options=WAYS["forced"])
    digests = pool.run(library_cases.case_scattered_bits, library_cases.FLOATS, 5003, options=WAYS["forced"])
    assert all(digest == digests[0] for digest in digests)


@pytest.mark.parametrize("job", ["2+1", "mpi and none"])
def test_stages_overlap_where_a_library_does_some(cluster_pool, tmp_path, job):
    """The trace shows the library's last stage at work before its first one is through."""
    names = JOBS.get(job, ("mpi", "mpi", "none"))
    options = {"JHETCC_ALGORITHM": "hierarchical", "JHETCC_CHUNK_BYTES": "20kb"}
    steps = steps_of(cluster_pool(*names).run(library_cases.case_recorded, str(tmp_path), options=options))
    members = {rank for rank, name in enumerate(names) if name != "none"}
    native = [e for e in steps if e["name"].startswith("native")]
    assert {(e["pid"], e["name"].split()[0]) for e in native} == {
        (rank, name) for rank in members for name in ("native_reduce", "native_broadcast")
    }
    overlap = overlaps([e for e in steps if e["pid"] in members])
    assert set(overlap) == members and all(len(found) == 4 and any(found) for found in overlap.values()), overlap


@pytest.mark.parametrize("job", ["2+1", "two of one"])
def test_inside_jit_and_under_grad(cluster_pool, tmp_path, job):
    """Programs of several clusters, and islands of one cluster: psum in jit calls the library, on every rank that has one."""
    pool = cluster_pool(*JOBS[job], jax=True)
    losses = pool.run(library_cases.case_training, options=WAYS["forced"])
    assert len(set(losses)) == 1
    called = pool.run(library_cases.case_calls_in_jit, str(tmp_path), options=WAYS["forced"])
    assert [bool(kinds) for kinds in called] == [name != "none" for name in JOBS[job]], called
