# SPDX-License-Identifier: Apache-2.0
"""From an operation and a layout to a plan: which algorithms fit, what they cost, which one is taken. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..schedule import Operation, Plan, Schedule
from . import direct, direct_reduce, halving_doubling, ring, tree
from .common import chunk_bytes as agreed_chunk_bytes
from .layout import Layout

__all__ = ["ALGORITHMS", "Algorithm", "candidates", "plan"]


@dataclass(frozen=True)
class Algorithm:
    """One method.

    Attributes:
      fits: why it does not fit an operation on so many ranks, or None.
      build: one rank's schedule of a plan.
      seconds: predicted seconds for (operation, layout, chunk bytes).
    """

    fits: Callable[[Operation, int], str | None]
    build: Callable[[Plan, int], Schedule]
    seconds: Callable[[Operation, Layout, int], float]


# Of equal predictions the first is taken.
ALGORITHMS: dict[str, Algorithm] = {
    "direct": Algorithm(direct.fits, direct.build, direct.seconds),
    "one_shot": Algorithm(direct_reduce.fits, direct_reduce.build_one_shot, direct_reduce.one_shot_seconds),
    "two_shot": Algorithm(direct_reduce.fits, direct_reduce.build_two_shot, direct_reduce.two_shot_seconds),
    "halving_doubling": Algorithm(halving_doubling.fits, halving_doubling.build, halving_doubling.seconds),
    "ring": Algorithm(ring.fits, ring.build, ring.seconds),
    "tree": Algorithm(tree.fits, tree.build, tree.seconds),
}


def candidates(operation: Operation, layout: Layout) -> list[tuple[str, float]]:
    """The algorithms that fit, with predicted seconds, the fastest first.

    Raises:
      ValueError: the operation does not fit the layout's number of ranks.

    Example:
      >>> [name for name, _ in candidates(Operation("broadcast", "f32", (4,), root=0), Layout.local(2))][0]
      'direct'
    """
    operation.check(layout.size)
    chunk = agreed_chunk_bytes(operation, layout)
    found = [
        (name, algorithm.seconds(operation, layout, chunk))
        for name, algorithm in ALGORITHMS.items()
        if algorithm.fits(operation, layout.size) is None
    ]
    return sorted(found, key=lambda item: float(f"{item[1]:.6g}"))  # so that rounding does not decide


def plan(operation: Operation, layout: Layout, *, algorithm: str | None = None, chunk_bytes: int | None = None) -> Plan:
    """Chooses the method of an operation; the same on every rank that asks with equal arguments.

    Args:
      operation: what is asked.
      layout: the machines under the communicator.
      algorithm: forces a method by name.
      chunk_bytes: forces the bytes of one iteration, a multiple of the item size.

    Returns:
      The plan; ``plan.expand(rank)`` is one rank's schedule.

    Raises:
      ValueError: the operation does not fit the layout, or the method does not exist or does not fit.

    Example:
      >>> plan(Operation("psum", "f32", (4,)), Layout.local(2)).algorithm
      'one_shot'
    """
    operation.check(layout.size)
    if algorithm is None:
        algorithm = candidates(operation, layout)[0][0]
    elif algorithm not in ALGORITHMS:
        raise ValueError(f"no algorithm {algorithm!r}: there are {', '.join(ALGORITHMS)}")
    why = ALGORITHMS[algorithm].fits(operation, layout.size)
    if why is not None:
        raise ValueError(f"algorithm {algorithm} does not fit {operation.text()} on {layout.size} ranks: {why}")
    if chunk_bytes is None:
        chunk_bytes = agreed_chunk_bytes(operation, layout)
    if chunk_bytes <= 0 or chunk_bytes % operation.itemsize:
        raise ValueError(f"chunk_bytes {chunk_bytes} is not a positive multiple of the item size {operation.itemsize}")
    return Plan(operation, layout.size, algorithm, chunk_bytes, ALGORITHMS[algorithm].build)
