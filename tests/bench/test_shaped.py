# SPDX-License-Identifier: Apache-2.0
"""The bench of shaped links on its smallest case: the form of what it prints, and that it leaves nothing. Speed is never asserted."""

import contextlib
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "bench"))

import shaped  # noqa: E402
import shaped_network  # noqa: E402

DEADLINE_S = 60
KINDS = {
    "network": str, "operation": str, "bytes": int, "algorithm": str, "predicted_us": float, "measured_us": float, "ratio": float,
    "quartile_us": float, "chosen": bool, "fastest": bool, "chunk_bytes": int, "calls": int, "foreign": float,
}  # fmt: skip
TOOLS = all(shutil.which(name) for name in ("unshare", "nsenter", "ip", "tc"))
needs_root = pytest.mark.skipif(os.geteuid() != 0 or not TOOLS, reason="network namespaces need root, ip and tc")


def command(path, *arguments):
    return [
        sys.executable, str(ROOT / "bench" / "shaped.py"), "--json", str(path), "--networks", "2x2@800", "--operations", "all_reduce",
        "--sizes", "4K", *arguments,
    ]  # fmt: skip


def environment():
    return {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}


@needs_root
def test_rows_name_every_candidate_with_prediction_and_measurement(tmp_path):
    path = tmp_path / "rows.jsonl"
    done = subprocess.run(
        command(path, "--rounds", "1", "--within", "inf"),
        capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=tmp_path, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    network, rows = lines[0], [line for line in lines if line["kind"] == "row"]
    assert network["kind"] == "network" and network["profile"]["tcp"]["beta"] > 1 / 800e6 * 2, network
    assert {row["algorithm"] for row in rows} == {
        "one_shot", "two_shot", "halving_doubling", "ring", "hierarchical", "hierarchical_sequential",
    }  # fmt: skip
    for row in rows:
        row.pop("kind")
        assert {key: type(value) for key, value in row.items()} == KINDS
        assert row["bytes"] == 4096 and row["measured_us"] >= row["quartile_us"] > 0 and row["predicted_us"] > 0
    assert sum(row["chosen"] for row in rows) == sum(row["fastest"] for row in rows) == 1
    table = done.stdout.splitlines()
    assert table[0] == shaped.heading() and len(table) == 1 + len(rows) + len(shaped.summary(rows))


@needs_root
def test_stages_are_measured_on_hosts_in_a_row(tmp_path):
    """Each reaches the others through those between; only the two in the middle are borders."""
    path = tmp_path / "rows.jsonl"
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "shaped.py"), "--json", str(path), "--balanced", "800", "--sizes", "1M", "--rounds", "1"],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=tmp_path, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in map(json.loads, path.read_text().splitlines()) if line["kind"] == "row"]
    assert [(row["network"], row["algorithm"]) for row in rows] == [
        (f"balanced@800/{between}", algorithm)
        for between in (800, 400)
        for algorithm in ("hierarchical", "hierarchical_sequential")
    ]
    # What crosses is predicted by the cards' rate: half the rate takes longer.
    assert rows[1]["predicted_us"] < rows[3]["predicted_us"] < 2 * rows[1]["predicted_us"]
    assert done.stdout.count("sequential takes") == 2


@needs_root
def test_a_killed_bench_leaves_no_process_and_no_namespace(tmp_path):
    path = tmp_path / "rows.jsonl"
    bench = subprocess.Popen(
        command(path, "--rounds", "1000000"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: bench.poll() is not None or (path.exists() and path.stat().st_size))
        children = children_of(bench.pid)
        assert bench.poll() is None and len(children) == 2 + 4  # namespaces, ranks
        spaces = {os.readlink(f"/proc/{pid}/ns/net") for pid in children}
        assert len(spaces) == 2
    finally:
        bench.kill()
        bench.wait()
    wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in children))
    assert not spaces & set(namespaces())


def children_of(pid):
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def namespaces():
    for place in pathlib.Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            yield os.readlink(place)


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        select.select([], [], [], 0.02)


def test_networks_are_written_as_texts():
    links, places, labels = shaped.network_of("3x2@1000/1000/500")
    assert [(link.a, link.b, link.there, link.back) for link in links] == [
        (0, 3, 1000, 1000), (1, 3, 1000, 1000), (2, 3, 500, 500),
    ]  # fmt: skip
    assert places == [0, 0, 1, 1, 2, 2] and labels[2:4] == ["host1", "host1"]
    for wrong in ("2x2", "1x2@100", "3x2@1/2", "2x2@0", "x@"):
        with pytest.raises(ValueError):
            shaped.network_of(wrong)


def test_without_root_one_line_says_what_is_needed(monkeypatch):
    monkeypatch.setattr(shaped_network.os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match=r"^shaped.py: network namespaces need root"):
        shaped.main(["--networks", "2x1@100"])


def test_the_summary_counts_near_predictions_and_good_choices():
    def row(size, algorithm, predicted, measured, chosen):
        return {
            "network": "n", "operation": "o", "bytes": size, "algorithm": algorithm, "predicted_us": predicted,
            "measured_us": measured, "quartile_us": measured, "chosen": chosen, "foreign": 0.25,
        }  # fmt: skip

    rows = [
        row(1, "a", 10.0, 10.5, True), row(1, "b", 20.0, 10.3, False),
        row(2, "a", 10.0, 30.0, True), row(2, "b", 11.0, 15.0, False),
    ]  # fmt: skip
    near, good, _, _, foreign = shaped.summary(rows)
    assert "1 of 4 (25%) rows, 1 of 2 (50%) of those chosen" in near
    assert "1 of 2 (50%) cases; at worst 2.00 times the fastest, 1.51 in the median" in good
    assert "25%" in foreign
