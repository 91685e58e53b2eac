# SPDX-License-Identifier: Apache-2.0
"""Where vendors' collective libraries are, for tests that need real ones: see docs/libraries.md.

JHETCC_TEST_ONECCL and JHETCC_TEST_MPI name their folders; else they are where ``make libraries`` puts them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["folder", "joined", "needs", "options", "require"]

_VARIABLES = {"oneccl": "JHETCC_TEST_ONECCL", "mpi": "JHETCC_TEST_MPI"}
_PLACES = {"oneccl": "oneccl", "mpi": "mpich"}  # as `make libraries` calls them

# A JHETCC_ variable that is no option is refused by init(); pytest's workers inherit the other name.
for _name, _variable in _VARIABLES.items():
    if _told := os.environ.pop(_variable, ""):
        os.environ[f"VENDOR_LIBRARY_{_name}"] = _told


def folder(name: str) -> str | None:
    """The folder of a library (``"oneccl"``, ``"mpi"``), or None where it is not there."""
    from jhetcc.world.library import find

    return os.environ.get(f"VENDOR_LIBRARY_{name}") or find(name, None) or None


def needs(*names: str) -> pytest.MarkDecorator:
    """Skips a test, in one line, where one of these libraries is not there."""
    missing = [name for name in names if folder(name) is None]
    return pytest.mark.skipif(bool(missing), reason=_why(missing))


def require(name: str) -> str:
    """The folder of a library; the test that asks is skipped where it is not there."""
    return folder(name) or pytest.skip(_why([name]))


def _why(missing: list[str]) -> str:
    told = " and ".join(f"{name} ({_VARIABLES[name]})" for name in missing)
    return f"not there: {told}; `make libraries` fetches them"


def options(name: str) -> dict[str, str]:
    """The settings of a process whose cluster has this library, none for ``"none"``; skips as ``require`` does."""
    return {} if name == "none" else {"JHETCC_LIBRARY": name, "JHETCC_LIBRARY_PATH": require(name)}


def joined(place: Path) -> str:
    """Makes one folder with a folder a library, for ``JHETCC_LIBRARY_PATH`` of processes that differ in their library."""
    for name, below in _PLACES.items():
        (place / below).symlink_to(str(folder(name)))
    return str(place)
