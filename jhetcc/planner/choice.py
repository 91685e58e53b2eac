# SPDX-License-Identifier: Apache-2.0
"""From an operation and a layout to a plan: which algorithms fit, what they cost, which one is taken. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..schedule import Operation, Plan, Schedule, fnv1a
from . import columns, direct, direct_reduce, halving_doubling, hierarchical, hierarchical_cost, ring, tree
from .common import chunk_bytes as agreed_chunk_bytes
from .hierarchical import Basis
from .layout import Layout

__all__ = ["ALGORITHMS", "HIERARCHICAL", "Algorithm", "Candidate", "basis", "candidates", "plan", "rated", "why_unfit"]


@dataclass(frozen=True)
class Algorithm:
    """One method for ranks that are all alike.

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
# Methods for clusters: name -> (reduce between clusters by border communicators, all in one chunk).
HIERARCHICAL: dict[str, tuple[bool, bool]] = {
    "hierarchical": (False, False),
    "hierarchical_border": (True, False),
    "hierarchical_sequential": (False, True),
    "hierarchical_border_sequential": (True, True),
}
# A pipeline has to be predicted to win by so much, for more messages have costs that no formula knows. Measured on links of known
# rates, those that were to win by less took up to 15 % longer (docs/measurements.md).
_GAIN = 1.03


@dataclass(frozen=True)
class Candidate:
    """A method that fits.

    Attributes:
      name: of the algorithm.
      seconds: predicted.
      chunk_bytes: of one iteration, that it would use.
    """

    name: str
    seconds: float
    chunk_bytes: int


def why_unfit(name: str, operation: Operation, layout: Layout) -> str | None:
    """Why a method does not fit, or None.

    Raises:
      ValueError: there is no such method.
    """
    if operation.columns is not None:
        return why_unfit(name, *columns.of_one(operation, layout))
    if name in HIERARCHICAL:
        return hierarchical.fits(operation, layout.clusters, HIERARCHICAL[name][0])
    if name not in ALGORITHMS:
        raise ValueError(f"no algorithm {name!r}: there are {', '.join([*ALGORITHMS, *HIERARCHICAL])}")
    return ALGORITHMS[name].fits(operation, layout.size)


def basis(name: str, operation: Operation, layout: Layout) -> Basis:
    """What a hierarchical method that fits is made from."""
    assert layout.clusters is not None
    return hierarchical.owners(operation, layout.clusters, hierarchical_cost.bandwidths(layout), HIERARCHICAL[name][0])


def rated(operation: Operation, layout: Layout) -> list[Candidate]:
    """The methods that fit, the best first, hierarchical ones each with the chunk size that suits it best.

    The best is the one that is predicted to be the fastest; but a pipeline by less than 3 % is behind the same method without one.

    Raises:
      ValueError: the operation does not fit the layout's number of ranks.
    """
    operation.check(layout.size)
    if operation.columns is not None:
        return rated(*columns.of_one(operation, layout))
    chunk = agreed_chunk_bytes(operation, layout)
    found = [
        Candidate(name, layout.profile.call + algorithm.seconds(operation, layout, chunk), chunk)
        for name, algorithm in ALGORITHMS.items()
        if why_unfit(name, operation, layout) is None
    ]
    for name in HIERARCHICAL:
        if why_unfit(name, operation, layout) is None:
            found.append(_rate_hierarchical(name, operation, layout))
    worth = {name: 1.0 if is_sequential else _GAIN for name, (_, is_sequential) in HIERARCHICAL.items()}
    return sorted(found, key=lambda item: _rounded(item.seconds * worth.get(item.name, 1.0)))


def _rounded(seconds: float) -> float:
    """So that rounding does not decide."""
    return float(f"{seconds:.6g}")


def _rate_hierarchical(name: str, operation: Operation, layout: Layout) -> Candidate:
    made = basis(name, operation, layout)
    if HIERARCHICAL[name][1]:
        chunks = [hierarchical_cost.sequential_chunk(operation, made)]
    else:
        chunks = hierarchical_cost.chunk_sizes(operation, made)
    tried = [(hierarchical_cost.seconds(operation, layout, made, chunk), chunk) for chunk in chunks]
    seconds, chunk = min(tried, key=lambda item: (_rounded(item[0]), -item[1]))
    return Candidate(name, layout.profile.call + seconds, chunk)


def candidates(operation: Operation, layout: Layout) -> list[tuple[str, float]]:
    """The algorithms that fit, with predicted seconds, the fastest first.

    Raises:
      ValueError: the operation does not fit the layout's number of ranks.

    Example:
      >>> [name for name, _ in candidates(Operation("broadcast", "f32", (4,), root=0), Layout.local(2))][0]
      'direct'
    """
    return [(one.name, one.seconds) for one in rated(operation, layout)]


def plan(operation: Operation, layout: Layout, *, algorithm: str | None = None, chunk_bytes: int | None = None) -> Plan:
    """Chooses the method of an operation; the same on every rank that asks with equal arguments.

    Args:
      operation: what is asked.
      layout: the machines under the communicator, and its clusters if there are any.
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
    if operation.columns is not None:
        column = plan(*columns.of_one(operation, layout), algorithm=algorithm, chunk_bytes=chunk_bytes)
        build = partial(columns.build, column=column)
        return Plan(operation, layout.size, column.algorithm, column.chunk_bytes, build)
    suited: int | None = None
    if algorithm is None:
        best = rated(operation, layout)[0]
        algorithm, suited = best.name, best.chunk_bytes
    why = why_unfit(algorithm, operation, layout)
    if why is not None:
        raise ValueError(f"algorithm {algorithm} does not fit {operation.text()} on {layout.size} ranks: {why}")
    if chunk_bytes is None and suited is None:
        in_clusters = algorithm in HIERARCHICAL
        rate = _rate_hierarchical(algorithm, operation, layout) if in_clusters else None
        suited = agreed_chunk_bytes(operation, layout) if rate is None else rate.chunk_bytes
    chunk = suited if chunk_bytes is None else chunk_bytes
    assert chunk is not None
    if chunk <= 0 or chunk % operation.itemsize:
        raise ValueError(f"chunk_bytes {chunk} is not a positive multiple of the item size {operation.itemsize}")
    if algorithm in ALGORITHMS:
        return Plan(operation, layout.size, algorithm, chunk, ALGORITHMS[algorithm].build)
    made = basis(algorithm, operation, layout)
    # Ranks that plan with other clusters, NICs or shares must not meet: their hashes differ.
    detail = f"{fnv1a(repr(made).encode()):016x}"
    return Plan(operation, layout.size, algorithm, chunk, partial(hierarchical.build, basis=made), detail)
