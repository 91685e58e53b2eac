# SPDX-License-Identifier: Apache-2.0
"""The fault menu: three seeded cells twenty times, and that its checker and its evidence can say no."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "bench"))

import faults  # noqa: E402
import faults_job  # noqa: E402
import faults_member  # noqa: E402

DEADLINE_S = 300
TOOLS = all(shutil.which(name) for name in ("unshare", "nsenter", "ip", "tc"))
needs_root = pytest.mark.skipif(os.geteuid() != 0 or not TOOLS, reason="network namespaces need root, ip and tc")


def play(tmp_path, *arguments):
    """Exit code, rows and output of the bench."""
    path = tmp_path / "rows.jsonl"
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("JHETCC_") and key != "XLA_FLAGS"
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "faults.py"), "--json", str(path), *arguments],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=tmp_path,
        env=environment,
    )  # fmt: skip
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return done.returncode, rows, done.stdout + done.stderr


@needs_root
@pytest.mark.parametrize("cell", ["nic_down:middle", "black_hole:last", "during_replay:middle"])
def test_three_cells_twenty_times(tmp_path, cell):
    """C104, C105: every result exact and as without a fault; each fault hit an operation, and nothing went over what was gone."""
    code, rows, output = play(
        tmp_path, "--cells", cell, "--repeat", "20", "--seed", "5", "--links", "6", "--mbit", "200"
    )
    assert code == 0 and len(rows) == 20, output
    for row in rows:
        assert row["outcome"] == "passed" and row["checked"] >= 4
        assert row["bytes_before"] >= 8192 and row["bytes_after"] <= 4096
        assert row["lost_ms"] >= 0 and row["lost_ms"] <= 1e3 * row["seconds"]


@needs_root
def test_a_damaged_result_is_found(tmp_path):
    code, rows, output = play(tmp_path, "--cells", "nic_down:middle,rate_cut:between", "--corrupt")
    assert code == 1, output
    assert [row["outcome"] for row in rows] == ["failed"] * 2
    assert all("1 wrong elements" in row["why"] for row in rows), output


@needs_root
def test_a_fault_that_does_not_hit_is_inconclusive(tmp_path):
    code, rows, output = play(tmp_path, "--cells", "nothing:middle")
    assert code == 3, output
    (row,) = rows
    assert row["outcome"] == "inconclusive" and row["attempts"] == faults.ATTEMPTS and "was not lost" in row["why"]


@needs_root
def test_processes_that_die_or_stand_still(tmp_path):
    """One error that names the rank, in time; a short stop is none."""
    cells = "peer_killed:middle,peer_stopped:middle,peer_stopped_for_long:middle,coordinator_gone:middle,scanner:middle"
    code, rows, output = play(tmp_path, "--cells", cells)
    assert code == 0, output
    assert [row["outcome"] for row in rows] == ["passed"] * 5


@needs_root
def test_frames_that_are_lost_damaged_late_and_doubled(tmp_path):
    code, _, output = play(tmp_path, "--cells", "loss:middle,corrupt_frames:middle,jitter:middle,twice:middle")
    assert code == 0, output


def test_without_root_one_line_says_what_is_needed(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert faults.main(["--cells", "nic_down:first"]) == 2
    assert capsys.readouterr().err == "faults: network namespaces need root\n"


def test_over_verbs_what_cannot_be_done_there_is_left_out_or_refused(capsys):
    here, there = faults.parse([]), faults.parse(["--verbs"])
    assert {name for name, _ in set(here.cells) - set(there.cells)} == {"half_open", "rate_cut", "rate_back"}
    with pytest.raises(SystemExit):
        faults.parse(["--verbs", "--cells", "nic_down,half_open:first"])
    assert "half_open is not for --verbs: soft-RoCE" in capsys.readouterr().err


def test_over_verbs_without_a_lab_one_line_says_what_is_missing(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("LAB_CACHE", str(tmp_path))
    assert faults.main(["--verbs", "--cells", "nic_down:first"]) == 2
    assert capsys.readouterr().err.startswith(f"faults: RDMA lab: no kernel in {tmp_path}")


def test_moments_of_a_host_whose_clock_is_ahead_are_told_by_ours():
    told = {"begin": 12.0, "ended": [13.0], "end": 13.5, "lost": [[12.5, 2]], "wrong": 7}
    assert faults_job._shifted(told, 10.0) == {"begin": 2.0, "ended": [3.0], "end": 3.5, "lost": [(2.5, 2)], "wrong": 7}
    assert faults_job._shifted(True, 10.0) is True


def test_cells_are_written_as_texts():
    assert faults.cells_of("nic_down:last,all_gone") == [("nic_down", "last"), ("all_gone", "middle")]
    for wrong in ("nic_up", "nic_down:third", "all_gone:first"):
        with pytest.raises(faults.argparse.ArgumentTypeError, match=f"no cell '{wrong}'"):
            faults.cells_of(wrong)


def test_the_table_counts_outcomes():
    rows = [
        {"fault": "flap", "position": "last", "turn": k, "outcome": outcome, "why": "so"}
        for k, outcome in enumerate(("passed", "failed", "inconclusive"))
    ]
    lines = faults.table(rows).splitlines()
    assert lines[1].split() == ["flap", "-", "-", "1/3", "-"]
    assert lines[2:] == ["failed: flap:last turn 1: so", "inconclusive: flap:last turn 2: so"]


@pytest.mark.parametrize("operation", faults.OPERATIONS)
def test_no_two_elements_are_alike(operation):
    """A chunk at a wrong place, taken twice or left out, is a wrong element."""
    right = faults_member.expected(operation, 1, 2, 1 << 10, 2)
    assert len(set(right.ravel().tolist())) >= right.size - (operation == "all_gather") * (1 << 10)
    own = faults_member.inputs(0, 1 << 10, 2)
    assert not (own == faults_member.inputs(1, 1 << 10, 2)).any() and not (right.ravel()[: 1 << 9] == 0).any()
