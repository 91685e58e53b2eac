# SPDX-License-Identifier: Apache-2.0
"""Schedules for the core: planned at lowering, or by the planner's thread when a program asks for one not planned yet."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from jhetcc.config import Options
from jhetcc.errors import Error
from jhetcc.planner import Layout, plan, why_unfit
from jhetcc.schedule import Operation, Plan

__all__ = ["Planner", "planned"]

_WAIT_SECONDS = 1.0


@lru_cache(maxsize=1024)
def planned(text: str, layout: Layout, algorithm: str | None, chunk_bytes: int | None) -> Plan:
    """The plan of an operation text; equal on every rank that asks with equal arguments.

    A forced algorithm applies to the operations it fits; the others are chosen as usual.
    """
    operation = Operation.parse(text)
    operation.check(layout.size)
    if algorithm is not None and why_unfit(algorithm, operation, layout) is not None:
        algorithm = None
    if chunk_bytes is not None and operation.itemsize:
        chunk_bytes = max(chunk_bytes // operation.itemsize, 1) * operation.itemsize
    return plan(operation, layout, algorithm=algorithm, chunk_bytes=chunk_bytes)


class Planner:
    """Answers the core's plan requests on one thread until closed.

    Args:
      process: the core's process.
      options: whose ``algorithm`` and ``chunk_bytes`` are forced, if set.
      layout_of: (communicator name, epoch) -> (layout, local member indexes), or None when it is gone.
    """

    def __init__(
        self, process: Any, options: Options, layout_of: Callable[[str, int], tuple[Layout, tuple[int, ...]] | None]
    ):
        self._process = process
        self._options = options
        self._layout_of = layout_of
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="jhetcc-planner", daemon=True)
        self._thread.start()

    def plan(self, text: str, layout: Layout) -> Plan:
        return planned(text, layout, self._options.algorithm, self._options.chunk_bytes)

    def warm(self, name: str, epoch: int, text: str) -> None:
        """Plans an operation and hands the local schedules to the core; again is cheap.

        Raises:
          ValueError: the text does not fit the communicator.
        """
        if self._process.has_plan(name, text):
            return
        found = self._layout_of(name, epoch)
        if found is not None:
            layout, members = found
            plan = self.plan(text, layout)
            self._process.answer_plan(name, epoch, text, [(m, plan.expand(m).to_bytes()) for m in members], None)

    def _serve(self) -> None:
        while not self._closed.is_set():
            request = self._process.next_plan_request(_WAIT_SECONDS)
            if request is None:
                self._closed.wait(0.001)  # a core that closes does not wait
                continue
            name, epoch, _, text = request
            found = self._layout_of(name, epoch)
            if found is None:
                continue
            schedules, failure = [], None
            try:
                layout, members = found
                plan = self.plan(text, layout)
                schedules = [(m, plan.expand(m).to_bytes()) for m in members]
            except Exception as why:  # whatever it is, the waiting operation must hear it
                failure = f"cannot plan {text} for communicator {name!r}: {why}"
            with contextlib.suppress(Error):  # the communicator went meanwhile, and its operations with it
                self._process.answer_plan(name, epoch, text, schedules, failure)

    def close(self, *, wait: bool = True) -> None:
        """Ends the thread, and waits for that unless told not to; the core's process was closed before: no request is coming."""
        self._closed.set()
        self._layout_of = lambda name, epoch: (
            None
        )  # the world, and with it its descriptors, goes without the cycle collector
        if wait and self._thread is not threading.current_thread():
            self._thread.join(timeout=2 * _WAIT_SECONDS)
