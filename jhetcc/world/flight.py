# SPDX-License-Identifier: Apache-2.0
"""Writes the core's flight recorder to a file: the last few thousand events of this process."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

__all__ = ["dump"]


def dump(process: Any, directory: str, reason: str, rank: int) -> str:
    """Writes ``jhetcc-<rank>-<host>-<pid>-<n>.json`` and returns its path.

    The file holds the reason, what each local rank is doing, the counters and the events, oldest first; times are this host's
    monotonic nanoseconds, with one pair of monotonic and wall clock to place them.
    """
    os.makedirs(directory, exist_ok=True)
    stem = os.path.join(directory, f"jhetcc-{rank}-{socket.gethostname()}-{os.getpid()}")
    number = 0
    while os.path.exists(f"{stem}-{number}.json"):
        number += 1
    path = f"{stem}-{number}.json"
    content = {
        "reason": reason,
        "clock": {"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()},
        "ranks": process.status(),
        "counters": dict(process.counters()),
        "events": process.records(),
    }
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(f"{path}.part", path)  # whoever sees the name sees all of it
    return path
