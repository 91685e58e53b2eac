# SPDX-License-Identifier: Apache-2.0
"""Reductions over local mesh axes and all islands: XLA's collectives around one operation between the islands.

Each device gets a shard of its island's reduction, the k-th device of each island reduces that shard with the k-th of the others, and
XLA makes the whole again: every byte crosses once, and all devices carry their share. Pure functions, called while tracing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jhetcc import compat
from jhetcc.ops.machinery import bind

__all__ = ["across", "fold"]

_ELEMENTWISE: dict[str, Callable[[Any, Any], Any]] = {"max": jnp.maximum, "min": jnp.minimum, "prod": jnp.multiply}
_FOLD = {
    "sum": jax.lax.psum,
    "mean": jax.lax.pmean,
    "max": jax.lax.pmax,
    "min": jax.lax.pmin,
    "prod": lambda x, axes: _product(x, axes),
}


def fold(x: Any, op: str, axes: tuple[Hashable, ...]) -> Any:
    """Reduces over axes of ``vmap``."""
    return _FOLD[op](x, axes)


def _product(x: Any, axes: tuple[Hashable, ...]) -> Any:
    return functools.reduce(jnp.multiply, jax.lax.all_gather(x, axes))


def across(
    x: Any, *, primitive: Any, op: str, over: tuple[Hashable, ...], invariant: bool = False, **params: Any
) -> Any:
    """Reduces an array over mesh axes and all islands.

    Args:
      x: any shape; padded to a multiple of the number of shards, which hold an element at least.
      primitive: of the operation between the islands.
      op: its reduction. Of a mean, the local devices add up; the wire divides.
      over: mesh axes.
      invariant: whether the result is marked equal over the axes, and its cotangent counts once.
      **params: of the primitive.
    """
    parts = jax.lax.axis_size(over)
    flat = x.reshape(-1)
    missing = -flat.size % parts or parts * (flat.size == 0)  # XLA gathers no empty shards
    padded = jnp.pad(flat, (0, missing)) if missing else flat
    # Nothing to reduce: a shard of zeros, without XLA's all_to_all, which of such a constant ends the process in jaxlib 0.12.
    shard = _scatter(padded, op, over, parts) if flat.size else padded[:1]
    shard = bind(primitive, shard, **params)
    whole = compat.gather_invariant(shard, over) if invariant else jax.lax.all_gather(shard, over, tiled=True)
    return whole[: flat.size].reshape(x.shape)


def _scatter(flat: Any, op: str, over: tuple[Hashable, ...], parts: int) -> Any:
    """This device's shard of the reduction over local devices. 16-bit floats are accumulated in float32, as on the wire."""
    dtype = flat.dtype
    if op in ("sum", "mean", "prod") and jnp.issubdtype(dtype, jnp.floating) and np.dtype(dtype).itemsize < 4:
        flat = flat.astype(jnp.float32)
    if op in ("sum", "mean"):
        shard = jax.lax.psum_scatter(flat, over, scatter_dimension=0, tiled=True)
    else:  # lax has no such scatter for these, and its pmax drops NaN
        rows = jax.lax.all_to_all(flat.reshape(parts, flat.size // parts), over, 0, 0, tiled=True)
        shard = functools.reduce(_ELEMENTWISE[op], rows)
    return shard.astype(dtype)
