# SPDX-License-Identifier: Apache-2.0
"""What the installed package needs: nothing of a vendor, and the files a package must bring."""

import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shutil
import stat
import struct
import subprocess
import sys

import pytest
from processes import import_path

import jhetcc
from jhetcc.errors import UnavailableError

# What any Linux with a C++ compiler's run-time has.
COMMON = ("libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libstdc++.so", "libgcc_s.so", "ld-linux")


def needed_libraries(path):
    """DT_NEEDED of a 64-bit little-endian ELF file."""
    data = pathlib.Path(path).read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01", "64-bit little-endian ELF"
    section_offset, entry_size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, section_offset + k * entry_size) for k in range(count)]
    names = []
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind == 6:  # SHT_DYNAMIC
            strings = sections[link][4]
            for place in range(offset, offset + size, 16):
                tag, value = struct.unpack_from("<qQ", data, place)
                if tag == 1:  # DT_NEEDED
                    names.append(data[strings + value : data.index(b"\0", strings + value)].decode())
    return names


def test_the_core_needs_no_library_of_a_vendor():
    core = importlib.util.find_spec("jhetcc._core")
    assert core is not None and core.origin is not None
    needed = needed_libraries(core.origin)
    assert any(name.startswith("libc.so") for name in needed), needed
    assert all(name.startswith(COMMON) for name in needed), needed


def test_the_package_is_typed():
    folder = pathlib.Path(jhetcc.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_core.pyi").exists()


def test_a_source_tree_without_the_core_says_what_to_do(tmp_path):
    """It hides the installed package from a script in the folder beside it."""
    core = pathlib.Path(jhetcc.__file__).parent
    shutil.copytree(core, tmp_path / "jhetcc", ignore=shutil.ignore_patterns("_core*.so", "__pycache__"))
    (tmp_path / "script.py").write_text("import jhetcc\njhetcc.init(num_processes=1)\n")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and "no compiled core" in done.stderr and "python -P" in done.stderr, done.stderr


def test_the_command_is_installed():
    scripts = importlib.metadata.entry_points(group="console_scripts")
    assert any(script.name == "jhetcc" and script.value == "jhetcc.cli:main" for script in scripts)


def signatures(text):
    """Every function of a stub with its parameters, in order; layout and docstrings aside."""
    found = re.findall(r"(?:class (\w+))|(?:def (\w+)\((.*?)\)(?: ->|:))", text, flags=re.DOTALL)
    return [(kind or name, " ".join(parameters.split())) for kind, name, parameters in found]


def test_stub_is_that_of_the_core():
    """Written by ``make docs``."""
    from nanobind.stubgen import StubGen

    import jhetcc._core

    generator = StubGen(jhetcc._core)
    generator.put(jhetcc._core)
    checked_in = (pathlib.Path(__file__).parents[1] / "jhetcc" / "_core.pyi").read_text()
    assert signatures(generator.get()) == signatures(checked_in)


# Versions of JAX


@pytest.mark.parametrize(
    ("version", "fits"), [("0.9.2", False), ("0.10.0", True), ("0.12.1", True), ("0.13.0", False), ("1.0", False)]
)
def test_versions_of_jax(version, fits):
    """C122: what is served is served, and what is not is told in one sentence."""
    from jhetcc import compat

    why = compat.version_fit(version)
    assert (why is None) == fits
    assert fits or (version in why and "pip install 'jax>=0.10,<0.13'" in why and "\n" not in why)


def test_another_jax_is_refused_at_import():
    """C122: before any name that the other version may not have."""
    source = (
        "import jax, jax._src, sys; jax.__version__ = '0.9.2'; del jax._src.effects, sys.modules['jax._src.effects']\n"
    )
    source += (
        "import jhetcc\ntry:\n    jhetcc.psum\nexcept jhetcc.UnavailableError as error:\n    print(error.code, error)\n"
    )
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": import_path(),
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", source], capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert done.returncode == 0 and done.stdout.startswith("jax_version jax 0.9.2 is installed"), (
        done.stdout + done.stderr
    )


@pytest.mark.parametrize(("major", "minor", "fits"), [(0, 0, False), (0, 1, True), (0, 9, True), (1, 0, False)])
def test_ffi_versions(major, minor, fits, tmp_path, monkeypatch):
    """C124: a runtime older than the headers of the build, or of another major version, is refused with both versions."""
    import jax

    from jhetcc import registration

    folder = tmp_path / "xla" / "ffi" / "api"
    folder.mkdir(parents=True)
    (folder / "c_api.h").write_text(f"#define XLA_FFI_API_MAJOR {major}\n#define XLA_FFI_API_MINOR {minor}\n")
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    monkeypatch.setattr(registration, "_registered", False)
    why = registration.api_fit()
    if fits:
        assert why is None
        return
    assert f"{major}.{minor}" in why and "need API 0.1" in why and jax.__version__ in why
    with pytest.raises(UnavailableError, match=r"need API 0\.1"):
        registration.register()


def test_the_build_takes_an_old_ffi():
    """C124: handlers of the oldest API run on all later ones; this is the oldest one that this build may have."""
    from jhetcc import _core

    assert tuple(_core.ffi_api_version()) == (0, 1)


# The compiler


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no CMake")
def test_compiler_and_flags_come_from_the_environment(tmp_path):
    """C121: CXX and CXXFLAGS are taken as they are."""
    compiler = tmp_path / "my-compiler"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which(os.environ.get("CXX", "c++"))} "$@"\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    environment = os.environ | {"CXX": str(compiler), "CXXFLAGS": "-DOF_THE_USER=1"}
    root = pathlib.Path(__file__).resolve().parent.parent
    command = [
        "cmake",
        "-S",
        str(root),
        "-B",
        str(tmp_path / "build"),
        "-DJHETCC_PYTHON=OFF",
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    commands = (tmp_path / "build" / "compile_commands.json").read_text()
    assert commands.count(str(compiler)) > 20 and commands.count("-DOF_THE_USER=1") > 20
