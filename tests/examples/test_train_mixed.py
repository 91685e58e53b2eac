# SPDX-License-Identifier: Apache-2.0
"""The main job cut short: its checks of bits and of the reference pass, and the one it cannot pass yet fails the command."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("JHETCC_")}


def test_a_short_run_passes_its_checks_but_the_loss(tmp_path):
    picture = tmp_path / "loss.png"
    words = [
        sys.executable,
        "-P",
        "-m",
        "jhetcc",
        "launch",
        "--islands",
        "cpu:2,cpu:1,cpu:1",
        "--log-dir",
        str(tmp_path / "logs"),
    ]
    words += [str(ROOT / "examples" / "train_mixed.py"), "--steps", "10", "--output", str(picture)]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=280, check=False)
    assert "[0] check passed: gradients and weights bit-identical on 4 ranks at all 10 steps" in done.stdout, (
        done.stderr
    )
    assert "[0] check passed: loss within" in done.stdout
    (share,) = re.findall(r"^\[0\] step   10/10 .* communicating and waiting +(\d+)%$", done.stdout, re.MULTILINE)
    assert 0 < int(share) <= 100
    assert "[1] " not in done.stdout and "[2] " not in done.stdout, "progress comes from rank 0 only"
    assert picture.stat().st_size > 10_000
    assert done.returncode == 1 and "check failed: loss of the last steps" in done.stderr
