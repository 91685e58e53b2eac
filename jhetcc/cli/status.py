# SPDX-License-Identifier: Apache-2.0
"""``jhetcc status``: what the processes of jobs on this host are doing, and how their ranks are connected."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="jhetcc status",
        description="Asks the processes of jobs on this host (of its network namespace, and of this user) what they are doing.",
    )
    parser.add_argument("--pid", type=int, help="only this process")
    parser.add_argument("--json", action="store_true", help="everything, one JSON object a line and process")
    values = parser.parse_args(arguments)
    from jhetcc.world import report

    names = {pid: name for pid, name in report.running().items() if values.pid in (None, pid)}
    if not names:
        which = "no process of a job" if values.pid is None else f"process {values.pid} is none of a job that"
        print(f"{which} runs on this host (network namespace {_namespace()})", file=sys.stderr)
        return 1
    failed = False
    for pid, name in names.items():
        try:
            told = report.ask(name)
        except (OSError, ValueError) as why:
            print(f"process id {pid} does not tell: {why}", file=sys.stderr)
            failed = True
            continue
        print(json.dumps(told) if values.json else "\n".join(lines(told)))
    return 1 if failed else 0


def _namespace() -> int:
    return os.stat("/proc/self/ns/net").st_ino


def lines(told: dict[str, Any]) -> list[str]:
    """The answer of one process for people."""
    if "error" in told:
        return [f"a process that is starting or closing: {told['error']}"]
    place = told["process"]
    found = [f"process {place['number']} of {place['of']} ({place['host']}:{place['pid']})"]
    if told["ended"]:
        found.append(f"  ended: {told['ended']}")
    for rank in told["ranks"]:
        doing = "idle"
        if rank["operation"]:
            doing = f"{rank['operation']} on {rank['communicator']!r} for {rank['seconds']:.1f} s"
            if rank["waiting_for"]:
                doing += ", waiting for " + ", ".join(map(str, rank["waiting_for"]))
        found.append(f"  rank {rank['rank']}: {doing}; {rank['seconds_in_operations']:.1f} s in operations")
        for peer, paths in sorted(rank["rails"].items(), key=lambda one: int(one[0])):
            if len(paths) == 1:
                found.append(f"    to rank {peer}: {_only(paths[0])}")
                continue
            found.append(f"    to rank {peer}: {len(paths)} paths")
            found += ["      " + _path(path) for path in paths]
    return found


def _only(path: dict[str, Any]) -> str:
    sent, rate = path["sent_bytes"], path["bytes_per_second"]
    known = ("" if sent is None else f", {_amount(sent)} sent") + ("" if rate is None else f", {_amount(rate)}/s")
    return path["last_event"] + known


def _path(path: dict[str, Any]) -> str:
    is_relay = path["local"] == "relay"
    ends = f"by way of {path['remote'] or 'a third rank'}" if is_relay else f"{path['local']} -> {path['remote']}"
    parts = [f"{'relay' if is_relay else path['path']} {path['state']:8} {ends}"]
    if path["tier"] and not is_relay:
        parts.append("spare")
    if path["bytes_per_second"]:
        parts.append(f"{_amount(path['bytes_per_second'])}/s")
    parts += [f"{_amount(path[key + '_bytes'])} {key}" for key in ("sent", "received", "resent")]
    if path["last_event"]:
        since = path["seconds_since"]
        parts.append(path["last_event"] + ("" if since is None else f" ({since:.1f} s ago)"))
    return ", ".join(parts)


def _amount(number: float) -> str:
    power = 0
    while number >= 1000 and power < len(_UNITS) - 1:
        number, power = number / 1000, power + 1
    return f"{number:.3g} {_UNITS[power]}"
