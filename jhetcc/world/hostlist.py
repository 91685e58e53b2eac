# SPDX-License-Identifier: Apache-2.0
"""The two small grammars of SLURM's environment: node lists ``a[001-003,07],b`` and task counts ``2(x3),1``. Pure."""

from __future__ import annotations

import re

__all__ = ["expand_hosts", "expand_tasks"]

_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_TASKS = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
_HOSTS_MAX = 1_000_000


def expand_hosts(text: str) -> list[str]:
    """Names of a SLURM node list, in order; raises ValueError where the text does not follow the grammar.

    Example:
      >>> from jhetcc.world.hostlist import expand_hosts
      >>> expand_hosts("a[001-003,07],b")
      ['a001', 'a002', 'a003', 'a07', 'b']
    """
    names: list[str] = []
    for item in _split(text):
        names += _expand_item(item)
    if not names:
        raise ValueError(f"no host in node list {text!r}")
    return names


def expand_tasks(text: str) -> list[int]:
    """Tasks on each host of a SLURM step, in order; raises ValueError where the text does not follow the grammar.

    Example:
      >>> from jhetcc.world.hostlist import expand_tasks
      >>> expand_tasks("2(x3),1")
      [2, 2, 2, 1]
    """
    counts: list[int] = []
    for item in text.split(","):
        match = _TASKS.fullmatch(item.strip())
        if not match:
            raise ValueError(f"{item!r} in task counts {text!r} is neither a number nor number(xrepeat)")
        repeat = int(match.group(2) or 1)
        if repeat > _HOSTS_MAX:
            raise ValueError(f"task counts {text!r} name more than {_HOSTS_MAX} hosts")
        counts += [int(match.group(1))] * repeat
    return counts


def _split(text: str) -> list[str]:
    # Commas inside brackets belong to the ranges.
    items, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise ValueError(f"brackets of node list {text!r} do not match")
        if letter == "," and depth == 0:
            items.append(text[start:place])
            start = place + 1
    if depth:
        raise ValueError(f"brackets of node list {text!r} do not match")
    items.append(text[start:])
    if any(not item.strip() for item in items):
        raise ValueError(f"empty name in node list {text!r}")
    return [item.strip() for item in items]


def _expand_item(item: str) -> list[str]:
    opening = item.find("[")
    if opening < 0:
        return [item]
    closing = item.index("]", opening)
    heads = [item[:opening] + number for number in _expand_ranges(item[opening + 1 : closing], item)]
    tails = _expand_item(item[closing + 1 :]) if closing + 1 < len(item) else [""]
    if len(heads) * len(tails) > _HOSTS_MAX:
        raise ValueError(f"{item!r} names more than {_HOSTS_MAX} hosts")
    return [head + tail for head in heads for tail in tails]


def _expand_ranges(text: str, item: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if not match:
            raise ValueError(f"{part!r} in {item!r} is neither a number nor a range")
        first, last = match.group(1), match.group(2) or match.group(1)
        if int(last) < int(first) or int(last) - int(first) >= _HOSTS_MAX:
            raise ValueError(f"range {part!r} in {item!r} runs backwards or is too long")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers
