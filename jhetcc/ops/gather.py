# SPDX-License-Identifier: Apache-2.0
"""Gathers and scatters: all_gather, psum_scatter to and from all ranks, gather and scatter at one root.

Called on the threads that trace or run JAX programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from jhetcc.errors import BadArgumentError
from jhetcc.ops import trees, wire
from jhetcc.ops.axes import WORLD, AxisName, index_of, resolve
from jhetcc.ops.exchange import _moved, axis_of
from jhetcc.ops.machinery import Form, bind, define

__all__ = ["all_gather", "gather", "psum_scatter", "scatter"]

Lengths = tuple[int, ...] | None


def _gathered(shape: tuple[int, ...], *, size: int, lengths: Lengths = None, **_: Any) -> tuple[int, ...]:
    return (size, *shape) if lengths is None else (sum(lengths), *shape[1:])


def _scattered(shape: tuple[int, ...], *, lengths: Lengths = None, **_: Any) -> tuple[int, ...]:
    return shape[1:] if lengths is None else (max(lengths), *shape[1:])


def _all_gather_transpose(ct: Any, *, lengths: Lengths, **params: Any) -> Any:
    if lengths is not None:
        rows = max(lengths)
        parts, begin = [], 0
        for length in lengths:
            part = ct[begin : begin + length]
            parts.append(jnp.pad(part, [(0, rows - length)] + [(0, 0)] * (ct.ndim - 1)))
            begin += length
        ct = jnp.stack(parts)
    return psum_scatter_p.bind(ct, **params)


all_gather_p = define("all_gather", Form(False, True, _gathered), transpose=_all_gather_transpose)
psum_scatter_p = define(
    "psum_scatter",
    Form(True, False, _scattered),
    transpose=lambda ct, **params: all_gather_p.bind(ct, lengths=None, **params),
)
gather_p = define("gather", Form(False, True, _gathered), transpose=lambda ct, **params: scatter_p.bind(ct, **params))
scatter_p = define("scatter", Form(True, False, _scattered), transpose=lambda ct, **params: gather_p.bind(ct, **params))


def _lengths(lengths: Sequence[int] | None, size: int, function: str) -> Lengths:
    if lengths is None:
        return None
    try:
        numbers = tuple(length.__index__() for length in lengths)
    except (AttributeError, TypeError) as error:
        raise BadArgumentError(
            f"{function}: lengths are Python integers known at trace time, one for each rank, not {lengths!r}",
            code="lengths",
        ) from error
    if len(numbers) != size or min(numbers) < 0:
        raise BadArgumentError(
            f"{function}: lengths {numbers} must hold one number, zero or more, for each of the {size} ranks",
            code="lengths",
        )
    return numbers


def _padded(array: Any, lengths: tuple[int, ...], function: str) -> Any:
    """A contribution with as many rows as the longest."""
    rows = max(lengths)
    if array.ndim < 1 or (array.shape[0] not in lengths and array.shape[0] != rows):
        raise BadArgumentError(
            f"{function}: the contribution has shape {array.shape}; with lengths {lengths} its leading dimension must be this "
            f"rank's length, or {rows} rows of which the first count",
            code="shape",
        )
    return jnp.pad(array, [(0, rows - array.shape[0])] + [(0, 0)] * (array.ndim - 1))


def all_gather(
    x: Any, axis_name: AxisName = WORLD, *, axis: int = 0, tiled: bool = False, lengths: Sequence[int] | None = None
) -> Any:
    """Every rank gets all contributions in the order of the ranks, as ``jax.lax.all_gather``.

    Args:
      x: array or tree of arrays, of the same shapes and dtypes on all ranks but for ``lengths``. Leaves are gathered one by one.
      axis_name: a communicator's name.
      axis: where the ranks' dimension is inserted; with ``tiled`` the dimension that is concatenated.
      tiled: concatenate instead of stacking.
      lengths: rows of dimension 0 of each rank's contribution, the same list on all ranks; contributions are concatenated there.
        Under ``jax.shard_map`` over several local ranks pass ``max(lengths)`` rows; the first of them count.

    Returns:
      Untiled ``(n, ...)`` with n at ``axis``; tiled ``(n * d, ...)``; with lengths ``(sum(lengths), ...)``. Bit for bit. The
      transpose is ``psum_scatter``.

    Raises:
      BadArgumentError: axis or lengths that do not fit; axis name and placement as for ``psum``.
      NotInitializedError: before ``jhetcc.init()``.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.all_gather(jnp.zeros(10)).shape, jhetcc.all_gather(jnp.zeros(10), tiled=True).shape
      ((1, 10), (10,))
      >>> comm.close()
    """
    axes = resolve(axis_name, "all_gather")
    numbers = _lengths(lengths, axes.size, "all_gather")
    if numbers is not None and axis != 0:
        raise BadArgumentError(
            f"all_gather: lengths count rows of dimension 0, axis={axis} does not go with them", code="axis"
        )

    def body(array: Any) -> Any:
        params = {"axis": axes.name, "size": axes.size, "lengths": numbers}
        if numbers is not None:
            return bind(all_gather_p, _padded(array, numbers, "all_gather"), **params)
        place = axis_of(axis, array.ndim + (not tiled), "all_gather", "axis")
        out = jnp.moveaxis(bind(all_gather_p, array, **params), 0, place)
        if not tiled:
            return out
        shape = out.shape
        return out.reshape(*shape[:place], shape[place] * shape[place + 1], *shape[place + 2 :])

    return trees.each(lambda leaf: _moved(leaf, "all_gather", body), x)


def psum_scatter(x: Any, axis_name: AxisName = WORLD, *, scatter_dimension: int = 0, tiled: bool = False) -> Any:
    """Sums over all ranks and leaves each rank its slice, as ``jax.lax.psum_scatter``.

    Args:
      x: array or tree of arrays, of the same shapes and dtypes on all ranks; dtypes as for ``psum``.
      axis_name: a communicator's name.
      scatter_dimension: dimension cut into one slice for each rank: its length is the number of ranks, or with ``tiled`` a
        multiple.
      tiled: keep the dimension, divided, instead of removing it.

    Returns:
      This rank's slice of the sum. The transpose is ``all_gather``.

    Raises:
      BadArgumentError: lengths that do not fit; axis name and placement as for ``psum``.
      NotInitializedError, TypeError: as ``psum``.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.psum_scatter(jnp.arange(4.0), tiled=True).shape
      (4,)
      >>> comm.close()
    """
    axes = resolve(axis_name, "psum_scatter")
    size = axes.size

    def one(leaf: Any) -> Any:
        array, back = wire.for_reduction(wire.as_array(leaf, "psum_scatter"), "sum", "psum_scatter")
        place = axis_of(scatter_dimension, array.ndim, "psum_scatter", "scatter_dimension")
        rows = array.shape[place]
        if rows % size or (not tiled and rows != size):
            raise BadArgumentError(
                f"psum_scatter: dimension {place} of shape {array.shape} must {'be a multiple of' if tiled else 'equal'} the "
                f"{size} ranks of '{axes.name}'",
                code="shape",
            )
        if tiled:
            array = array.reshape(*array.shape[:place], size, rows // size, *array.shape[place + 1 :])
        return back(bind(psum_scatter_p, jnp.moveaxis(array, place, 0), axis=axes.name, size=size))

    return trees.each(one, x)


def gather(x: Any, axis_name: AxisName = WORLD, root: int = 0, lengths: Sequence[int] | None = None) -> Any:
    """Collects all contributions at one rank; the others get zeros of the full shape.

    Args:
      x: array or tree of arrays, of the same shapes and dtypes on all ranks but for ``lengths``.
      axis_name: a communicator's name.
      root: index of the receiving rank within the communicator.
      lengths: rows of each rank's contribution, as for ``all_gather``.

    Returns:
      ``(n, ...)``, or ``(sum(lengths), ...)``: the contributions at the root, zeros elsewhere. The transpose is ``scatter``.

    Raises:
      BadArgumentError: root or lengths that do not fit; axis name and placement as for ``psum``.
      NotInitializedError: before ``jhetcc.init()``.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.gather(jnp.arange(2)).tolist()
      [[0, 1]]
      >>> comm.close()
    """
    axes = resolve(axis_name, "gather")
    root = index_of(root, axes.size, "root", "gather", axes.name)
    numbers = _lengths(lengths, axes.size, "gather")

    def body(array: Any) -> Any:
        if numbers is not None:
            array = _padded(array, numbers, "gather")
        return bind(gather_p, array, axis=axes.name, size=axes.size, root=root, lengths=numbers)

    return trees.each(lambda leaf: _moved(leaf, "gather", body), x)


def scatter(x: Any, axis_name: AxisName = WORLD, root: int = 0, lengths: Sequence[int] | None = None) -> Any:
    """Hands each rank its slice of the root's array.

    Args:
      x: array or tree of arrays of shape ``(n, ...)``, or ``(sum(lengths), ...)``, of the same shapes and dtypes on all ranks
        (the values of the others are not read).
      axis_name: a communicator's name.
      root: index of the sending rank within the communicator.
      lengths: rows for each rank, the same list on all ranks.

    Returns:
      The slice: shape ``(...)``; with lengths ``(max(lengths), ...)``, zeros behind this rank's rows. The transpose is ``gather``.

    Raises:
      BadArgumentError: root, shape or lengths that do not fit; axis name and placement as for ``psum``.
      NotInitializedError: before ``jhetcc.init()``.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.scatter(jnp.array([[5, 6]])).tolist()
      [5, 6]
      >>> comm.close()
    """
    axes = resolve(axis_name, "scatter")
    root = index_of(root, axes.size, "root", "scatter", axes.name)
    numbers = _lengths(lengths, axes.size, "scatter")
    rows = axes.size if numbers is None else sum(numbers)

    def body(array: Any) -> Any:
        if array.ndim < 1 or array.shape[0] != rows:
            raise BadArgumentError(
                f"scatter: the leading dimension of shape {array.shape} must be {rows}, "
                + ("one row for each rank" if numbers is None else f"the sum of lengths {numbers}"),
                code="shape",
            )
        return bind(scatter_p, array, axis=axes.name, size=axes.size, root=root, lengths=numbers)

    return trees.each(lambda leaf: _moved(leaf, "scatter", body), x)
