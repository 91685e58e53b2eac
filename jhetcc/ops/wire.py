# SPDX-License-Identifier: Apache-2.0
"""What dtypes look like on the wire, and the way back: sums of bool, 8-bit floats, sub-byte types, random keys.

Pure functions of arrays and dtypes, called while tracing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jhetcc.errors import BadArgumentError

__all__ = ["as_array", "for_move", "for_reduction", "is_empty_tangent", "mean_on_wire", "move_dtype", "name_of"]

_NAMES = {
    np.dtype(kind): name
    for kind, name in {
        np.bool_: "bool",
        np.int8: "i8",
        np.int16: "i16",
        np.int32: "i32",
        np.int64: "i64",
        np.uint8: "u8",
        np.uint16: "u16",
        np.uint32: "u32",
        np.uint64: "u64",
        np.float16: "f16",
        ml_dtypes.bfloat16: "bf16",
        np.float32: "f32",
        np.float64: "f64",
        np.complex64: "c64",
        np.complex128: "c128",
    }.items()
}
_SUB_BYTE = {
    "int4": jnp.int8,
    "int2": jnp.int8,
    "uint4": jnp.uint8,
    "uint2": jnp.uint8,
    "int1": jnp.int8,
    "uint1": jnp.uint8,
}


def name_of(dtype: Any) -> str:
    """Name of a dtype on the wire: its own where it can be reduced, else its bits."""
    dtype = np.dtype(dtype)
    return _NAMES.get(dtype) or f"b{8 * dtype.itemsize}"


def as_array(x: Any, function: str) -> Any:
    """A leaf as an array.

    Raises:
      BadArgumentError: not an array, nor something JAX makes one of.
    """
    if isinstance(x, jax.Array):
        return x
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError) as error:
        raise BadArgumentError(
            f"{function}: {type(x).__name__} {x!r} is not an array: {error}", code="not_an_array"
        ) from error


def is_empty_tangent(x: Any) -> bool:
    """Whether a leaf is the tangent of an integer: it has no bytes, and every sum of it is itself."""
    return getattr(x, "dtype", None) == jax.dtypes.float0


def is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _same(x: Any) -> Any:
    return x


def for_reduction(x: Any, op: str, function: str) -> tuple[Any, Callable[[Any], Any]]:
    """The operand as it is reduced, and the function that gives the result its dtype.

    Raises:
      TypeError: no such reduction of this dtype, as in ``jax.lax``.
    """
    if is_key(x):
        raise TypeError(f"{function} of random keys ({x.dtype}) has no meaning; reduce the numbers drawn from them")
    dtype = x.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating) and op in ("max", "min"):
        raise TypeError(
            f"{function} of {dtype}: complex numbers have no order; reduce jnp.abs(x), or real and imaginary part"
        )
    if dtype == jnp.bool_:
        return (x.astype(jnp.int32), _same) if op in ("sum", "prod") else (x, _same)
    if np.dtype(dtype) in _NAMES:
        return x, _same
    back = lambda y: y.astype(dtype)  # noqa: E731
    if dtype.name in _SUB_BYTE:
        return x.astype(_SUB_BYTE[dtype.name]), back
    if jnp.issubdtype(dtype, jnp.floating):
        return x.astype(jnp.float32), back
    raise TypeError(f"{function} of {dtype} is not offered: convert to a dtype that can be reduced with astype first")


def move_dtype(dtype: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The dtype that carries another bit for bit, and the way back."""
    if dtype.name in _SUB_BYTE:
        return np.dtype(_SUB_BYTE[dtype.name]), lambda y: y.astype(dtype)
    if dtype.name == "float4_e2m1fn":  # all its values, -0 among them, are values of the wider type
        return np.dtype(jnp.float8_e4m3fn), lambda y: y.astype(dtype)
    return dtype, _same


def for_move(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The operand as it is moved, bit for bit, and the way back to its dtype."""
    if is_key(x):
        kind = jax.random.key_impl(x)
        return jax.random.key_data(x), lambda y: jax.random.wrap_key_data(y, impl=kind)
    carrier, back = move_dtype(x.dtype)
    return (x if carrier == x.dtype else x.astype(carrier)), back


def mean_on_wire(dtype: Any) -> bool:
    """Whether the wire divides: floating and complex types, rounded once; others divide the sum, as ``jax.lax`` does."""
    return jnp.issubdtype(dtype, jnp.inexact)
