# SPDX-License-Identifier: Apache-2.0
"""What links, memory and vendors' libraries cost, as one value; all ranks of a job plan with the same one.

Without a measurement the constants below are used. ``hash`` is what ranks compare before they use a profile.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

from ..schedule import fnv1a

__all__ = ["SHM", "TCP", "Library", "Link", "Profile"]

_FORM = 1  # of the JSON text


@dataclass(frozen=True)
class Link:
    """A way between two ranks.

    Attributes:
      alpha: seconds a message costs whatever its length.
      beta: seconds a byte.
    """

    alpha: float
    beta: float


@dataclass(frozen=True)
class Library:
    """What calls of a vendor's library cost inside one cluster.

    Attributes:
      alpha: seconds a call costs whatever its length.
      move: seconds a byte of a broadcast.
      reduce: seconds a byte of a reduction.
    """

    alpha: float = 20e-6
    move: float = 1 / 8e9
    reduce: float = 1 / 5e9


SHM = Link(2e-6, 1 / 10e9)
TCP = Link(20e-6, 1 / 5e9)


@dataclass(frozen=True)
class Profile:
    """Costs of one job.

    Attributes:
      shm: link between ranks of one host.
      tcp: link between hosts; ranks of a host share it.
      hosts: seconds a byte of each host's link to others, by number of the host; empty where all are like ``tcp``.
      crowd: times as long as alone that bytes take where three hosts and more all send to each other at once, for such
        links are not shared without loss; at least 1.
      copy: seconds a byte of a copy in memory.
      reduce: seconds a byte of each source of a reduction.
      call: seconds that every operation costs besides; they decide nothing between methods.
      libraries: (name, costs) of the vendors' libraries that were measured, by name; others cost the default.

    Example:
      >>> Profile.from_json(Profile().to_json()) == Profile()
      True
    """

    shm: Link = SHM
    tcp: Link = TCP
    crowd: float = 1.0
    copy: float = 1 / 12e9
    reduce: float = 1 / 20e9
    call: float = 0.0
    hosts: tuple[float, ...] = ()
    libraries: tuple[tuple[str, Library], ...] = field(default=())

    def library(self, name: str) -> Library:
        return dict(self.libraries).get(name, Library())

    @property
    def hash(self) -> int:
        """64 bits that are equal on all ranks that hold the same costs."""
        return fnv1a(self.to_json().encode())

    def to_json(self) -> str:
        """One line of JSON; equal profiles have equal text."""
        fields = dataclasses.asdict(self) | {"libraries": {name: dataclasses.asdict(x) for name, x in self.libraries}}
        return json.dumps({"form": _FORM, **fields}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Profile:
        """The profile a text holds; costs that it leaves out are the default ones.

        Raises:
          ValueError: not such a text; the message names the entry.
        """
        try:
            found = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as why:
            raise ValueError(f"profile: not JSON: {why}") from None
        if not isinstance(found, dict) or found.pop("form", None) != _FORM:
            raise ValueError(f'profile: not an object with "form": {_FORM}')
        libraries = found.pop("libraries", {})
        fields: dict[str, Any] = _read(Profile, found, "profile")
        if not isinstance(libraries, dict):
            raise ValueError("profile: libraries is not an object")
        named = [(name, Library(**_read(Library, costs, f"profile: {name}"))) for name, costs in libraries.items()]
        return Profile(**fields, libraries=tuple(sorted(named, key=lambda item: item[0])))


def _read(kind: type, found: Any, where: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{where} is not an object of costs")
    known = {f.name for f in dataclasses.fields(kind)} - {"libraries"}
    result: dict[str, Any] = {}
    for name, value in found.items():
        if name not in known:
            raise ValueError(f"{where}: no cost {name!r}: there are {', '.join(sorted(known))}")
        if kind is Profile and name in ("shm", "tcp"):
            parts = _read(Link, value, f"{where}: {name}")
            if set(parts) != {"alpha", "beta"}:
                raise ValueError(f"{where}: {name} needs alpha and beta")
            result[name] = Link(**parts)
        elif name == "hosts":
            if not isinstance(value, list):
                raise ValueError(f"{where}: hosts is not a list")
            result[name] = tuple(_seconds(one, f"{where}: hosts", positive=True) for one in value)
        elif name == "crowd":
            if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < math.inf:
                raise ValueError(f"{where}: crowd is {value!r}, not a number from 1 on")
            result[name] = float(value)
        else:
            result[name] = _seconds(value, f"{where}: {name}")
    return result


def _seconds(value: Any, what: str, positive: bool = False) -> float:
    least = math.ulp(0.0) if positive else 0.0  # links without cost would be infinitely fast
    if isinstance(value, bool) or not isinstance(value, int | float) or not (least <= value < math.inf):
        raise ValueError(f"{what} is {value!r}, not seconds")
    return float(value)
