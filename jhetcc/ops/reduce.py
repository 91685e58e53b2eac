# SPDX-License-Identifier: Apache-2.0
"""Reductions: psum, psum_invariant, pmean, pmax, pmin, pprod to all ranks, reduce to one.

Called on the threads that trace or run JAX programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jhetcc import compat
from jhetcc.errors import BadArgumentError
from jhetcc.ops import islands, trees, wire
from jhetcc.ops.axes import WORLD, AxisName, index_of, resolve
from jhetcc.ops.exchange import broadcast_p
from jhetcc.ops.machinery import bind, define

__all__ = ["pmax", "pmean", "pmin", "pprod", "psum", "psum_invariant", "reduce"]

_NO_ORDER = "{0} has no derivative, as in jax.lax; put jax.lax.stop_gradient around its operand"

psum_p = define("psum", transpose=lambda ct, **params: psum_p.bind(ct, **params), in_place=True)
pmean_p = define("pmean", transpose=lambda ct, **params: pmean_p.bind(ct, **params), in_place=True)
pmax_p = define("pmax", not_differentiable=_NO_ORDER.format("pmax"), in_place=True)
pmin_p = define("pmin", not_differentiable=_NO_ORDER.format("pmin"), in_place=True)
pprod_p = define(
    "pprod",
    not_differentiable="a product of ranks has no derivative here; use jnp.exp(psum(jnp.log(x))) where the values are positive",
    in_place=True,
)
# Equal on all ranks, so its cotangent is too, and counts once.
psum_invariant_p = define(
    "psum_invariant", transpose=lambda ct, **_: compat.make_varying(ct), result=compat.without_varying, in_place=True
)
# The same of a shard, which differs from device to device.
psum_invariant_shard_p = define("psum_invariant", transpose=lambda ct, **_: ct, in_place=True)


def _reduce_transpose(ct: Any, *, op: str, **params: Any) -> Any:
    out = broadcast_p.bind(ct, **params)
    return out / params["size"] if op == "mean" else out


reduce_sum_p = define("reduce", transpose=_reduce_transpose, in_place=True)
reduce_p = define(
    "reduce", not_differentiable="only reduce(..., op='sum') and op='mean' have derivatives", in_place=True
)


def _bind(x: Any, primitive: Any, **params: Any) -> Any:
    return bind(primitive, x, **params)


def _all_reduce(tree: Any, axis_name: AxisName, function: str, primitive: Any, op: str) -> Any:
    """One operation on the wire for each dtype and bucket of a tree."""
    axes = resolve(axis_name, function, hierarchical=True)
    invariant = primitive is psum_invariant_p
    if invariant and axes.folded:
        raise BadArgumentError(
            f"psum_invariant: {axes.folded} are axes of vmap, not of a mesh; sum over them with jax.lax.psum first",
            code="axis_name",
        )
    leaves, structure = jax.tree.flatten(tree)
    results: list[Any] = list(leaves)
    sent: list[int] = []
    backs: list[Callable[[Any], Any]] = []
    operands: list[Any] = []
    for k, leaf in enumerate(leaves):
        if wire.is_empty_tangent(leaf):
            continue
        x = wire.as_array(leaf, function)
        x, back = wire.for_reduction(x, op, function)
        if axes.folded:
            x = islands.fold(x, op, axes.folded)
        sent.append(k)
        backs.append(back)
        operands.append(compat.make_varying(x))
    params: dict[str, Any] = {"primitive": primitive, "axis": axes.name, "size": axes.size}
    if axes.columns is None:
        outs = trees.packed(_bind, operands, **params)
    else:
        if invariant:
            params |= {"primitive": psum_invariant_shard_p, "invariant": True}
        outs = trees.packed(islands.across, operands, **params, op=op, over=axes.mesh, columns=axes.columns)
    for k, back, out in zip(sent, backs, outs, strict=True):
        results[k] = back(out)
    return jax.tree.unflatten(structure, results)


def psum(x: Any, axis_name: AxisName = WORLD) -> Any:
    """Sum over all ranks; every rank gets the same bits.

    A tree is packed: one operation on the wire for each dtype (and for each 64 MiB), not one for each leaf.

    Args:
      x: array or tree of arrays, of the same shapes and dtypes on all ranks. bool counts as int32; integers wrap; floats of
        16 bits and fewer are accumulated in float32 and rounded once. The literal ``1`` gives the size, a Python int, as in
        ``jax.lax``; any other Python number is this rank's contribution, for other processes may hold other numbers.
      axis_name: a communicator's name, or ``("d", "islands")``: local axes, and every island. Over a mesh of several devices that is one
        ``psum_scatter`` and one ``all_gather`` of XLA, and between them one operation of each device with those at its place in the
        other islands, with its share of the bytes. Islands are of equal size, and the mesh holds ``comm.devices`` in their order.

    Returns:
      The sums, shaped like ``x``. The derivative follows ``jax.lax`` without varying-axes checks: the transpose of psum is
      psum. Use ``psum_invariant`` where the cotangent is the same on all ranks and must count once.

    Raises:
      BadArgumentError: unknown or mixed axis names, or a program whose devices are not the local ranks.
      NotInitializedError: before ``jhetcc.init()``.
      TypeError: random keys.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.psum({"w": jnp.array([1.0, 2.0])})["w"].tolist()
      [1.0, 2.0]
      >>> comm.close()
    """
    if type(x) is int and x == 1:
        return resolve(axis_name, "psum", hierarchical=True).contributors
    return _all_reduce(x, axis_name, "psum", psum_p, "sum")


def psum_invariant(x: Any, axis_name: AxisName = WORLD) -> Any:
    """Sum over all ranks whose cotangent counts once.

    The value is psum's. Inside ``jax.shard_map`` the result no longer varies over the local mesh axes, so it fits
    ``out_specs=P()``; its transpose hands each rank the (equal) cotangent unchanged, where psum would add up all of them.

    Args:
      x: array or tree, as for ``psum``.
      axis_name: a communicator's name, or a tuple of local mesh axes and ``"islands"``: then the result no longer varies over these.

    Returns:
      The sums, shaped like ``x``.

    Raises:
      BadArgumentError, NotInitializedError, TypeError: as ``psum``.

    Example:
      >>> import jax, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> float(jax.grad(lambda w: jhetcc.psum_invariant(w * 3.0))(2.0))
      3.0
      >>> comm.close()
    """
    return _all_reduce(x, axis_name, "psum_invariant", psum_invariant_p, "sum")


def pmean(x: Any, axis_name: AxisName = WORLD) -> Any:
    """Mean over all ranks: the sum divided by the number of contributors.

    Args:
      x: array or tree, as for ``psum``. Floating and complex dtypes are kept and rounded once; bool and integers give floats,
        as in ``jax.lax`` (an integer sum wraps before the division).
      axis_name: a communicator's name, or a tuple of local mesh axes and ``"islands"``.

    Returns:
      The means, shaped like ``x``.

    Raises:
      BadArgumentError, NotInitializedError, TypeError: as ``psum``.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.pmean(jnp.array([True, False])).tolist()
      [1.0, 0.0]
      >>> comm.close()
    """
    axes = resolve(axis_name, "pmean", hierarchical=True)
    leaves, structure = jax.tree.flatten(x)
    arrays = [leaf if wire.is_empty_tangent(leaf) else wire.as_array(leaf, "pmean") for leaf in leaves]
    floating = [
        k
        for k, leaf in enumerate(arrays)
        if wire.is_empty_tangent(leaf) or (axes.wire_divides and wire.mean_on_wire(leaf.dtype))
    ]
    others = [k for k in range(len(arrays)) if k not in set(floating)]
    results: list[Any] = [None] * len(leaves)
    means = _all_reduce([arrays[k] for k in floating], axis_name, "pmean", pmean_p, "mean")
    sums = _all_reduce([arrays[k] for k in others], axis_name, "pmean", psum_p, "sum")
    for k, mean in zip(floating, means, strict=True):
        results[k] = mean
    for k, total in zip(others, sums, strict=True):
        results[k] = total / axes.contributors
    return jax.tree.unflatten(structure, results)


def pmax(x: Any, axis_name: AxisName = WORLD) -> Any:
    """Maximum over all ranks, element by element; NaN if any rank holds NaN, and -0.0 < +0.0.

    Args:
      x: array or tree of real or bool arrays.
      axis_name: a communicator's name, or a tuple of local mesh axes and ``"islands"``.

    Returns:
      The maxima, shaped like ``x``, same dtypes. Not differentiable, as in ``jax.lax``.

    Raises:
      TypeError: complex dtypes and random keys.
      BadArgumentError, NotInitializedError: as ``psum``; differentiating it.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.pmax(jnp.array([3, -1])).tolist()
      [3, -1]
      >>> comm.close()
    """
    return _all_reduce(x, axis_name, "pmax", pmax_p, "max")


def pmin(x: Any, axis_name: AxisName = WORLD) -> Any:
    """Minimum over all ranks, element by element; NaN if any rank holds NaN, and -0.0 < +0.0.

    Args:
      x: array or tree of real or bool arrays.
      axis_name: a communicator's name, or a tuple of local mesh axes and ``"islands"``.

    Returns:
      The minima, shaped like ``x``, same dtypes. Not differentiable, as in ``jax.lax``.

    Raises:
      TypeError: complex dtypes and random keys.
      BadArgumentError, NotInitializedError: as ``psum``; differentiating it.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.pmin(jnp.array([3, -1])).tolist()
      [3, -1]
      >>> comm.close()
    """
    return _all_reduce(x, axis_name, "pmin", pmin_p, "min")


def pprod(x: Any, axis_name: AxisName = WORLD) -> Any:
    """Product over all ranks, element by element; integers wrap, bool counts as int32.

    Args:
      x: array or tree of arrays.
      axis_name: a communicator's name, or a tuple of local mesh axes and ``"islands"``.

    Returns:
      The products, shaped like ``x``. Not differentiable.

    Raises:
      TypeError: random keys.
      BadArgumentError, NotInitializedError: as ``psum``; differentiating it.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.pprod(jnp.array([2.0, 5.0])).tolist()
      [2.0, 5.0]
      >>> comm.close()
    """
    return _all_reduce(x, axis_name, "pprod", pprod_p, "prod")


_OPS = ("sum", "mean", "max", "min", "prod")


def reduce(x: Any, axis_name: AxisName = WORLD, root: int = 0, op: str = "sum") -> Any:
    """Reduces to one rank; the others get zeros of the full shape.

    Args:
      x: array or tree of arrays, of the same shapes and dtypes on all ranks; dtypes as for ``psum`` and ``pmax``.
      axis_name: a communicator's name.
      root: index of the receiving rank within the communicator.
      op: ``"sum"``, ``"mean"`` (floating and complex), ``"max"``, ``"min"`` or ``"prod"``.

    Returns:
      The reduction at the root, zeros elsewhere. The transpose of a sum is a broadcast from the root.

    Raises:
      BadArgumentError: root or op out of range; a mean of integers; differentiating max, min or prod.
      NotInitializedError, TypeError: as ``psum``.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.reduce(jnp.array([4.0]), root=0, op="max").tolist()
      [4.0]
      >>> comm.close()
    """
    axes = resolve(axis_name, "reduce")
    root = index_of(root, axes.size, "root", "reduce", axes.name)
    if op not in _OPS:
        raise BadArgumentError(f"reduce: op must be one of {', '.join(_OPS)}, not {op!r}", code="reduction")

    def one(leaf: Any) -> Any:
        if wire.is_empty_tangent(leaf):
            return leaf
        array = wire.as_array(leaf, "reduce")
        if op == "mean" and not wire.mean_on_wire(array.dtype):
            raise BadArgumentError(
                f"reduce: a mean of {array.dtype} needs a floating dtype at the root; convert with astype first",
                code="reduction",
            )
        array, back = wire.for_reduction(array, op, "reduce")
        primitive = reduce_sum_p if op in ("sum", "mean") else reduce_p
        return back(bind(primitive, array, axis=axes.name, size=axes.size, root=root, op=op))

    return trees.each(one, x)
