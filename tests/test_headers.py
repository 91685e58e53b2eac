# SPDX-License-Identifier: Apache-2.0
"""Every C++ header stands alone: nothing is included only by luck of order."""

import concurrent.futures
import os
import shutil
import subprocess

import pytest
from house import ROOT, sources

# The one that builds, and the other kind where it is installed.
COMPILERS = sorted({name for name in (os.environ.get("CXX", "c++"), "g++", "clang++") if shutil.which(name)})
# These need headers of jaxlib or nanobind, which the build finds; the build compiles each of them first in its own source.
OUTSIDE = ("cc/ffi/", "cc/py/")


def real(name):
    return os.path.realpath(shutil.which(name))


@pytest.mark.skipif(not COMPILERS, reason="no C++ compiler")
@pytest.mark.parametrize("compiler", {real(name): name for name in COMPILERS}.values())
def test_every_header_compiles_alone(compiler):
    """C123, C121."""
    headers = [path for path in sources(".h", under="cc/") if not str(path).startswith((*OUTSIDE, "cc/tests/"))]
    assert headers
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++", "-I", str(ROOT / "cc")]

    def compile_alone(path):
        # Through a source of one line, since `#pragma once` in a main file is a warning.
        source = f'#include "{path.relative_to("cc")}"\n'
        return subprocess.run(
            [compiler, *flags, "-"], input=source, capture_output=True, text=True, timeout=120, check=False
        )

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = dict(zip(headers, pool.map(compile_alone, headers), strict=True))
    wrong = [f"{path}:\n{result.stderr}" for path, result in results.items() if result.returncode]
    assert not wrong, "\n".join(wrong)
