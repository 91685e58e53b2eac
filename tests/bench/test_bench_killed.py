# SPDX-License-Identifier: Apache-2.0
"""A bench that is killed takes its members along, whoever started them and even where they are stopped, and leaves no shared memory."""

import contextlib
import json
import os
import pathlib
import secrets
import select
import signal
import stat
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SHARED = pathlib.Path("/dev/shm")
INSTALLED = ROOT / ".venv-bench"
DEADLINE_S = 60

# Stands for an MPI: a launcher whose ranks are its children, and a library that leaves a name in /dev/shm.
LAUNCHER = """#!{python}
import os, subprocess, sys
ranks, command = sys.argv[2], sys.argv[3:]
places = [os.environ | {{"RANK": str(rank), "RANKS": ranks}} for rank in range(int(ranks))]
for each in [subprocess.Popen(command, env=place, start_new_session=True) for place in places]:
    each.wait()
"""
PYTHON = """#!/bin/sh
PYTHONPATH={folder} exec {python} "$@"
"""
LIBRARY = """
import mmap, os
__version__ = "0"
with open({name!r}, "a+b") as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
class MPI:
    SUM = MAX = MIN = None
    Get_library_version = staticmethod(lambda: "none")
    class COMM_WORLD:
        rank, size = int(os.environ["RANK"]), int(os.environ["RANKS"])
        Allreduce = staticmethod(lambda *_: None)
"""


def stand_in(folder, name):
    """An installation of MPICH that is none."""
    home = folder / "mpich" / "bin"
    home.mkdir(parents=True)
    (folder / "mpich" / ".complete").touch()
    (folder / "mpi4py.py").write_text(LIBRARY.format(name=str(SHARED / name)))
    for file, text in (("mpiexec", LAUNCHER), ("python", PYTHON)):
        (home / file).write_text(text.format(python=sys.executable, folder=folder))
        (home / file).chmod(stat.S_IRWXU)
    return folder


def parents():
    """The parent of every process that lives; a zombie does not."""
    found = {}
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (place / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(place.name)] = int(parent)
    return found


def descendants(pid):
    known, living = {pid}, parents()
    while more := {child for child, parent in living.items() if parent in known} - known:
        known |= more
    return known - {pid}


def wait_until(condition, what):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what()}"
        select.select([], [], [], 0.02)


def mapped_names(pids):
    """The names in /dev/shm, now or before, of what these processes have mapped."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
            found |= {line.partition(f"{SHARED}/")[2].removesuffix(" (deleted)") for line in lines}
    return found - {""}


def left_of(names):
    return names & set(os.listdir(SHARED))


def kill_a_bench(tmp_path, peers, installed, processes):
    """Kills the bench while all ranks are stopped, as those are that would not rest; returns the names that they had."""
    path = tmp_path / "rows.jsonl"
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
    with open(tmp_path / "output", "wb") as output:
        bench = subprocess.Popen(
            [sys.executable, str(ROOT / "bench" / "collectives.py"), "--peers", peers, "--sizes", "4", "--rounds", "1000000",
             "--seconds", "0.001", "--quiet-below", "1", "--installed", str(installed), "--json", str(path)],
            stdout=output, stderr=output, cwd=tmp_path, env=environment,
        )  # fmt: skip
    members = set()
    try:

        def is_under_way():
            assert bench.poll() is None, (tmp_path / "output").read_text()
            lines = path.read_text().splitlines() if path.exists() else []
            return [json.loads(line)["kind"] for line in lines] == ["context", "peers"]

        wait_until(is_under_way, lambda: (tmp_path / "output").read_text())
        assert "left out" not in (tmp_path / "output").read_text()
        members = descendants(bench.pid)
        wait_until(lambda: not left_of(mapped_names(members)), lambda: left_of(mapped_names(members)))
        assert len(members) >= processes, members
        for pid in members - set(parents().values()):  # the ranks, not those who started them
            os.kill(pid, signal.SIGSTOP)
        names = mapped_names(members)
        bench.kill()
        bench.wait()
        wait_until(lambda: not members & set(parents()), lambda: members & set(parents()))
        assert not left_of(names)
        return names
    finally:
        bench.kill()
        bench.wait()
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_members_die_with_the_bench(tmp_path):
    name = f"bench-test-{secrets.token_hex(8)}"
    try:
        assert kill_a_bench(tmp_path, "jhetcc,mpich", stand_in(tmp_path / "installed", name), 5) == {name}
    finally:
        (SHARED / name).unlink(missing_ok=True)


@pytest.mark.parametrize("peer", ["mpich", "openmpi", "impi", "oneccl"])
def test_members_of_real_peers_die_with_the_bench(tmp_path, peer):
    if not (INSTALLED / peer / ".complete").exists():
        pytest.skip(
            f"{peer}, a peer of the bench alone, is not installed: python bench/setup_peers.py (a stand-in was tested)"
        )
    assert kill_a_bench(tmp_path, peer, INSTALLED, 2)
