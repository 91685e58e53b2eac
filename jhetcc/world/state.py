# SPDX-License-Identifier: Apache-2.0
"""The communicators of this process, by name. One world at a time; any thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from jhetcc.errors import AbortedError, BadArgumentError, NotInitializedError

if TYPE_CHECKING:
    from jhetcc.world.communicator import Communicator
    from jhetcc.world.world import World

__all__ = ["communicator", "current", "ended", "forget", "names", "ranks", "register", "set_current"]

_lock = threading.Lock()
_world: World | None = None
_communicators: dict[str, Communicator] = {}
_closed: set[str] = set()  # names of this world that were closed, for messages


def current() -> World | None:
    """The world that ``init()`` made, or None."""
    return _world


def set_current(world: World | None) -> None:
    global _world
    with _lock:
        _world = world
        if world is None:
            _communicators.clear()
            _closed.clear()


def register(communicator: Communicator) -> None:
    with _lock:
        _communicators[communicator.name] = communicator
        _closed.discard(communicator.name)


def forget(name: str) -> None:
    with _lock:
        if _communicators.pop(name, None) is not None:
            _closed.add(name)


def ended() -> list[Communicator]:
    """The communicators that an error ended and nobody has closed or shrunk."""
    return [each for each in tuple(_communicators.values()) if each.has_ended]


def names() -> tuple[str, ...]:
    return tuple(_communicators)


def ranks() -> set[int]:
    """World ranks with which this process shares a communicator; its own, too."""
    return {rank for each in tuple(_communicators.values()) for rank in each.world_ranks}


def communicator(name: str) -> Communicator:
    """The communicator behind an axis name.

    Raises:
      NotInitializedError: ``jhetcc.init()`` was not called, or the world was closed.
      AbortedError: the communicator was closed.
      BadArgumentError: there was never a communicator of this name.
    """
    found = _communicators.get(name)
    if found is not None:
        return found
    if _world is None:
        raise NotInitializedError(
            f"operation on axis {name!r} before jhetcc.init() or after close(): call comm = jhetcc.init() once, at the start of the "
            "program",
            code="not_initialized",
            scope="process",
        )
    here = f"this process has {', '.join(map(repr, sorted(_communicators)))}"
    if name in _closed:
        raise AbortedError(f"communicator {name!r} was closed; {here}", code="closed", scope="communicator")
    raise BadArgumentError(
        f"no axis or communicator {name!r}: {here}, split() makes more, and an axis of a local mesh belongs to jax.lax or into a "
        "tuple with 'islands', inside the shard_map that binds it",
        code="axis_name",
    )
