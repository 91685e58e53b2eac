# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in jobs with vendors' libraries: cases of the processes; how they must end is in the tests."""

import dataclasses
import os
import signal
import sys
import threading
import time

import numpy as np
from process_worker import hear, here, say, until_error

import jhetcc
from jhetcc.world import library

FORCED = {"JHETCC_ALGORITHM": "hierarchical", "JHETCC_CHUNK_BYTES": "64kb"}


def goes_on(comm):
    """Shrinks and sums; returns the members, and what explain says of it."""
    smaller = comm.shrink(timeout=30)
    for k in range(5):
        got = smaller.all_reduce(np.full(5000, 10.0**smaller.rank) + k)
        assert (got == sum(10.0**rank for rank in range(smaller.size)) + smaller.size * k).all(), got
    smaller.barrier()
    return smaller.world_ranks, smaller.explain("psum(f32[5000])")


def end(result, code):
    """Tells how it went; ends when the test wants it, as a program does, whatever thread is stuck where."""
    say(result)
    hear()
    sys.exit(code)


def settle():
    """All ranks have come here before any goes on: what happens next meets none of them in an earlier call."""
    say("ready")
    hear()


def case_stream(comm, count):
    """Sums until the victim is no more; the survivors go on, and end with a thread in their library."""
    data = np.ones(count, np.float32)
    comm.all_reduce(data)
    settle()
    error, seconds = until_error(lambda: comm.all_reduce(data))
    begun = time.monotonic()
    try:
        comm.all_reduce(data)
    except jhetcc.Error as again:
        assert again.code == error.code, (again, error)
    assert time.monotonic() - begun < 1
    end((type(error).__name__, error.ranks, str(error), seconds, goes_on(comm)), 40 + comm.rank)


def case_abort(comm, who, is_streaming):
    """One rank ends the communicator: while the others wait for it, or while all are in calls of their libraries."""
    data = np.ones(500_000, np.float32)
    comm.all_reduce(data)
    settle()

    def end_it():
        hear()
        comm.abort("enough")

    ender = threading.Thread(target=end_it)
    if comm.rank == who:
        ender.start()
        if not is_streaming:
            ender.join()
    error, _ = until_error(lambda: comm.all_reduce(data))
    if comm.rank == who:
        ender.join()
    end((type(error).__name__, str(error), goes_on(comm)[0]), 40 + comm.rank)


def case_mismatch(comm, odd):
    """One rank gives another count; then everybody counts the calls that are inside a library."""
    comm.all_reduce(np.ones(5000, np.float32))
    settle()
    try:
        comm.all_reduce(np.ones(5001 if comm.rank == odd else 5000, np.float32))
    except jhetcc.Error as error:
        return type(error).__name__, str(error), native_threads()
    raise AssertionError("a result was returned")


def case_sums_and_explain(comm):
    assert (comm.all_reduce(np.full(5000, comm.rank, np.float32)) == sum(range(comm.size))).all()
    return comm.explain("psum(f32[5000])")


def native_threads():
    """Threads of this process that are called as those of native calls."""
    names = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm", encoding="ascii") as file:
            names.append(file.read().strip())
    return names.count("jhetcc-native")


def case_part_of_survivors(comm, victim, count):
    """The victim is in no part of theirs, which goes on with its library after it is gone."""
    part = comm.split(-1 if comm.rank == victim else 0, name="rest")
    if part is not None:
        part.all_reduce(np.ones(count, np.float32))
    settle()
    hear()
    for k in range(5):
        got = part.all_reduce(np.full(count, part.rank + k, np.float32))
        assert (got == sum(range(part.size)) + part.size * k).all()
    end(part.explain("psum(f32[5000])"), 40 + comm.rank)


def case_slow_loading(slow, seconds, options):
    """The library of one process takes its time; what is logged is the test's to see."""
    kept = library.load

    def load(*arguments):
        end = time.monotonic() + seconds
        while time.monotonic() < end:  # a vendor's set-up is busy, and deaf
            pass
        return kept(*arguments)

    os.environ.update(options)
    if here()["process_id"] == slow:
        library.load = load
    try:
        comm = jhetcc.init(**here(), timeout=60)
        got = comm.all_reduce(np.ones(5000, np.float32))
        assert (got == comm.size).all()
        comm.close()
    finally:
        library.load = kept


def case_init(environments, timeout):
    """Joins with settings of its own; returns how long it took to fail."""
    me = here()["process_id"]
    for name in ("JHETCC_LIBRARY", "JHETCC_LIBRARY_PATH", "JHETCC_CLUSTER"):
        os.environ.pop(name, None)
    environment = dict(environments[me])
    devices = int(environment.pop("devices", 1))
    os.environ.update(environment)
    begun = time.monotonic()
    try:
        comm = jhetcc.init(**here() | {"devices": devices}, timeout=timeout)
    except jhetcc.Error as error:
        return type(error).__name__, error.code, str(error), time.monotonic() - begun
    comm.close()
    raise AssertionError("joined")


def case_two_versions(environments, versions, timeout):
    """As case_init, where the libraries say that they are of these versions."""
    me, kept = here()["process_id"], library.capabilities
    library.capabilities = lambda own: dataclasses.replace(kept(own), version=versions[me])
    try:
        return case_init(environments, timeout)
    finally:
        library.capabilities = kept


def case_two_clusters(versions):
    """Processes without a label, whose libraries say that they are of these versions: how many clusters they are."""
    kept = library.capabilities
    library.capabilities = lambda own: dataclasses.replace(kept(own), version=versions[here()["process_id"]])
    try:
        comm = jhetcc.init(**here(), timeout=30)
        case_sums_and_explain(comm)
        found = len(comm.clusters)
        comm.close()
        return found
    finally:
        library.capabilities = kept


def case_open_fails(who, timeout):
    """Opening the library fails in one process, at once."""
    from jhetcc import _core
    from jhetcc.errors import UnavailableError

    kept = _core.use_library

    def fails(*_, **__):
        raise UnavailableError("no way between them", code="library_failed", scope="process")

    if here()["process_id"] == who:
        _core.use_library = fails
    begun = time.monotonic()
    try:
        jhetcc.init(**here(), timeout=timeout).close()
    except jhetcc.Error as error:
        return type(error).__name__, error.code, str(error), time.monotonic() - begun
    finally:
        _core.use_library = kept
    raise AssertionError("joined")


def case_killed_in_opening(who, timeout):
    """A process is killed when its cluster opens its library; how long until the others heard."""
    from jhetcc import _core

    kept = _core.use_library
    if here()["process_id"] == who:
        _core.use_library = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        jhetcc.init(**here(), timeout=timeout).close()
    except jhetcc.Error as error:
        end((type(error).__name__, error.code, error.ranks, str(error), time.monotonic() - begun), 40)
    finally:
        _core.use_library = kept
    raise AssertionError("joined")


def case_exit():
    sys.exit(0)


def case_exit_in_call(comm, count):
    """The others leave their communicator as it is and end by themselves, each with its own code."""
    data = np.ones(count, np.float32)
    comm.all_reduce(data)
    settle()
    until_error(lambda: comm.all_reduce(data))
    sys.exit(40 + comm.rank)


def case_late(comm, late):
    """One process ends when the others are gone; none had any trouble."""
    comm.all_reduce(np.ones(20_000, np.float32))
    part = comm.split(0, name="part")
    part.all_reduce(np.ones(20_000, np.float32))
    if comm.rank == late:
        end("waiting", 40 + comm.rank)
    sys.exit(40 + comm.rank)
