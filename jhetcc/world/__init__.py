# SPDX-License-Identifier: Apache-2.0
"""Joining a job, communicators, raw calls; see README.md of this room.

The core is loaded with the first use of ``init``, ``status`` or ``Communicator``: the launcher and the commands use secrets and detection
without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .communicator import Communicator as Communicator
    from .report import status as status
    from .world import init as init

__all__ = ["Communicator", "init", "status"]

_HOME = {"Communicator": "communicator", "init": "world", "status": "report"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'jhetcc.world' has no attribute {name!r}")
    return getattr(importlib.import_module(f"jhetcc.world.{_HOME[name]}"), name)
