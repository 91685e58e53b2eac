# SPDX-License-Identifier: Apache-2.0
"""Terms: what an element holds, as a value; the interpreter computes with these to prove a schedule."""

from __future__ import annotations

from .program import ScheduleError

__all__ = ["UNDEFINED", "ZERO_TERM", "Terms"]

UNDEFINED, ZERO_TERM = 0, 1


class Terms:
    """Terms by number: equal terms have equal numbers."""

    def __init__(self):
        self.numbers: dict[tuple, int] = {}
        self.terms: list[tuple] = [("undefined",), ("zero",)]
        self.wholes: dict[int, tuple] = {}

    def number(self, term: tuple) -> int:
        if term not in self.numbers:
            self.numbers[term] = len(self.terms)
            self.terms.append(term)
        return self.numbers[term]

    def leaves(self, number: int, top: bool = True) -> list[tuple[int, int]]:
        """The contributions in a term, in the order they were reduced; only the outermost reduction is final."""
        kind, *rest = self.terms[number]
        if kind == "input":
            return [(rest[0], rest[1])]
        if kind not in ("reduce", "native"):
            raise ScheduleError(f"a reduction holds {kind}")
        if kind == "reduce" and rest[0] != top:
            raise ScheduleError("a reduction is final before it is complete, or complete and not final")
        return [leaf for part in rest[1:] for leaf in self.leaves(part, False)]

    def whole(self, number: int) -> tuple:
        """The term with its parts instead of their numbers."""
        if number not in self.wholes:
            kind, *rest = self.terms[number]
            if kind in ("reduce", "native"):
                self.wholes[number] = (kind, rest[0], *(self.whole(part) for part in rest[1:]))
            else:
                self.wholes[number] = self.terms[number]
        return self.wholes[number]

    def stores_partial(self, number: int, top: bool = True) -> bool:
        """Whether a reduction of ours, other than the outermost, is in a term."""
        kind, *rest = self.terms[number]
        if kind not in ("reduce", "native"):
            return False
        return (kind == "reduce" and not top) or any(self.stores_partial(part, False) for part in rest[1:])
