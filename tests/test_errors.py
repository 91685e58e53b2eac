# SPDX-License-Identifier: Apache-2.0
"""The typed error behind a text that went through XLA."""

import subprocess
import sys

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
