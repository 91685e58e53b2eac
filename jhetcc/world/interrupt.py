# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while the main thread waits for an operation inside XLA, where Python cannot run its signal handlers.

Python's own C handler writes the signal's number into a pipe; a daemon thread reads it. If the main thread then stands still,
the operations under way are aborted, XLA returns, and Python raises KeyboardInterrupt. Made once per process, at the first
``init()`` of the main thread; nothing happens where SIGINT has another handler than Python's, or somebody else has the pipe
(``signal.set_wakeup_fd``). Raw calls and ``init()`` itself look for signals on their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

from jhetcc.errors import Error
from jhetcc.world import state
from jhetcc.world.system import typed

__all__ = ["watch"]

# A main thread that runs Python takes the signal at once, a raw call within 50 ms; one that has not moved after this waits in XLA.
_GRACE_S = 0.25
_watching = False


def watch() -> None:
    """Starts watching; again is harmless. Only the main thread can; elsewhere nothing happens."""
    global _watching
    if _watching or threading.current_thread() is not threading.main_thread():
        return
    with typed("the pipe that tells of Ctrl-C"):
        reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)
        return
    _watching = True
    os.register_at_fork(after_in_child=lambda: _forget(writer))
    threading.Thread(target=_read, args=(reader,), name="jhetcc-interrupt", daemon=True).start()


def _forget(writer: int) -> None:
    """In a forked child: its signals are not the parent's."""
    global _watching
    _watching = False
    now = signal.set_wakeup_fd(-1)
    if now != writer:  # somebody else's since
        signal.set_wakeup_fd(now)


def _read(reader: int) -> None:
    while numbers := os.read(reader, 64):
        if signal.SIGINT in numbers and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            before = _position()
            time.sleep(_GRACE_S)
            if _position() == before:
                _abort_waiting()


def _position() -> tuple[int, int]:
    """Where the main thread is in its Python code."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return id(frame), frame.f_lasti


def _abort_waiting() -> None:
    world = state.current()
    if world is None:
        return
    with contextlib.suppress(Error):  # the world may be closing
        waiting = {row["communicator"]: row["operation"] for row in world.process.status() if row["operation"]}
        for name, operation in waiting.items():
            world.process.abort(name, f"{operation} was interrupted by the user", "interrupted")
