# SPDX-License-Identifier: Apache-2.0
"""What a reduction of values is, bit for bit: the numpy oracle of the engine's kernels (docs/seams.md)."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from .operation import can_reduce, item_size

__all__ = ["numpy_dtype", "reduce_terms"]

_NUMPY = {
    "bool": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
}


def numpy_dtype(dtype: str) -> np.dtype:
    """The numpy dtype of a short name; ``b<bits>`` becomes raw items of that many bytes."""
    return _NUMPY[dtype] if dtype in _NUMPY else np.dtype(f"V{item_size(dtype)}")


def reduce_terms(values: Sequence[np.ndarray], dtype: str, op: str, divisor: int = 0) -> np.ndarray:
    """Reduces arrays element by element, left to right.

    Args:
      values: one or more arrays of equal shape, of ``numpy_dtype(dtype)``.
      dtype: short name.
      op: ``"sum"``, ``"prod"``, ``"max"``, ``"min"`` or ``"mean"``.
      divisor: for a mean whose result is complete, the number of contributions; else 0.

    Returns:
      An array of the same dtype. f16 and bf16 accumulate in f32 and round once; NaN results are the one quiet NaN; max
      and min give NaN if any is NaN and hold -0.0 < +0.0; integers wrap; bool sums are or, products and.

    Raises:
      ValueError: the reduction does not exist.

    Example:
      >>> reduce_terms([np.float32([1, -0.0]), np.float32([2, 0.0])], "f32", "max").tolist()
      [2.0, 0.0]
    """
    if not can_reduce(dtype, op):
        raise ValueError(f"{op} of {dtype} does not exist")
    kind = numpy_dtype(dtype)
    terms = [np.ascontiguousarray(value).astype(kind, copy=False) for value in values]
    with np.errstate(all="ignore"):
        if dtype == "bool":
            return _bool(terms, op)
        if kind.kind == "c":
            return _complex(terms, kind, op, divisor)
        if dtype in ("f16", "bf16") and op not in ("max", "min"):
            wide = [term.astype(np.float32) for term in terms]
            return _quiet(_fold(wide, op, divisor).astype(kind))
        if dtype in ("f16", "bf16", "f32", "f64") and op in ("max", "min"):
            return _extreme(terms, kind, op)
        return _quiet(_fold(terms, op, divisor))


def _fold(terms: Sequence[np.ndarray], op: str, divisor: int) -> np.ndarray:
    total = terms[0].copy()
    for term in terms[1:]:
        if op in ("sum", "mean"):
            total = total + term
        elif op == "prod":
            total = total * term
        else:
            total = np.maximum(total, term) if op == "max" else np.minimum(total, term)
    if op == "mean" and divisor:
        total = total / total.dtype.type(divisor)
    return total


def _bool(terms: Sequence[np.ndarray], op: str) -> np.ndarray:
    total = terms[0].copy()
    for term in terms[1:]:
        total = total | term if op in ("sum", "max") else total & term
    return total


def _complex(terms: Sequence[np.ndarray], kind: np.dtype, op: str, divisor: int) -> np.ndarray:
    part = np.dtype(f"f{kind.itemsize // 2}")
    pairs = [term.reshape(-1).view(part).reshape(-1, 2) for term in terms]
    re, im = pairs[0][:, 0], pairs[0][:, 1]
    for pair in pairs[1:]:
        if op == "prod":
            re, im = re * pair[:, 0] - im * pair[:, 1], re * pair[:, 1] + im * pair[:, 0]
        else:
            re, im = re + pair[:, 0], im + pair[:, 1]
    if op == "mean" and divisor:
        re, im = re / part.type(divisor), im / part.type(divisor)
    return np.stack([_quiet(re), _quiet(im)], axis=1).reshape(-1).view(kind).reshape(terms[0].shape)


def _extreme(terms: Sequence[np.ndarray], kind: np.dtype, op: str) -> np.ndarray:
    # Floats order like sign-and-magnitude integers; that also separates -0.0 from +0.0.
    signed = np.dtype(f"i{kind.itemsize}")
    magnitude = np.iinfo(signed).max

    def flip(bits: np.ndarray) -> np.ndarray:
        return np.where(bits < 0, bits ^ magnitude, bits).astype(signed)

    key = _fold([flip(term.view(signed)) for term in terms], op, 0)
    nan = np.any([np.isnan(term) for term in terms], axis=0)
    result = flip(key).view(kind)
    return _quiet(np.where(nan, np.asarray(np.nan, kind), result).astype(kind, copy=False))


def _quiet(values: np.ndarray) -> np.ndarray:
    """Every NaN as the one positive quiet NaN, so that bits do not depend on operand order or machine."""
    if values.dtype.kind in "iu":
        return values
    result = np.array(values)
    quiet = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}
    bits = result.reshape(-1).view(f"u{result.dtype.itemsize}")
    bits[np.isnan(result.reshape(-1).astype(np.float64))] = quiet[result.dtype.name]
    return result
