# SPDX-License-Identifier: Apache-2.0
"""Values of options from text: durations, sizes, names; a ValueError carries what would have been right. Pure."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "auto",
    "count",
    "duration",
    "limit",
    "log_spec",
    "meant",
    "microseconds",
    "number",
    "one_of",
    "profile_name",
    "size",
    "switch",
    "text",
]

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"": 1, "b": 1, "kb": 1 << 10, "kib": 1 << 10, "mb": 1 << 20, "mib": 1 << 20, "gb": 1 << 30, "gib": 1 << 30}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
_LEVELS = ("off", "error", "warn", "info", "debug", "trace")


def text(text: str) -> str | None:
    return text or None


def quantity(text: str, units: Mapping[str, float], example: str) -> float:
    match = _QUANTITY.fullmatch(text.strip().lower())
    if not match or match.group(2) not in units:
        raise ValueError(
            f"write a number with a unit of {', '.join(unit for unit in units if unit)}, for example {example}"
        )
    return float(match.group(1)) * units[match.group(2)]


def duration(text: str) -> float:
    seconds = math.inf if text.strip().lower() == "inf" else quantity(text, _SECONDS, "10s, 500ms or inf")
    if seconds <= 0:
        raise ValueError("a duration is longer than nothing, for example 10s")
    return seconds


def limit(text: str) -> float:
    if math.isinf(seconds := duration(text)):
        raise ValueError("this wait needs an end, for example 10s")
    return seconds


def auto(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text.strip().lower() == "auto" else parse(text)


def size(text: str) -> int:
    size = quantity(text, _BYTES, "8kb")
    if size < 1 or size != int(size):
        raise ValueError("write a whole number of bytes, at least 1, for example 8kb")
    return int(size)


def microseconds(text: str) -> float:
    if text.strip() == "0":
        return 0.0
    return round(quantity(text if re.search("[a-z]", text.lower()) else text + "us", _SECONDS, "50us") * 1e6, 3)


def number(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]?", text):
        raise ValueError("write a whole number from 1 to 99")
    return int(text)


def count(text: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch("[0-9]+", text):
        raise ValueError("write a whole number, 0 or more")
    return int(text)


def one_of(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip().lower() not in values:
            raise ValueError(f"write one of {', '.join(values)}{meant(text, values)}")
        return text.strip().lower()

    return parse


def profile_name(text: str) -> str:
    if text.strip().lower() in ("off", "auto"):
        return text.strip().lower()
    if "/" not in text and not text.endswith(".json"):
        raise ValueError("write off, auto, or the path of a JSON file that `jhetcc profile` wrote")
    return text


def switch(text: str) -> bool:
    return one_of("no", "yes", "0", "1", "false", "true")(text) in ("yes", "1", "true")


def log_spec(text: str) -> str:
    for part in text.lower().split(","):
        if part.rpartition("=")[2] not in _LEVELS:
            raise ValueError(
                f"write a level ({', '.join(_LEVELS)}) or room=level, comma separated, for example warn,net=debug"
            )
    return text.lower()


def meant(word: str, known: tuple[str, ...] | list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""
