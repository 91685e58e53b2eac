# SPDX-License-Identifier: Apache-2.0
"""The launcher's command line as a value: which processes, which command, where logs go. Pure, but for looking for the script."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

from jhetcc.config import LIBRARIES
from jhetcc.errors import BadArgumentError, UnavailableError

__all__ = ["Island", "Job", "parse_islands", "read_arguments"]

_GRACE_S = 3.0  # long enough to notice the failure and to raise an error of one's own
_LATER = ("cuda", "gpu", "rocm", "tpu")
_ONE_RANK = ("oneccl", "mpi")  # libraries that join one rank of a process
_DEVICES_MAX = 1024


@dataclass(frozen=True)
class Island:
    """One process: its platform, its number of devices, and its cluster's library; None leaves ``JHETCC_LIBRARY`` as it is."""

    platform: str
    devices: int
    library: str | None = None

    def __str__(self) -> str:
        return f"{self.platform}:{self.devices}" + (f"@{self.library}" if self.library else "")


@dataclass(frozen=True)
class Job:
    """Everything ``run`` needs.

    Attributes:
      islands: one a process, in the order of their numbers.
      command: arguments of the Python interpreter: ``("script.py", ...)`` or ``("-m", "module", ...)``.
      log_dir: where each process's output is kept; None makes a directory.
      timeout: seconds after which the job is ended as failed; None waits.
      grace: seconds that the others have after a failure before they are ended; ``math.inf`` lets them go on.
    """

    islands: tuple[Island, ...]
    command: tuple[str, ...]
    log_dir: str | None = None
    timeout: float | None = None
    grace: float = _GRACE_S


def parse_islands(text: str) -> tuple[Island, ...]:
    """Reads ``cpu:2,cpu,cpu@mpi``: one process each, with that platform, number of devices (1 where none is given) and library.

    Raises:
      BadArgumentError: not of that form.
      UnavailableError: a platform this build has no devices for.
    """
    islands = []
    for item in text.split(","):
        place, at, library = item.strip().partition("@")
        platform, colon, count = place.partition(":")
        if platform in _LATER:
            raise UnavailableError(
                f"island {item!r}: platform {platform} is not there yet, this version has no device room for it; use cpu:N",
                code="unavailable",
                scope="process",
            )
        if platform != "cpu":
            raise _wrong(
                f"island {item!r}: unknown platform {platform!r}; write cpu:N, for example --islands cpu:2,cpu:1,cpu:1"
            )
        if colon and not (count.isascii() and count.isdigit() and 1 <= int(count) <= _DEVICES_MAX):
            raise _wrong(
                f"island {item!r}: {count!r} is no number of devices; write cpu:N, with N from 1 to {_DEVICES_MAX}"
            )
        if at and library not in LIBRARIES:
            raise _wrong(f"island {item!r}: unknown library {library!r}; write cpu:N@NAME, with NAME {_or(LIBRARIES)}")
        islands.append(Island(platform, int(count) if colon else 1, library if at else None))
        if islands[-1].devices > 1 and library in _ONE_RANK:
            raise _wrong(
                f"island {item!r}: {library} joins one rank of a process, and this one would have {count}; write cpu:1@{library} "
                f"{count} times"
            )
    return tuple(islands)


def _or(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def read_arguments(arguments: Sequence[str]) -> Job:
    """Reads ``[-n N | --islands LIST] [--log-dir DIR] [--timeout S] [--grace S] [--] script.py args...`` or ``... -m module args...``."""
    own, command = _split(list(arguments))
    parser = argparse.ArgumentParser(
        prog="jhetcc launch",
        usage="jhetcc launch [-n N | --islands cpu:2,cpu:1@mpi,cpu:1@mpi] [--log-dir DIR] [--timeout S] [--grace S] "
        "[--] script.py args... | -m module args...",
        description="Starts the processes of a job on this machine. For several machines, see docs/launchers.md.",
    )
    how_many = parser.add_mutually_exclusive_group()
    how_many.add_argument("-n", type=int, metavar="N", help="number of processes, one CPU device each")
    how_many.add_argument(
        "--islands",
        metavar="LIST",
        help="one process an entry, platform:devices, for example cpu:2,cpu:1,cpu:1; @NAME sets the library of its cluster "
        "(JHETCC_LIBRARY), for example cpu:1@oneccl",
    )
    parser.add_argument(
        "--log-dir", metavar="DIR", help="keep each process's output here; default: a new temporary directory"
    )
    parser.add_argument("--timeout", type=float, metavar="S", help="end the job as failed after this many seconds")
    parser.add_argument(
        "--grace",
        type=float,
        metavar="S",
        default=_GRACE_S,
        help="after a failure, let the others run for this many seconds; inf: until they end by themselves; default: %(default)g",
    )
    values = parser.parse_args(own)
    if values.n is not None and not 1 <= values.n <= _DEVICES_MAX:
        raise _wrong(f"-n {values.n}: write a number of processes from 1 to {_DEVICES_MAX}")
    if values.timeout is not None and not values.timeout > 0:
        raise _wrong(f"--timeout {values.timeout:g}: write a number of seconds above 0")
    if not values.grace >= 0:
        raise _wrong(f"--grace {values.grace:g}: write a number of seconds, or inf")
    if not command:
        raise _wrong("nothing to start: give a script, for example `jhetcc launch -n 2 train.py`")
    if command[0] != "-m" and not os.path.exists(command[0]):
        raise _wrong(f"cannot find script {command[0]} from directory {os.getcwd()}")
    if command[0] == "-m" and len(command) < 2:
        raise _wrong("-m needs the name of a module")
    islands = parse_islands(values.islands) if values.islands is not None else (Island("cpu", 1),) * (values.n or 1)
    return Job(islands, tuple(command), values.log_dir, values.timeout, values.grace)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    # Everything from the script on belongs to the script, whatever it looks like.
    place = 0
    while place < len(arguments):
        word = arguments[place]
        if word == "--":
            return arguments[:place], arguments[place + 1 :]
        if word == "-m" or not word.startswith("-"):
            return arguments[:place], arguments[place:]
        place += 2 if word in ("-n", "--islands", "--log-dir", "--timeout", "--grace") else 1
    return arguments, []


def _wrong(message: str) -> BadArgumentError:
    return BadArgumentError(f"{message}; see `jhetcc launch --help`", code="bad_argument", scope="process")
