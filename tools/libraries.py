# SPDX-License-Identifier: Apache-2.0
"""Fetches vendors' collective libraries for tests and the demo: the few files of their PyPI wheels that are needed, no package manager.

    python tools/libraries.py [--into .venv/libraries] [--only mpich,oneccl,impi]

Each is used under its own licence, which is put next to it; none is part of jhetcc. docs/libraries.md says what they can do.
"""

import argparse
import fnmatch
import pathlib
import subprocess
import sys
import tempfile
import zipfile

# By place: of each wheel, the files that are kept; what lies below data/ keeps its folders.
WHEELS = {
    "mpich": {"mpich==5.0.2": ("lib/libmpi_abi.so.1", "lib/mpich/*")},
    "oneccl": {"oneccl-cpu==2022.2.0": ("libccl.so.1",), "oneccl==2022.2.0": ("libccl.so.2", "libccl_legacy_cpu.so")},
    "impi": {"impi-rt==2021.18.1": ("lib/libmpi_abi.so.1", "lib/libfabric.so.1", "lib/lib*-fi.so", "opt/mpi/etc/*")},
}


def _kept(entry, patterns):
    """Where a wheel's entry goes below the place, or None."""
    path = pathlib.PurePosixPath(entry)
    if entry.endswith("/"):
        return None
    if path.parts[0].endswith(".dist-info"):
        return pathlib.PurePosixPath(path.name) if "LICENSE" in path.name.upper() else None
    below = pathlib.PurePosixPath(*path.parts[2:]) if path.parts[0].endswith(".data") else path
    for pattern in patterns:
        if "/" not in pattern and path.name == pattern:
            return pathlib.PurePosixPath(path.name)
        if fnmatch.fnmatch(str(below), pattern):
            return below
    return None


def _fetch_wheel(package, patterns, place):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run(
            [*command, "--only-binary=:all:", "--dest", folder, package], capture_output=True, text=True, check=False
        )
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["pip says nothing"]
            raise RuntimeError(f"{package}: {lines[-1]}")
        (wheel,) = pathlib.Path(folder).glob("*.whl")
        kept = set()
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.namelist():
                if (below := _kept(entry, patterns)) is None:
                    continue
                target = place / below
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(entry))
                kept.add(str(below))
    if missing := [pattern for pattern in patterns if not fnmatch.filter(kept, pattern)]:
        raise RuntimeError(f"{package} has no {', '.join(missing)}")


def fetch(name, place):
    """Puts a library's files below a folder. What is there already stays.

    Raises:
        RuntimeError: The wheel cannot be had, or lacks a file.
    """
    place.mkdir(parents=True, exist_ok=True)
    mark = place / ".fetched"
    wanted = " ".join(WHEELS[name])
    if mark.exists() and mark.read_text() == wanted:
        return
    for package, patterns in WHEELS[name].items():
        _fetch_wheel(package, patterns, place)
    mark.write_text(wanted)


def _share_libfabric(into):
    """oneCCL runs on MPICH's libfabric, so that both can be in one process; the system's has the same name and is older."""
    shared = into / "mpich" / "lib" / "mpich" / "libfabric.so.1"
    link = into / "oneccl" / "libfabric.so.1"
    if shared.exists() and link.parent.exists() and not link.exists():
        link.symlink_to(pathlib.Path("..", *shared.relative_to(into).parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=pathlib.Path, default=pathlib.Path(".venv/libraries"))
    parser.add_argument("--only", default="mpich,oneccl", help="comma separated; impi is Intel MPI, 129 MB")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := set(names) - set(WHEELS):
        parser.error(f"no library {', '.join(sorted(unknown))}; there are {', '.join(WHEELS)}")
    into, failed = arguments.into.resolve(), False
    for name in names:
        try:
            fetch(name, into / name)
        except (RuntimeError, OSError) as why:
            print(f"libraries: {name} is not there, and what needs it is skipped: {why}", flush=True)
            failed = True
    _share_libfabric(into)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
