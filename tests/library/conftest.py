# SPDX-License-Identifier: Apache-2.0
"""Jobs whose processes use vendors' real collective libraries: ``make libraries`` fetches them; without them these tests are skipped."""

import os
import pathlib
import sys

import pytest
from processes import Pool

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "raw"))  # its cases are used here, too

# Name of a library: the variable with its folder, and where `make libraries` puts it.
FOLDERS = {"oneccl": ("JHETCC_TEST_ONECCL", "oneccl"), "mpi": ("JHETCC_TEST_MPI", "mpich")}
# Taken out: no option of jhetcc has such a name, and init() refuses what it does not know.
GIVEN = {name: os.environ.pop(variable, None) for name, (variable, _) in FOLDERS.items()}


def folder(name):
    """Where a library is, or the test is skipped."""
    variable, fetched = FOLDERS[name]
    path = GIVEN[name] or pathlib.Path(sys.prefix) / "libraries" / fetched
    if not pathlib.Path(path).is_dir():
        pytest.skip(f"no {name}: make libraries, or set {variable} to its folder")
    return str(path)


def settings(name):
    """What a process of a cluster with this library is told."""
    return {} if name == "none" else {"JHETCC_LIBRARY": name, "JHETCC_LIBRARY_PATH": folder(name)}


def shared_memory():
    return set(os.listdir("/dev/shm"))


@pytest.fixture(scope="session")
def held():
    """The one pool that is alive, and what it is for: libraries remember the first job of a process."""
    pools = {}
    yield pools
    for pool in pools.values():
        pool.close()


@pytest.fixture
def cluster_pool(held):
    """``cluster_pool("oneccl", "mpi", "none")``: a pool of three processes, each in a cluster with this library."""

    def make(*names, jax=False):
        key = (names, jax)
        if key not in held:
            for pool in held.values():
                pool.close()
            held.clear()
            held[key] = Pool([1] * len(names), jax=jax, own=[settings(name) for name in names])
        return held[key]

    return make


@pytest.fixture(scope="module", autouse=True)
def nothing_left(held):
    """After each file there are no processes of its pools, and no names in /dev/shm that were not there before."""
    before = shared_memory()
    yield
    for pool in held.values():
        pool.close()
    held.clear()
    left = {name for name in shared_memory() - before if owned(name)}
    assert not left, f"left in /dev/shm: {sorted(left)}"


def owned(name):
    return (pathlib.Path("/dev/shm") / name).stat().st_uid == os.getuid()
