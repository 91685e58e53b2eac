# SPDX-License-Identifier: Apache-2.0
"""What this process is doing, for whoever asks: ``jhetcc.status()``, and ``jhetcc status`` from another process of the same user.

A process listens at an abstract unix name of its own, which the system forgets with it; the thread of the log answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
from collections.abc import Callable
from typing import Any

from jhetcc.errors import NotInitializedError
from jhetcc.world import state
from jhetcc.world.system import typed

__all__ = ["Answering", "ask", "running", "status"]

_PREFIX = "jhetcc-status-"
_ANSWER_SECONDS = 1.0
_ASK_SECONDS = 5.0


def status() -> dict[str, Any]:
    """What this process is doing: operations, waits, paths, counters. Cheap, callable from any thread.

    Returns:
      What ``comm.status()`` of ``"world"`` returns, and ``process``: its number, host and process id, and how many the job has.

    Raises:
      NotInitializedError: there is no world.

    Example:
      >>> import jhetcc
      >>> comm = jhetcc.init(num_processes=1, devices=1)
      >>> jhetcc.status()["process"]["number"]
      0
      >>> comm.close()
    """
    world = state.current()
    if world is None:
        raise NotInitializedError(
            "jhetcc.status() before jhetcc.init() or after close(): there is nothing to tell",
            code="not_initialized",
            scope="process",
        )
    me = world.members[world.launch.process_id]
    place = {"number": me.process_id, "of": world.launch.num_processes, "host": me.host, "pid": me.pid}
    return {"process": place} | state.communicator("world").status()


class Answering:
    """Answers ``jhetcc status`` whenever its owner looks."""

    def __init__(self, tell: Callable[[], dict[str, Any]]):
        self._tell = tell
        with typed("the socket where `jhetcc status` asks"):
            self._socket: socket.socket | None = socket.socket(
                socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK
            )
            self._socket.bind(f"\0{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}")
            self._socket.listen(8)

    def look(self) -> None:
        """Answers who has asked since the last look; nobody else's processes, except root's."""
        while self._socket is not None:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            with caller, contextlib.suppress(OSError):
                caller.settimeout(_ANSWER_SECONDS)
                _, uid, _ = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                if uid in (0, os.geteuid()):
                    caller.sendall(self._answer())

    def _answer(self) -> bytes:
        try:
            told = self._tell()
        except Exception as why:  # the world is closing
            told = {"error": f"{type(why).__name__}: {why}"}
        return json.dumps(told).encode()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def running() -> dict[int, str]:
    """Names at which processes of this host's network namespace answer, by process id."""
    found = {}
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        for line in file:
            _, at, name = line.rstrip("\n").partition(f" @{_PREFIX}")
            pid = name.partition("-")[0]
            if at and pid.isdigit() and os.path.exists(f"/proc/{pid}"):
                found[int(pid)] = _PREFIX + name
    return dict(sorted(found.items()))


def ask(name: str) -> dict[str, Any]:
    """What the process that answers at this name says.

    Raises:
      OSError: no answer in time, or another user's process.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(_ASK_SECONDS)
        caller.connect(f"\0{name}")
        answer = b""
        while part := caller.recv(1 << 16):
            answer += part
    if not answer:
        raise PermissionError("it answers its own user only")
    return json.loads(answer)
