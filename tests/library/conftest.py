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
sys.path += [str(HERE.parent / room) for room in ("raw", "trace")]  # their cases are used here, too


PIDS = set()


def end(pool):
    """Ends the processes as programs end: a library that is killed leaves names of shared memory behind."""
    if pool.workers and all(worker.alive() for worker in pool.workers):
        for outcome in pool.start(case_exit, world=False).finish():
            assert outcome.code == 0, (outcome.code, outcome.error, outcome.output)
    pool.close()
    PIDS.update(pool.pids)


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
    """After each file the processes of its pools are gone, and so is what they had in /dev/shm under their numbers."""
    yield
    for pool in held.values():
        end(pool)
    held.clear()
    assert not [pid for pid in PIDS if os.path.exists(f"/proc/{pid}")]
    left = [name for name in os.listdir("/dev/shm") if name.split(":")[0] in map(str, PIDS)]
    PIDS.clear()
    assert not left, f"left in /dev/shm: {sorted(left)}"
