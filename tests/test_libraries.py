# SPDX-License-Identifier: Apache-2.0
"""``make libraries``: what is kept of a wheel, and what is said where there is none. The wheels here are made on the spot."""

import os
import pathlib
import subprocess
import sys
import zipfile

from house import ROOT

SCRIPT = ROOT / "tools" / "libraries.py"
# Of every wheel of the script: entries as the real ones have them, kept and left.
ENTRIES = {
    "mpich-5.0.2": ("mpich-5.0.2.data/data/lib/libmpi_abi.so.1", "mpich-5.0.2.data/data/lib/mpich/libfabric.so.1",
                    "mpich-5.0.2.data/data/bin/mpiexec"),
    "oneccl_cpu-2022.2.0": ("oneccl_cpu-2022.2.0.data/data/lib/libccl.so.1",),
    "oneccl-2022.2.0": ("oneccl-2022.2.0.data/data/lib/libccl.so.2", "oneccl-2022.2.0.data/data/lib/libccl_legacy_cpu.so",
                        "oneccl-2022.2.0.data/data/lib/libccl_sycl.so"),
}  # fmt: skip


def make_wheel(folder, name, entries):
    package, version = name.split("-")
    about = {
        "METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "licenses/LICENSE": "free\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as archive:
        for entry in entries:
            archive.writestr(entry, entry)
        for file, text in about.items():
            archive.writestr(f"{name}.dist-info/{file}", text)


def fetch(wheels, into, *arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, "--into", into, *arguments],
        env=os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def kept(into):
    return {str(path.relative_to(into)) for path in pathlib.Path(into).rglob("*") if not path.is_dir()}


def test_few_files_are_kept_and_their_licences(tmp_path):
    into = tmp_path / "libraries"
    for name, entries in ENTRIES.items():
        make_wheel(tmp_path, name, entries)
    done = fetch(tmp_path, into)
    assert done.returncode == 0, done.stdout + done.stderr
    assert kept(into) == {
        "mpich/.fetched", "mpich/LICENSE", "mpich/lib/libmpi_abi.so.1", "mpich/lib/mpich/libfabric.so.1",
        "oneccl/.fetched", "oneccl/LICENSE", "oneccl/libccl.so.1", "oneccl/libccl.so.2", "oneccl/libccl_legacy_cpu.so",
        "oneccl/libfabric.so.1",
    }  # fmt: skip
    shared = into / "oneccl" / "libfabric.so.1"
    assert shared.resolve() == (into / "mpich/lib/mpich/libfabric.so.1").resolve()
    # What is there already is not fetched again.
    assert fetch(tmp_path / "nowhere", into).returncode == 0


def test_a_wheel_that_cannot_be_had_is_named_and_the_others_come(tmp_path):
    into = tmp_path / "libraries"
    make_wheel(tmp_path, "mpich-5.0.2", ENTRIES["mpich-5.0.2"])
    done = fetch(tmp_path, into)
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 1 and "oneccl is not there" in done.stdout, done.stdout
    assert (into / "mpich/.fetched").exists() and not (into / "oneccl/.fetched").exists()


def test_a_wheel_that_lacks_a_file_is_refused(tmp_path):
    make_wheel(tmp_path, "mpich-5.0.2", ENTRIES["mpich-5.0.2"][:1])
    done = fetch(tmp_path, tmp_path / "libraries", "--only", "mpich")
    assert done.returncode == 1 and "has no lib/mpich/*" in done.stdout, done.stdout


def test_an_unknown_library_is_refused(tmp_path):
    done = fetch(tmp_path, tmp_path / "libraries", "--only", "gloo")
    assert done.returncode == 2 and "no library gloo" in done.stderr
