# SPDX-License-Identifier: Apache-2.0
"""Recordings as a timeline, and what it shows of a pipelined operation."""

import json
import os

import numpy as np
import pytest
from overlapping import overlaps, steps_of
from process_worker import here

import jhetcc
from jhetcc.cli import main
from jhetcc.trace import timeline


def event(name, time_ns, rank=0, sequence=0, **more):
    base = {"communicator": 7, "bytes": 0, "argument": 0, "step": 0, "index": 0, "stream": 0}
    return base | {"event": name, "time_ns": time_ns, "rank": rank, "sequence": sequence} | more


def recording(*events, shift=1000):
    return {"clock": {"monotonic_ns": 5, "wall_ns": 5 + shift}, "events": list(events)}


def test_operations_and_steps_of_two_processes():
    one = recording(
        event("operation started", 1000),
        event("step started", 2000, argument=5, step=3, index=1, bytes=64),
        event("step finished", 2500, argument=5, step=3, index=1, bytes=64),
        event("suspected", 2600),
        event("operation finished", 3000, bytes=99),
    )
    two = recording(event("operation started", 1000, rank=1), shift=5000)
    found = timeline([one, two])
    shown = [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"]) for e in found if e["ph"] == "X"]
    assert shown == [("#0", 0, 0, 2.0, 2.0), ("native_reduce 1", 0, 4, 3.0, 0.5)]
    assert [(e["name"], e["pid"], e["ts"]) for e in found if e["ph"] == "i"] == [
        ("#0", 1, 6.0)
    ]  # began, and did not end
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert names == {(0, 0): "operations", (0, 4): "3 native_reduce", (1, 0): "operations"}


def test_the_command(tmp_path, capsys):
    (tmp_path / "a.json").write_text(
        json.dumps(recording(event("operation started", 1), event("operation finished", 2)))
    )
    assert main(["trace", str(tmp_path / "a.json"), "-o", str(tmp_path / "out.json")]) == 0
    assert "1 operations and steps" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "out.json").read_text())["traceEvents"]) == 3
    (tmp_path / "b.json").write_text("[]")
    assert main(["trace", str(tmp_path / "b.json")]) == 2
    assert "b.json is no recording" in capsys.readouterr().err


def case_recorded(algorithm, chunk, folder):
    """Four all-reduces of 2 MB over two clusters; returns the file of what was recorded."""
    os.environ["JHETCC_CLUSTER"] = "ab"[here()["process_id"]]
    os.environ["JHETCC_ALGORITHM"], os.environ["JHETCC_CHUNK_BYTES"] = algorithm, chunk
    comm = jhetcc.init(**here() | {"devices": 2}, timeout=30)
    try:
        for _ in range(4):
            comm.all_reduce([np.ones(500_000, np.float32) for _ in comm.local_ranks])
        return comm.record(folder)
    finally:
        comm.close()
        for name in ("JHETCC_CLUSTER", "JHETCC_ALGORITHM", "JHETCC_CHUNK_BYTES"):
            del os.environ[name]


@pytest.mark.parametrize(("algorithm", "chunk"), [("hierarchical", "20kb"), ("hierarchical_sequential", "auto")])
def test_stages_overlap_where_they_are_pipelined(pools, tmp_path, algorithm, chunk):
    """The stage that ends last has begun before the one that begins first has come to its last chunk.

    In one operation of several at least: where a peer gets no processor, the others' first stage may run to its end.
    """
    outcomes = pools(1, 1).attempt(case_recorded, algorithm, chunk, str(tmp_path), world=False)
    steps = steps_of([outcome.get() for outcome in outcomes])
    assert bool(steps) == (algorithm == "hierarchical")  # in one chunk there is nothing to show
    overlap = overlaps(steps)
    assert all(len(found) == 4 and any(found) for found in overlap.values()), overlap
