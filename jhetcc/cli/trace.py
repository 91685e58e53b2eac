# SPDX-License-Identifier: Apache-2.0
"""``jhetcc trace``: recordings of processes as one timeline for Perfetto (https://ui.perfetto.dev)."""

from __future__ import annotations

import argparse
import json

from jhetcc import trace
from jhetcc.errors import BadArgumentError, ResourceError


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="jhetcc trace",
        description="Joins what processes recorded (comm.record(), or JHETCC_TRACE_DIR after an abort) into one timeline.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a recording of a process")
    parser.add_argument("-o", "--output", default="timeline.json", metavar="FILE", help="default: %(default)s")
    values = parser.parse_args(arguments)
    recordings = [_read(path) for path in values.files]
    for path, recording in zip(values.files, recordings, strict=True):
        try:
            trace.timeline([recording])
        except (KeyError, IndexError, TypeError, AttributeError) as why:
            raise _no_recording(path, f"its events are not those of one ({type(why).__name__}: {why})") from None
    events = trace.timeline(recordings)
    try:
        with open(values.output, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events, "displayTimeUnit": "ns"}, file)
    except OSError as why:
        raise ResourceError(f"-o {values.output}: {why.strerror}", code="resource", scope="process") from why
    print(
        f"{values.output}: {sum(event['ph'] == 'X' for event in events)} operations and steps; open it at ui.perfetto.dev"
    )
    return 0


def _read(path: str) -> dict:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if not {"clock", "events"} <= found.keys():
            raise ValueError("it has no clock and events")
    except OSError as why:
        raise BadArgumentError(f"cannot read {path}: {why.strerror}", code="bad_argument", scope="process") from None
    except (ValueError, AttributeError) as why:
        raise _no_recording(path, str(why)) from None
    return found


def _no_recording(path: str, why: str) -> BadArgumentError:
    return BadArgumentError(f"{path} is no recording of a process: {why}", code="bad_argument", scope="process")
