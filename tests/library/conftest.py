# SPDX-License-Identifier: Apache-2.0
"""Jobs whose processes use vendors' real collective libraries: ``make libraries`` fetches them; without them these tests are skipped."""

import os
import pathlib
import sys

import pytest
import vendor_libraries
from library_faults import case_exit
from processes import Pool

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "raw"))  # its cases are used here, too


def end(pool):
    """Ends the processes as programs end: a library that is killed leaves names of shared memory behind."""
    if pool.workers and all(worker.alive() for worker in pool.workers):
        for outcome in pool.start(case_exit, world=False).finish():
            assert outcome.code == 0, (outcome.code, outcome.error, outcome.output)
    pool.close()


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
        for name in {*names} - {"none"}:
            if vendor_libraries.folder(name) is None:
                pytest.skip(vendor_libraries.needs(name).kwargs["reason"])
        key = (names, jax)
        if key not in held:
            for pool in held.values():
                end(pool)
            held.clear()
            held[key] = Pool([1] * len(names), jax=jax, own=[vendor_libraries.options(name) for name in names])
        return held[key]

    return make


@pytest.fixture(scope="module", autouse=True)
def nothing_left(held):
    """After each file there are no processes of its pools, and no names in /dev/shm that were not there before."""
    before = shared_memory()
    yield
    for pool in held.values():
        end(pool)
    held.clear()
    left = {name for name in shared_memory() - before if owned(name)}
    assert not left, f"left in /dev/shm: {sorted(left)}"


def owned(name):
    return (pathlib.Path("/dev/shm") / name).stat().st_uid == os.getuid()
