# SPDX-License-Identifier: Apache-2.0
"""The main job cut short: its checks of bits and of the reference pass, and the one it cannot pass yet fails the command."""

import os
import pathlib
import re
import subprocess
import sys

import vendor_libraries

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("JHETCC_")}


def run(tmp_path, islands, **settings):
    """Twelve steps, so that some follow the line of progress; returns what was printed and drawn, after the checks of every such run."""
    pictures = [tmp_path / "loss.png", tmp_path / "topology.svg"]
    words = [sys.executable, "-P", "-m", "jhetcc", "launch", "--islands", islands, "--log-dir", str(tmp_path / "logs")]
    words += ["--timeout", "240"]  # with the stacks of those that hang
    words += [str(ROOT / "examples" / "train_mixed.py"), "--steps", "12"]
    words += ["--output", str(pictures[0]), "--topology", str(pictures[1])]
    done = subprocess.run(
        words, env=ENVIRONMENT | settings, capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path
    )
    ranks = sum(int(item.split("@")[0].split(":")[1]) for item in islands.split(","))
    assert f"[0] check passed: gradients and weights bit-identical on {ranks} ranks at all 12 steps" in done.stdout, (
        done.stdout + done.stderr
    )
    assert "[0] check passed: loss within" in done.stdout
    (share,) = re.findall(r"^\[0\] step   10/12 .* communicating and waiting +(\d+)%$", done.stdout, re.MULTILINE)
    assert 0 < int(share) <= 100
    said = [line for line in done.stdout.splitlines() if "CCL_WARN" not in line]  # oneCCL's, of its own settings
    assert all(line.startswith("[0] ") for line in said), "progress comes from rank 0 only"
    assert pictures[0].stat().st_size > 10_000
    assert done.returncode == 1 and "check failed: loss of the last steps" in done.stderr
    drawn = pictures[1].read_text()
    assert all(f">rank {rank}<" in drawn for rank in range(ranks))
    return done.stdout, drawn


def test_a_short_run_passes_its_checks_but_the_loss(tmp_path):
    said, _ = run(tmp_path, "cpu:2,cpu:1,cpu:1")
    assert "[0] cluster 0, cpu: ranks 0, 1, 2, 3, joined by our own schedules\n" in said
    assert re.search(r"^\[0\] pmean\(f32\[\d+\]\) ran by \w+, predicted to take", said, re.MULTILINE)


@vendor_libraries.needs("oneccl", "mpi")
def test_two_pretend_vendors_on_two_real_libraries(tmp_path):
    (tmp_path / "libraries").mkdir()
    settings = {
        "JHETCC_LIBRARY_PATH": vendor_libraries.joined(tmp_path / "libraries"),
        "JHETCC_ALGORITHM": "hierarchical",
    }
    said, drawn = run(tmp_path, "cpu:2,cpu:1@oneccl,cpu:1@oneccl,cpu:1@mpi,cpu:1@mpi", **settings)
    found = re.findall(r"^\[0\] cluster (\d), (\S+): ranks (.*), joined by (.*)$", said, re.MULTILINE)
    assert [(number, ranks) for number, _, ranks, _ in found] == [("0", "0, 1"), ("1", "2, 3"), ("2", "4, 5")]
    assert [whose.split()[0] for *_, whose in found] == ["our", "oneccl", "mpi"]
    assert "ran by hierarchical, predicted to take" in said and "as JHETCC_ALGORITHM asks; else by " in said
    stages = re.findall(r"^\[0\]   stage: (.*)$", said, re.MULTILINE)
    assert stages[:3] == [
        "cluster 0: 2 ranks by our own schedule",
        "cluster 1: 2 ranks by oneccl",
        "cluster 2: 2 ranks by mpi",
    ]
    assert stages[3].startswith("between 3 clusters: ")
    assert all(f"{name} (cpu" in drawn for _, name, _, _ in found) and "clusters: 3" in drawn
