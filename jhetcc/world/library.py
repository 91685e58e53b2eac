# SPDX-License-Identifier: Apache-2.0
"""The collective library of this process's cluster (``JHETCC_LIBRARY``): loaded, told to the others, opened with the cluster."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jhetcc import _core
from jhetcc.errors import BadArgumentError, UnavailableError
from jhetcc.planner import Capabilities
from jhetcc.schedule import DTYPES, OPS

if TYPE_CHECKING:
    from jhetcc.config import Options
    from jhetcc.world.members import Member

__all__ = ["capabilities", "check_path", "find", "from_text", "is_crowded", "load", "to_text"]

_OP_NAMES = {number: name for name, number in OPS.items()}
_DTYPE_NAMES = {number: name for name, (_, number) in DTYPES.items()}

# The folders that `make libraries` makes for a library, the first choice first, and the file each is there for.
_FOLDERS = {"oneccl": ("oneccl",), "mpi": ("mpich", "impi")}
_FILES = {"oneccl": "libccl.so.2", "mpi": "libmpi_abi.so.1"}


def find(name: str, path: str | None, prefix: str = sys.prefix) -> str:
    """Where a library is looked for.

    Args:
      name: of the library.
      path: as the options have it: its file, a folder that holds it, or one with a folder a library.
      prefix: of the Python environment, whose ``libraries`` counts where the options name nothing.

    Returns:
      Its folder, or the path as it is; empty: where the system looks.
    """
    for folder in _FOLDERS.get(name, ()):
        place = Path(path or Path(prefix, "libraries")) / folder
        if any((holder / _FILES[name]).exists() for holder in (place, place / "lib")):
            return str(place)
    return path or ""


def check_path(options: Options) -> None:
    """Refuses a place that is not there, where the library is not loaded: a process alone in its job calls none.

    Raises:
      UnavailableError: ``JHETCC_LIBRARY_PATH`` names nothing.
    """
    if options.library != "none" and options.library_path and not Path(options.library_path).exists():
        raise UnavailableError(
            f"JHETCC_LIBRARY_PATH={options.library_path}: there is no such file or folder; `make libraries` fetches libraries, and "
            "docs/libraries.md says where they are looked for",
            code="library_missing",
            scope="process",
        )


def is_crowded(members: Sequence[Member], host_key: str) -> bool:
    """Whether the ranks of this host outnumber the processors this process may use: then who waits must give way."""
    here = sum(member.ranks for member in members if member.host_key == host_key)
    return here > len(os.sched_getaffinity(0))


def load(options: Options, ranks: int, crowded: bool, secret: Any) -> Any:
    """The library that the options name.

    Raises:
      BadArgumentError: it joins one rank of a process, and this one owns several.
      UnavailableError: it is not on this machine, or of a kind that cannot be used.
    """
    library = _core.Library(
        options.library, find(options.library, options.library_path), crowded, options.interface or "", secret
    )
    if library.one_rank_a_process and ranks > 1:
        raise BadArgumentError(
            f"JHETCC_LIBRARY={options.library}: {library.name} {library.version} joins one rank of a process, and this process owns "
            f"{ranks}. Start one process a device, or unset JHETCC_LIBRARY here: its cluster then runs our own schedules",
            code="library_ranks",
            scope="process",
        )
    return library


def capabilities(library: Any) -> Capabilities:
    """What plans depend on."""
    refused = {(_OP_NAMES[op], _DTYPE_NAMES[dtype]) for op, dtype in library.refuses if dtype in _DTYPE_NAMES}
    # A mean is summed by the library and divided once by us.
    refused = {(op, dtype) for op, dtype in refused if op != "mean"}
    refused |= {("mean", dtype) for op, dtype in refused if op == "sum"}
    return Capabilities(
        library.name,
        library.version,
        library.uniform,
        tuple(sorted(refused)),
        library.one_rank_a_process,
        library.abortable,
    )


def to_text(known: Capabilities | None) -> str:
    return json.dumps(None if known is None else dataclasses.asdict(known))


def from_text(text: str) -> Capabilities | None:
    found = json.loads(text)
    if found is None:
        return None
    return Capabilities(**found | {"refuses": tuple((op, dtype) for op, dtype in found["refuses"])})
