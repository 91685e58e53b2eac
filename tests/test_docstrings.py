# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings run, and show what really comes out."""

import subprocess
import sys

from processes import environment

RUN = """
import doctest, importlib, pkgutil
import jhetcc

ran = 0
for module in pkgutil.walk_packages(jhetcc.__path__, "jhetcc."):
    if module.name.rsplit(".", 1)[1] not in ("__main__", "_core"):
        results = doctest.testmod(importlib.import_module(module.name))
        assert not results.failed, module.name
        ran += results.attempted
print("ran", ran)
"""


def test_examples_in_docstrings():
    command = [sys.executable, "-P", "-c", RUN]
    done = subprocess.run(command, env=environment(1, {}), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split("ran")[1]) >= 100
