# SPDX-License-Identifier: Apache-2.0
"""The value table of docs/values.md in numpy and ml_dtypes: no code in common with the core. Pure."""

import functools

import ml_dtypes
import numpy as np

DTYPES = {
    "bool": (1, np.bool_),
    "i8": (2, np.int8),
    "i16": (3, np.int16),
    "i32": (4, np.int32),
    "i64": (5, np.int64),
    "u8": (6, np.uint8),
    "u16": (7, np.uint16),
    "u32": (8, np.uint32),
    "u64": (9, np.uint64),
    "f16": (10, np.float16),
    "bf16": (11, ml_dtypes.bfloat16),
    "f32": (12, np.float32),
    "f64": (13, np.float64),
    "c64": (14, np.complex64),
    "c128": (15, np.complex128),
}
"""name -> (number in the schedule's binary form, numpy type)"""

OPS = {"sum": 1, "prod": 2, "max": 3, "min": 4, "mean": 5}
"""name -> number in the schedule's binary form"""

FLOATS = ("f16", "bf16", "f32", "f64")
COMPLEX = ("c64", "c128")

_CANONICAL_NAN = {"f16": 0x7E00, "bf16": 0x7FC0, "f32": 0x7FC00000, "f64": 0x7FF8000000000000}


def exists(dtype, op):
    """Whether the table has a value for the pair."""
    if op == "mean":
        return dtype in FLOATS or dtype in COMPLEX
    return not (dtype in COMPLEX and op in ("max", "min"))


def reduce(dtype, op, sources, divisor=0):
    """The table's value for arrays of one shape, bit for bit.

    Args:
        dtype: name in DTYPES; the arrays' own type.
        op: name in OPS.
        sources: arrays of that type, any shape, reduced left to right.
        divisor: for a complete mean, the number of contributors; 0 leaves the sum.

    Returns:
        An array of the same type and shape.
    """
    with np.errstate(all="ignore"):
        if dtype == "bool":
            return functools.reduce(np.logical_or if op in ("sum", "max") else np.logical_and, sources)
        if dtype in COMPLEX:
            return _complex(dtype, op, sources, divisor)
        if dtype in FLOATS:
            return _float(dtype, op, sources, divisor)
        ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op]
        return functools.reduce(ufunc, sources)


def _float(dtype, op, sources, divisor):
    kind = DTYPES[dtype][1]
    wide = np.float64 if dtype == "f64" else np.float32
    result = functools.reduce(_FLOAT_OPS[op], [source.astype(wide) for source in sources])
    if divisor:
        result = result / wide(divisor)
    narrow = result.astype(kind)
    bits = narrow.view(f"u{narrow.itemsize}")
    return np.where(np.isnan(result), bits.dtype.type(_CANONICAL_NAN[dtype]), bits).view(kind)


def _ordered(larger):
    def pick(a, b):
        """The larger (smaller) one; -0.0 before +0.0; NaN if either is."""
        a_wins = np.where(a == b, np.signbit(a) != larger, (a > b) == larger)
        return np.where(np.isnan(a) | np.isnan(b), a + b, np.where(a_wins, a, b))

    return pick


_FLOAT_OPS = {"sum": np.add, "mean": np.add, "prod": np.multiply, "max": _ordered(True), "min": _ordered(False)}


def _complex(dtype, op, sources, divisor):
    part = {"c64": "f32", "c128": "f64"}[dtype]
    if op != "prod":
        flat = [source.view(DTYPES[part][1]) for source in sources]
        return _float(part, op, flat, divisor).view(DTYPES[dtype][1])
    re, im = sources[0].real, sources[0].imag
    for source in sources[1:]:
        c, d = source.real, source.imag
        re, im = re * c - im * d, re * d + im * c
    result = np.empty_like(sources[0])
    result.real, result.imag = _float(part, "sum", [re], 0), _float(part, "sum", [im], 0)
    return result
