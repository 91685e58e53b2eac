# SPDX-License-Identifier: Apache-2.0
"""Brings the core's log lines to Python's ``logging`` (logger ``jhetcc.<room>``), from a small thread of its own.

The same thread notices that a communicator ended and has the flight recorder written, where ``JHETCC_TRACE_DIR`` asks for it, and
answers ``jhetcc status``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import cast

from jhetcc import _core
from jhetcc.world.report import Answering

__all__ = ["LogPump"]

_LEVELS = {"error": logging.ERROR, "warn": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG, "trace": 5}
_PERIOD_SECONDS = 0.2


class LogPump:
    """Looks for lines a few times a second until closed; closing takes the rest along."""

    def __init__(
        self,
        answering: Answering | None = None,
        aborts: Callable[[], int] | None = None,
        on_abort: Callable[[], None] | None = None,
    ) -> None:
        self._answering, self._aborts, self._on_abort, self._seen = answering, aborts, on_abort, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jhetcc-log", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD_SECONDS):
            self._drain()
            self._look()
            if self._answering is not None:
                self._answering.look()

    def _look(self) -> None:
        if self._aborts is None or self._on_abort is None:
            return
        count = self._aborts()
        if count > self._seen:
            self._seen = count
            self._on_abort()

    @staticmethod
    def _drain() -> None:
        while (line := _core.pop_log_line()) is not None:
            level, topic, text, repeats = cast(tuple[str, str, str, int], line)
            again = f" (said {repeats} times more)" if repeats else ""
            logging.getLogger(f"jhetcc.{topic}").log(_LEVELS.get(level, logging.INFO), "%s%s", text, again)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=2.0)
        if self._answering is not None:
            self._answering.close()
        self._drain()
        self._look()
