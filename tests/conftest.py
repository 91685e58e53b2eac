# SPDX-License-Identifier: Apache-2.0
"""Pools of processes, shared by all tests of a session: starting JAX costs seconds."""

import signal

import pytest
import vendor_libraries  # noqa: F401 - takes its variables out of the environment before a test calls init()
from processes import Pool


@pytest.fixture(scope="session")
def pools():
    """``pools(1, 1)``: two processes of one plain rank each; ``pools(2, 1, 1, jax=True)``: ranks are JAX devices."""
    made = {}

    def pool(*grouping, jax=False):
        key = (grouping, jax)
        if key not in made:
            made[key] = Pool(grouping, jax=jax)
        return made[key]

    yield pool
    for each in made.values():
        each.close()


# A test run in the background of a shell inherits an ignored SIGINT, and so would the processes whose Ctrl-C is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)
