# SPDX-License-Identifier: Apache-2.0
"""What a timeline shows of the stages of pipelined operations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jhetcc.trace import timeline

__all__ = ["Lanes", "overlaps", "steps_of"]

Lanes = dict[tuple[int, int], dict[int, list[float]]]


def steps_of(files: Sequence[str]) -> list[dict[str, Any]]:
    """The recorded iterations of steps."""
    recordings = [json.loads(Path(file).read_text(encoding="utf-8")) for file in files]
    return [e for e in timeline(recordings) if e["ph"] == "X" and e["cat"] == "step"]


def overlaps(steps: Sequence[dict[str, Any]]) -> dict[int, list[bool]]:
    """For each rank and operation whether the step that ends last had begun before the one that begins first came to its last chunk."""
    lanes: Lanes = {}
    for e in steps:
        lanes.setdefault((e["pid"], e["args"]["sequence"]), {}).setdefault(e["tid"], []).append(e["ts"])
    found: dict[int, list[bool]] = {}
    for (rank, _), stages in lanes.items():
        whole = [sorted(lane) for lane in stages.values() if len(lane) > 20]
        assert len(whole) >= 3, stages
        first, last = min(whole), max(whole, key=lambda lane: lane[-1])
        found.setdefault(rank, []).append(last[0] < first[-1])
    return found
