# SPDX-License-Identifier: Apache-2.0
"""make demo without a network: one clear line, and the way without vendors' libraries."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# The tests may run below make, which passes its own flags and variables on.
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


@pytest.fixture
def make(tmp_path):
    """Runs make in an environment that counts as set up, whose Python prints a reason and fails."""
    python = tmp_path / "build" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'libraries: mpich is not there: no network'\nexit 1\n")
    python.chmod(0o755)
    for mark in (".setup", ".packages", ".installed"):
        (tmp_path / mark).touch()

    def run(*words):
        command = ["make", "--no-print-directory", *words, f"VENV={tmp_path}"]
        return subprocess.run(
            command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def test_libraries_that_cannot_be_fetched_are_one_line(make):
    done = make("demo")
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert "make demo LIBRARIES=no" in line and line.endswith("libraries: mpich is not there: no network")
    assert "jhetcc launch" not in done.stdout


def test_the_demo_with_and_without_libraries(make):
    with_them, without = make("-n", "demo"), make("-n", "demo", "LIBRARIES=no")
    assert "JHETCC_ALGORITHM=hierarchical" in with_them.stdout and "cpu:1@oneccl,cpu:1@mpi" in with_them.stdout
    assert without.returncode == 0 and "--islands cpu:2,cpu:1,cpu:1 examples/train_mixed.py" in without.stdout
    assert "libraries" not in without.stdout and "JHETCC" not in without.stdout
