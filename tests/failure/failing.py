# SPDX-License-Identifier: Apache-2.0
"""What the tests of failures share: short limits, what an error must say, and how soon."""

import time

import numpy as np

import jhetcc

TIMEOUT_S = 3.0
SHORT = {
    "JHETCC_OPERATION_TIMEOUT": f"{TIMEOUT_S}s",
    "JHETCC_WARN_AFTER": "1s",
    "JHETCC_ABORT_GATHER": "500ms",
    "JHETCC_ABORT_CONFIRM": "1s",
}
# Machines under test are loaded: this much more than the limit itself is still promptly.
SLACK_S = 5.0
WIRES = {"shm": {}, "tcp": {"JHETCC_TRANSPORT": "tcp"}}


def failed(outcome, kind, *words, within=TIMEOUT_S + SLACK_S):
    """Checks how a case failed in one process; returns the error."""
    error = outcome.error
    assert error is not None, (
        f"process {outcome.index}: no error, but {outcome.value!r}, code {outcome.code}\n{outcome.output}"
    )
    assert isinstance(error, kind), f"process {outcome.index}: {type(error).__name__}: {error}"
    for word in words:
        assert word in str(error), f"process {outcome.index}: {word!r} is not in: {error}"
    assert outcome.seconds < within, f"process {outcome.index} took {outcome.seconds:.1f} s: {error}"
    return error


def value(comm, count=1000):
    return np.arange(count, dtype=np.float32) + comm.rank


def ended(comm, error):
    """The communicator is over: everything fails at once, with the error that all ranks were told."""
    begun = time.monotonic()
    for call in (comm.barrier, comm.check, lambda: comm.all_reduce(np.zeros(1))):
        try:
            call()
        except jhetcc.Error as again:
            assert type(again) is type(error) and again.code == error.code, (error, again)
        else:
            raise AssertionError("a call went through on a communicator that has ended")
    assert time.monotonic() - begun < 1
    assert comm.status()["ended"]


def goes_on(comm, size):
    """After shrink: the survivors' sums are right."""
    smaller = comm.shrink(timeout=30)
    assert smaller.size == size and smaller.epoch == comm.epoch + 1
    for k in range(20):
        got = smaller.all_reduce(np.full(5, 10.0**smaller.rank) + k)
        assert (got == sum(10.0**rank for rank in range(size)) + size * k).all(), got
    smaller.barrier()
    return smaller.world_ranks
