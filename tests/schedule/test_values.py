# SPDX-License-Identifier: Apache-2.0
"""The oracle of reductions, against plain Python and by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jhetcc.schedule import can_reduce, numpy_dtype, reduce_terms

INTEGERS = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]


def array(dtype, *values):
    return np.array(values, np.float64 if dtype != "c64" else np.complex128).astype(numpy_dtype(dtype))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sampled_from(INTEGERS), st.sampled_from(["sum", "prod", "max", "min"]), st.data())
def test_integers_wrap(dtype, op, data):
    kind = numpy_dtype(dtype)
    info = np.iinfo(kind)
    values = data.draw(st.lists(st.integers(int(info.min), int(info.max)), min_size=1, max_size=5))
    exact = {"sum": sum, "prod": math.prod, "max": max, "min": min}[op](values)
    bits = 8 * kind.itemsize
    wrapped = exact % (1 << bits)
    wrapped -= (1 << bits) if info.min < 0 and wrapped >= 1 << (bits - 1) else 0
    got = reduce_terms([np.array([value], kind) for value in values], dtype, op)
    assert got.dtype == kind and got.tolist() == [wrapped]


def test_bool():
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for op, expected in (("sum", a | b), ("max", a | b), ("prod", a & b), ("min", a & b)):
        assert reduce_terms([a, b], "bool", op).tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_extremes_propagate_nan_and_order_zeros(dtype):
    nan, inf = math.nan, math.inf
    a = array(dtype, -0.0, 0.0, nan, 1, -inf, -1, 3)
    b = array(dtype, 0.0, -0.0, 1, -nan, inf, -2, 2)
    high, low = reduce_terms([a, b], dtype, "max"), reduce_terms([a, b], dtype, "min")
    assert np.signbit(high.astype(np.float64))[:2].tolist() == [False, False]
    assert np.signbit(low.astype(np.float64))[:2].tolist() == [True, True]
    assert np.isnan(high.astype(np.float64)).tolist() == [False, False, True, True, False, False, False]
    assert high[4:].astype(np.float64).tolist() == [inf, -1, 3]
    assert low[4:].astype(np.float64).tolist() == [-inf, -2, 2]


@pytest.mark.parametrize(
    ("dtype", "bits"), [("f16", 0x7E00), ("bf16", 0x7FC0), ("f32", 0x7FC00000), ("f64", 0x7FF8 << 48)]
)
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "mean"])
def test_there_is_one_nan(dtype, bits, op):
    kind = numpy_dtype(dtype)
    unsigned = f"u{kind.itemsize}"
    sign = 1 << (8 * kind.itemsize - 1)
    odd = np.array([bits | sign | 5], unsigned).view(kind)
    got = reduce_terms([array(dtype, 1), odd, array(dtype, 2)], dtype, op, 3 if op == "mean" else 0)
    assert got.view(unsigned).tolist() == [bits]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_halves_round_once(dtype):
    kind = numpy_dtype(dtype)
    # Each small term alone would be lost in rounding; together they are not.
    one = float(2048 if dtype == "f16" else 256)
    terms = [array(dtype, one), array(dtype, 1.0), array(dtype, 1.0)]
    assert reduce_terms(terms, dtype, "sum").astype(np.float64).tolist() == [one + 2]
    stepwise = (terms[0] + terms[1]).astype(kind) + terms[2]
    assert stepwise.astype(np.float64).tolist() == [one]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=2))
def test_f32_sums_of_two_are_rounded_exactly(values):
    got = reduce_terms([np.array([value], np.float32) for value in values], "f32", "sum")
    exact = sum(Fraction(value) for value in values)
    # Rounding to f64 first does no harm: it has more than twice the bits of f32.
    if abs(exact) < 3e38:
        assert got[0] == np.float32(float(exact))


def test_order_and_division():
    terms = [np.float32([1e8]), np.float32([1]), np.float32([-1e8])]
    assert reduce_terms(terms, "f32", "sum").tolist() == [0.0]
    assert reduce_terms([terms[0], terms[2], terms[1]], "f32", "sum").tolist() == [1.0]
    mean = reduce_terms([np.float32([1]), np.float32([0]), np.float32([0])], "f32", "mean", 3)
    assert mean.tolist() == [float(np.float32(1) / np.float32(3))]
    assert reduce_terms([np.float32([1]), np.float32([2])], "f32", "mean").tolist() == [3.0]  # not complete yet


def test_denormals_and_signed_zeros_are_kept():
    tiny = np.float32([1e-45, -0.0])
    assert reduce_terms([tiny, np.float32([0, -0.0])], "f32", "sum").view(np.uint32).tolist() == [1, 0x80000000]


def test_complex():
    a, b = np.complex64([1 + 2j, np.inf]), np.complex64([3 - 1j, 1 + 1j])
    assert reduce_terms([a, b], "c64", "prod")[0] == 5 + 5j
    assert reduce_terms([a, b], "c64", "sum")[0] == 4 + 1j
    assert reduce_terms([a, b], "c64", "mean", 2)[0] == 2 + 0.5j


def test_one_term_and_no_elements():
    assert reduce_terms([np.float16([1.5])], "f16", "sum").tolist() == [1.5]
    for dtype in ("bool", "i8", "bf16", "f32", "c128"):
        empty = np.empty(0, numpy_dtype(dtype))
        assert reduce_terms([empty, empty], dtype, "sum").shape == (0,)


@pytest.mark.parametrize(
    ("dtype", "op"), [("c64", "max"), ("i32", "mean"), ("bool", "mean"), ("b8", "sum"), ("f32", "none")]
)
def test_what_does_not_exist_is_refused(dtype, op):
    assert not can_reduce(dtype, op)
    with pytest.raises(ValueError, match="does not exist"):
        reduce_terms([np.zeros(1, np.uint8)], dtype, op)
