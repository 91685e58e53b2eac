# SPDX-License-Identifier: Apache-2.0
"""Exchanges that move without reducing: broadcast, ppermute, all_to_all, ragged_all_to_all.

Called on the threads that trace or run JAX programs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jhetcc.errors import BadArgumentError
from jhetcc.ops import trees, wire
from jhetcc.ops.axes import WORLD, AxisName, index_of, resolve
from jhetcc.ops.machinery import Form, bind, define, same

__all__ = ["all_to_all", "broadcast", "pbroadcast", "ppermute", "ragged_all_to_all"]


def _broadcast_transpose(ct: Any, **params: Any) -> Any:
    from jhetcc.ops.reduce import reduce_sum_p  # the two are each other's transpose

    return reduce_sum_p.bind(ct, op="sum", **params)


def _ppermute_transpose(ct: Any, *, perm: tuple[tuple[int, int], ...], **params: Any) -> Any:
    return ppermute_p.bind(ct, perm=tuple(sorted((b, a) for a, b in perm)), **params)


broadcast_p = define("broadcast", transpose=_broadcast_transpose, in_place=True)
ppermute_p = define("ppermute", transpose=_ppermute_transpose)
all_to_all_p = define(
    "all_to_all", Form(True, True, same), transpose=lambda ct, **params: all_to_all_p.bind(ct, **params)
)


def _moved(leaf: Any, function: str, body: Any) -> Any:
    """Applies a movement to one leaf in the form its dtype has on the wire."""
    if wire.is_empty_tangent(leaf):
        leaf = jnp.zeros(leaf.shape, bool)
        return np.zeros(jax.eval_shape(body, leaf).shape, jax.dtypes.float0)
    array, back = wire.for_move(wire.as_array(leaf, function))
    return back(body(array))


def broadcast(x: Any, axis_name: AxisName = WORLD, root: int = 0) -> Any:
    """Every rank gets the root's value.

    Args:
      x: array or tree of arrays, of the same shapes and dtypes on all ranks (the values of the others are not read).
      axis_name: a communicator's name.
      root: index of the sending rank within the communicator.

    Returns:
      The root's arrays, bit for bit. The transpose sums the cotangents at the root and is zero elsewhere.

    Raises:
      BadArgumentError: root out of range; axis and placement as for ``psum``.
      NotInitializedError: before ``jhetcc.init()``.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.broadcast(jnp.arange(3)).tolist()
      [0, 1, 2]
      >>> comm.close()
    """
    axes = resolve(axis_name, "broadcast")
    root = index_of(root, axes.size, "root", "broadcast", axes.name)

    def body(array: Any) -> Any:
        return bind(broadcast_p, array, axis=axes.name, size=axes.size, root=root)

    return trees.each(lambda leaf: _moved(leaf, "broadcast", body), x)


def pbroadcast(x: Any, axis_name: AxisName = WORLD, source: int = 0) -> Any:
    """``jax.lax.pbroadcast`` over ranks: ``broadcast`` with the source as root.

    Args:
      x: array or tree of arrays.
      axis_name: a communicator's name.
      source: index of the sending rank within the communicator.

    Returns:
      The source's arrays on every rank.

    Raises:
      BadArgumentError, NotInitializedError: as ``broadcast``.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.pbroadcast(jnp.arange(3), "world", 0).tolist()
      [0, 1, 2]
      >>> comm.close()
    """
    return broadcast(x, axis_name, source)


def _pairs(perm: Iterable[Any], size: int, name: str) -> tuple[tuple[int, int], ...]:
    """Reads a permutation once, checks it, and gives it one order."""
    pairs = []
    for pair in perm:
        try:
            source, target = pair
        except (TypeError, ValueError) as error:
            raise BadArgumentError(
                f"ppermute: perm holds pairs (source, destination), not {pair!r}", code="perm"
            ) from error
        pairs.append(
            (
                index_of(source, size, "source", "ppermute", name),
                index_of(target, size, "destination", "ppermute", name),
            )
        )
    for side, word in ((0, "source"), (1, "destination")):
        ends = [pair[side] for pair in pairs]
        twice = sorted({end for end in ends if ends.count(end) > 1})
        if twice:
            raise BadArgumentError(
                f"ppermute: {word} {twice[0]} appears more than once in perm {pairs}; each rank sends to at most one and "
                "receives from at most one",
                code="perm",
            )
    return tuple(sorted(pairs))


def ppermute(x: Any, axis_name: AxisName = WORLD, perm: Iterable[tuple[int, int]] = ()) -> Any:
    """Sends each rank's value to one other rank.

    Args:
      x: array or tree of arrays, of the same shapes and dtypes on all ranks.
      axis_name: a communicator's name.
      perm: pairs (source, destination) of rank indexes, in any iterable, which is read once. A pair with itself is a copy.

    Returns:
      What the source sent; zeros on ranks that are nobody's destination. The transpose sends backwards.

    Raises:
      BadArgumentError: an index out of range, a source or destination twice; axis and placement as for ``psum``.
      NotInitializedError: before ``jhetcc.init()``.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.ppermute(jnp.arange(3), "world", [(0, 0)]).tolist()
      [0, 1, 2]
      >>> comm.close()
    """
    axes = resolve(axis_name, "ppermute")
    pairs = _pairs(perm, axes.size, axes.name)

    def body(array: Any) -> Any:
        return bind(ppermute_p, array, axis=axes.name, size=axes.size, perm=pairs)

    return trees.each(lambda leaf: _moved(leaf, "ppermute", body), x)


def axis_of(axis: int, ndim: int, function: str, what: str) -> int:
    """A dimension index with negative ones counted from the end."""
    try:
        index = axis.__index__()
    except (AttributeError, TypeError) as error:
        raise BadArgumentError(f"{function}: {what} must be a Python integer, not {axis!r}", code="axis") from error
    if not -ndim <= index < ndim:
        raise BadArgumentError(f"{function}: {what} {axis} is not a dimension of an array with {ndim}", code="axis")
    return index % ndim


def all_to_all(x: Any, axis_name: AxisName, split_axis: int, concat_axis: int, *, tiled: bool = False) -> Any:
    """Every rank sends one slice to each rank and puts together what it gets, as ``jax.lax.all_to_all``.

    Args:
      x: array or tree of arrays, of the same shapes and dtypes on all ranks. Leaves are exchanged one by one.
      axis_name: a communicator's name.
      split_axis: dimension cut into one slice for each rank; its length is the number of ranks, or with ``tiled`` a multiple.
      concat_axis: where the slices that arrive are put, in the order of the ranks.
      tiled: slices keep their dimension and are concatenated, instead of being stacked in a new one.

    Returns:
      Untiled: shape of ``x`` with ``split_axis`` removed and a dimension of the number of ranks inserted at ``concat_axis``.
      Tiled: ``split_axis`` divided, ``concat_axis`` multiplied by the number of ranks. Bit for bit.

    Raises:
      BadArgumentError: lengths that do not fit; axis and placement as for ``psum``.
      NotInitializedError: before ``jhetcc.init()``.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.all_to_all(jnp.ones((1, 4)), "world", 0, 1).shape
      (4, 1)
      >>> comm.close()
    """
    axes = resolve(axis_name, "all_to_all")
    size = axes.size

    def body(array: Any) -> Any:
        split = axis_of(split_axis, array.ndim, "all_to_all", "split_axis")
        concat = axis_of(concat_axis, array.ndim, "all_to_all", "concat_axis")
        rows = array.shape[split]
        if rows % size or (not tiled and rows != size):
            raise BadArgumentError(
                f"all_to_all: dimension {split} of shape {array.shape} must {'be a multiple of' if tiled else 'equal'} the "
                f"{size} ranks of '{axes.name}'",
                code="shape",
            )
        if tiled:
            shape = array.shape
            array = array.reshape(*shape[:split], size, rows // size, *shape[split + 1 :])
        array = jnp.moveaxis(array, split, 0)
        out = bind(all_to_all_p, array, axis=axes.name, size=size)
        out = jnp.moveaxis(out, 0, concat)
        if tiled:
            shape = out.shape
            out = out.reshape(*shape[:concat], size * shape[concat + 1], *shape[concat + 2 :])
        return out

    return trees.each(lambda leaf: _moved(leaf, "all_to_all", body), x)


def ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: AxisName = WORLD,
) -> Any:
    """Exchanges slices of run-time length, as ``jax.lax.ragged_all_to_all`` without groups.

    Costs more than its bytes: sizes are only known at run time, so every rank receives the whole operand of every other rank
    (one all_gather of it, and one all_to_all of the offsets) and picks its slices.

    Args:
      operand: array of shape ``(m, ...)``, the same on all ranks; slices are cut along dimension 0.
      output: array of shape ``(k, ...)`` that is written into; what is not written keeps its value.
      input_offsets: integers of shape ``(n,)``: where in ``operand`` the slice for each rank begins.
      send_sizes: rows of the slice for each rank.
      output_offsets: where in the *receiver's* output each slice goes.
      recv_sizes: rows to take from each rank; equal to what they send.
      axis_name: a communicator's name.

    Returns:
      ``output`` with the slices written.

    Raises:
      BadArgumentError: shapes that do not fit; axis and placement as for ``psum``.
      NotInitializedError: before ``jhetcc.init()``.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> i = lambda k: jnp.array([k])
      >>> jhetcc.ragged_all_to_all(jnp.array([7, 8, 9]), jnp.zeros(3, int), i(1), i(2), i(0), i(2)).tolist()
      [8, 9, 0]
      >>> comm.close()
    """
    from jhetcc.ops.gather import all_gather

    axes = resolve(axis_name, "ragged_all_to_all")
    operand, output = wire.as_array(operand, "ragged_all_to_all"), wire.as_array(output, "ragged_all_to_all")
    numbers = [wire.as_array(v, "ragged_all_to_all") for v in (input_offsets, send_sizes, output_offsets, recv_sizes)]
    if operand.ndim < 1 or operand.shape[1:] != output.shape[1:] or operand.dtype != output.dtype:
        raise BadArgumentError(
            f"ragged_all_to_all: operand {operand.dtype}{operand.shape} and output {output.dtype}{output.shape} must agree in "
            "dtype and in all dimensions but the first",
            code="shape",
        )
    for number, what in zip(numbers, ("input_offsets", "send_sizes", "output_offsets", "recv_sizes"), strict=True):
        if number.shape != (axes.size,) or not jnp.issubdtype(number.dtype, jnp.integer):
            raise BadArgumentError(
                f"ragged_all_to_all: {what} must be integers of shape ({axes.size},), not {number.dtype}{number.shape}",
                code="shape",
            )
    begin, _, target, take = numbers
    parts = all_gather(operand, axes.name)
    plan = all_to_all(jnp.stack([begin, target], axis=1), axes.name, 0, 0)
    rows = jnp.arange(output.shape[0])
    for source in range(axes.size):
        first, where = plan[source, 0], plan[source, 1]
        inside = (rows >= where) & (rows < where + take[source])
        picked = (
            jnp.take(parts[source], jnp.clip(rows - where + first, 0, operand.shape[0] - 1), axis=0)
            if operand.shape[0]
            else output
        )
        output = jnp.where(inside.reshape(-1, *(1,) * (output.ndim - 1)), picked, output)
    return output
