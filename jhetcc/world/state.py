# SPDX-License-Identifier: Apache-2.0
"""The communicators of this process, by name. One world at a time; any thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from jhetcc.errors import AbortedError, NotInitializedError

if TYPE_CHECKING:
    from jhetcc.world.communicator import Communicator
    from jhetcc.world.world import World

__all__ = ["communicator", "current", "forget", "names", "register", "set_current"]

_lock = threading.Lock()
_world: World | None = None
_communicators: dict[str, Communicator] = {}


def current() -> World | None:
    """The world that ``init()`` made, or None."""
    return _world


def set_current(world: World | None) -> None:
    global _world
    with _lock:
        _world = world
        if world is None:
            _communicators.clear()


def register(communicator: Communicator) -> None:
    with _lock:
        _communicators[communicator.name] = communicator


def forget(name: str) -> None:
    with _lock:
        _communicators.pop(name, None)


def names() -> tuple[str, ...]:
    return tuple(_communicators)


def communicator(name: str) -> Communicator:
    """The communicator behind an axis name.

    Raises:
      NotInitializedError: ``jhetcc.init()`` was not called, or the world was closed.
      AbortedError: there is a world, but no communicator of this name.
    """
    found = _communicators.get(name)
    if found is not None:
        return found
    if _world is None:
        raise NotInitializedError(
            f"operation on axis {name!r} before jhetcc.init(): call comm = jhetcc.init() once, at the start of the program",
            code="not_initialized",
            scope="process",
        )
    raise AbortedError(
        f"no communicator named {name!r} in this process (there are: {', '.join(sorted(_communicators))}): "
        "it was closed, or split() has not made it",
        code="closed",
        scope="communicator",
    )
