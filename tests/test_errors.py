# SPDX-License-Identifier: Apache-2.0
"""The typed error behind a text that went through XLA."""

import subprocess
import sys

import pytest

from jhetcc.errors import PeerLostError, error_of

MARK = " [jhetcc kind=disconnected; scope=communicator; code=peer_lost; ranks=1,2]"
PREFIX = "Error dispatching computation: "


def test_prefixes_of_xla_go():
    for before in (
        "",
        "UNAVAILABLE: ",
        "INTERNAL: " + PREFIX,
        "INTERNAL: " + PREFIX * 3,
        "INTERNAL: something; " + PREFIX,
    ):
        error = error_of(RuntimeError(f'{before}peer lost on "world": X_Y: why{MARK}'))
        assert isinstance(error, PeerLostError)
        assert str(error) == 'peer lost on "world": X_Y: why'
        assert (error.code, error.scope, error.ranks) == ("peer_lost", "communicator", (1, 2))


def test_long_chains_of_programs_are_read_in_linear_time():
    """Every program that takes a failed array adds a prefix; in a process of its own, as a search that blows up cannot be ended."""
    script = (
        "from jhetcc.errors import error_of\n"
        f"chain = 'INTERNAL: ' + {PREFIX!r} * 100_000\n"
        "assert error_of(RuntimeError(chain + 'out of memory')) is None\n"
        f"assert str(error_of(RuntimeError(chain + 'gone' + {MARK!r}))) == 'gone'\n"
    )
    subprocess.run([sys.executable, "-P", "-c", script], check=True, timeout=60)


GLOO = "UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:547] "


@pytest.mark.parametrize(
    "why",
    [
        "Connection closed by peer [127.0.0.1]:5",
        "Read error [10.0.0.2]:5: Connection reset by peer",
        "writev [::1]:5: Broken pipe",
    ],
)
def test_a_lost_process_of_an_island_is_known_by_what_gloo_says(why):
    error = error_of(RuntimeError(GLOO + why))
    assert isinstance(error, PeerLostError) and (error.code, error.scope, error.ranks) == ("island_lost", "process", ())
    assert why in str(error) and "jax.distributed" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        GLOO + "Timed out waiting 30000ms for recv operation to complete",
        "Connection closed by peer [127.0.0.1]:5",
        "Gloo",
    ],
)
def test_what_may_have_another_cause_is_left_alone(text):
    assert error_of(RuntimeError(text)) is None
