# SPDX-License-Identifier: Apache-2.0
"""Trees on the wire: leaves of one dtype are packed into few large operands, so a gradient tree is one operation.

Pure functions, called while tracing. Packing depends only on shapes, dtypes and order of the leaves: equal on all ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jhetcc import compat
from jhetcc.ops.scope import jit

__all__ = ["BUCKET_BYTES_MAX", "each", "packed"]

BUCKET_BYTES_MAX = 64 << 20


def each(function: Callable[[Any], Any], tree: Any) -> Any:
    """Maps leaf by leaf."""
    return jax.tree.map(function, tree)


def packed(function: Callable[..., Any], leaves: Sequence[Any], **params: Any) -> list[Any]:
    """Applies an elementwise operation to arrays, as few times as possible.

    Outside any trace a tree is packed, sent and unpacked as one program.

    Args:
      function: an operation on one array that keeps its shape and treats every element alike.
      leaves: arrays.
      **params: passed to the function; hashable.

    Returns:
      The results, in the order of the leaves.
    """
    if len(leaves) > 1 and compat.trace_is_clean():
        return _program(function, tuple(sorted(params.items())))(list(leaves))
    results: list[Any] = [None] * len(leaves)
    for bucket in _buckets(leaves):
        if len(bucket) == 1:
            results[bucket[0]] = function(leaves[bucket[0]], **params)
            continue
        whole = function(jnp.concatenate([leaves[k].reshape(-1) for k in bucket]), **params)
        begin = 0
        for k in bucket:
            size = leaves[k].size
            results[k] = jax.lax.slice(whole, (begin,), (begin + size,)).reshape(leaves[k].shape)
            begin += size
    return results


@functools.lru_cache(maxsize=256)
def _program(function: Callable[..., Any], params: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    return jit(lambda leaves: packed(function, leaves, **dict(params)))


def _buckets(leaves: Sequence[Any]) -> list[list[int]]:
    """Indices of the leaves in groups of one dtype, tree order kept, none over the limit but single large leaves."""
    buckets: list[list[int]] = []
    open_bucket: dict[Any, tuple[list[int], int]] = {}
    for k, leaf in enumerate(leaves):
        kind = np.dtype(leaf.dtype)
        nbytes = leaf.size * kind.itemsize
        bucket, filled = open_bucket.get(kind, (None, 0))
        if bucket is None or filled + nbytes > BUCKET_BYTES_MAX:
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.append(k)
        open_bucket[kind] = (bucket, filled + nbytes)
    return buckets
