# SPDX-License-Identifier: Apache-2.0
"""Recordings as a timeline: operations, and the steps of those in chunks, so that one sees what overlaps what. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jhetcc.schedule import KIND_NAMES

__all__ = ["timeline"]

_OPERATIONS = "operations"


def timeline(recordings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events in the form of Chrome's traces, which Perfetto shows.

    Args:
      recordings: what the files of ``comm.record()`` hold, one a process. Hosts' clocks are taken as they are set.

    Returns:
      A complete event (``ph`` = ``X``) for each operation and each iteration of a step that began and ended within the recording,
      times in microseconds; processes are ranks, threads are steps. What began and did not end is an instant event (``i``).
    """
    events: list[dict[str, Any]] = []
    named: set[tuple[int, int]] = set()
    for recording in recordings:
        shift = recording["clock"]["wall_ns"] - recording["clock"]["monotonic_ns"]
        open_: dict[tuple[Any, ...], dict[str, Any]] = {}
        for event in recording["events"]:
            what, _, phase = event["event"].rpartition(" ")
            if what not in ("operation", "step"):
                continue
            # An operation of a rank is told from others by its number, an iteration of its steps by both.
            key = (what, event["rank"], event["communicator"], event["sequence"])
            key += (event["step"], event["index"]) if what == "step" else ()
            if phase == "started":
                open_[key] = event
            elif (begin := open_.pop(key, None)) is not None:
                events.append(_complete(what, begin, event, shift))
                _name(events, named, what, begin)
        for key, begin in open_.items():
            events.append(_base(key[0], begin, shift) | {"ph": "i", "s": "t"})
            _name(events, named, key[0], begin)
    return sorted(events, key=lambda event: event.get("ts", -1))


def _lane(what: str, event: dict[str, Any]) -> tuple[int, str]:
    return (
        (event["step"] + 1, f"{event['step']} {KIND_NAMES[event['argument']]}") if what == "step" else (0, _OPERATIONS)
    )


def _base(what: str, event: dict[str, Any], shift: int) -> dict[str, Any]:
    name = f"#{event['sequence']}" if what == "operation" else f"{KIND_NAMES[event['argument']]} {event['index']}"
    return {
        "name": name,
        "cat": what,
        "pid": event["rank"],
        "tid": _lane(what, event)[0],
        "ts": (event["time_ns"] + shift) / 1e3,
    }


def _complete(what: str, begin: dict[str, Any], end: dict[str, Any], shift: int) -> dict[str, Any]:
    numbers = {key: begin[key] for key in ("sequence", "index", "stream")} | {"bytes": end["bytes"]}
    return _base(what, begin, shift) | {"ph": "X", "dur": (end["time_ns"] - begin["time_ns"]) / 1e3, "args": numbers}


def _name(events: list[dict[str, Any]], named: set[tuple[int, int]], what: str, event: dict[str, Any]) -> None:
    """Ranks and lanes are named once. A step's number may mean another kind in another operation: the events say which."""
    rank = event["rank"]
    lane, name = _lane(what, event)
    for tid, key, text in ((-1, "process_name", f"rank {rank}"), (lane, "thread_name", name)):
        if (rank, tid) not in named:
            named.add((rank, tid))
            events.append({"name": key, "ph": "M", "pid": rank, "tid": max(tid, 0), "args": {"name": text}})
