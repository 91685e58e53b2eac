# SPDX-License-Identifier: Apache-2.0
"""What the first page promises: exactly two commands, and a program that runs as printed."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("JHETCC_")}


def test_two_commands_on_the_first_screen():
    first_block = re.search(r"```\n(.*?)```", README, re.DOTALL)
    assert first_block is not None and README[: first_block.end()].count("\n") < 25
    commands = [line.split("#")[0].strip() for line in first_block.group(1).splitlines()]
    assert commands == ["make demo", "make test"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test"} <= set(targets)


def test_the_program_runs_as_printed(tmp_path):
    program = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert program is not None
    script = tmp_path / "script.py"
    script.write_text(program.group(1))
    words = [
        sys.executable,
        "-P",
        "-m",
        "jhetcc",
        "launch",
        "-n",
        "2",
        "--log-dir",
        str(tmp_path / "logs"),
        str(script),
    ]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 0 [0. 2. 4. 6.]", "[1] 1 [0. 2. 4. 6.]"]
