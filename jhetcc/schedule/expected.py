# SPDX-License-Identifier: Apache-2.0
"""What every output must hold: which element of which rank's input belongs in each output element."""

from __future__ import annotations

from .operation import Operation

__all__ = ["ZERO", "contributions"]

ZERO = ()  # an output element that is zero


def contributions(operation: Operation, size: int, rank: int) -> list[tuple[tuple[int, int], ...]]:
    """For each element of a rank's output: the (rank, element) pairs that go in, by rank; ``ZERO`` for a zero.

    Operations that reduce have one pair of every rank; the others one pair in all.
    """
    name = operation.name
    if name in ("barrier", "send"):
        return []
    item = operation.itemsize
    count = operation.nbytes // item
    zeros: list[tuple[tuple[int, int], ...]] = [ZERO] * (operation.output_bytes(size) // item)
    if operation.is_all_reduce or name == "reduce":
        if name == "reduce" and rank != operation.root:
            return zeros
        step = operation.columns or 1
        return [tuple((q, e) for q in range(rank % step, size, step)) for e in range(count)]
    if name == "psum_scatter":
        block = count // size
        return [tuple((q, rank * block + e) for q in range(size)) for e in range(block)]
    if name == "all_to_all":
        block = count // size
        return [((q, rank * block + e),) for q in range(size) for e in range(block)]
    if name in ("all_gather", "gather"):
        if name == "gather" and rank != operation.root:
            return zeros
        return [((q, e),) for q, rows in enumerate(_elements(operation, size)) for e in range(rows)]
    if name == "scatter":
        parts = _elements(operation, size)
        begin = sum(parts[:rank])
        root = operation.root or 0
        own = [((root, begin + e),) for e in range(parts[rank])]
        return own + zeros[len(own) :]
    source = {
        "broadcast": operation.root,
        "ppermute": {b: a for a, b in operation.perm or ()}.get(rank),
        "recv": operation.from_,
        "sendrecv": operation.from_,
    }[name]
    return zeros if source is None else [((source, e),) for e in range(count)]


def _elements(operation: Operation, size: int) -> list[int]:
    """Elements of each rank's part."""
    item = operation.itemsize
    if operation.lengths is not None:
        return [rows * operation.row_bytes // item for rows in operation.lengths]
    count = operation.nbytes // item
    return [count // size if operation.name == "scatter" else count] * size
