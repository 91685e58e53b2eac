# SPDX-License-Identifier: Apache-2.0
"""The command ``jhetcc``: finds the subcommand and turns this library's errors into one line and exit code 2."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence

from jhetcc.config import VERSION
from jhetcc.errors import Error

__all__ = ["main"]

_COMMANDS = {
    "launch": "start the processes of a job on this machine",
    "secret": "make a job secret",
    "env": "list all options with their present values",
    "doctor": "check what this machine offers and lacks",
    "status": "ask the jobs on this host what they are doing, and for the state of their paths",
    "topo": "show hosts, devices, NICs and clusters",
    "plan": "print the schedule of an operation",
    "trace": "join recordings of processes into one timeline",
    "demo": "show a training that goes on while NICs are taken away",
    "profile": "measure what plans are chosen by, as a program of a job",
}


def _usage() -> str:
    rows = "\n".join(f"  {name:8} {about}" for name, about in _COMMANDS.items())
    return f"usage: jhetcc COMMAND [arguments]\n\n{rows}\n\n`jhetcc COMMAND --help` says more. Version {VERSION}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; 2 where it was called wrongly."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(VERSION)
        return 0
    if words[0] not in _COMMANDS:
        near = difflib.get_close_matches(words[0], _COMMANDS, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        print(f"jhetcc: no command {words[0]!r}{meant} Commands: {', '.join(_COMMANDS)}", file=sys.stderr)
        return 2
    command = importlib.import_module(f"jhetcc.cli.{words[0]}")
    try:
        return command.run(words[1:])
    except Error as error:
        print(f"jhetcc {words[0]}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 141
