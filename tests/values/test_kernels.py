# SPDX-License-Identifier: Apache-2.0
"""The core's reductions against the value table, through the built module."""

import pathlib

import numpy as np
import oracle
import pytest

from jhetcc import _core

PAIRS = [(dtype, op) for dtype in oracle.DTYPES for op in oracle.OPS]
REAL_PAIRS = [pair for pair in PAIRS if oracle.exists(*pair)]


def present_simds():
    names = ["base"]
    for name in ("avx2", "avx512"):
        try:
            _core.set_simd(name)
        except ValueError:
            continue
        names.append(name)
    _core.set_simd("auto")
    return names


@pytest.fixture(params=present_simds())
def simd(request):
    _core.set_simd(request.param)
    assert _core.simd_name() == request.param
    yield request.param
    _core.set_simd("auto")


def core_reduce(dtype, op, sources, divisor=0, target=None):
    number, kind = oracle.DTYPES[dtype]
    if target is None:
        target = np.full(sources[0].nbytes, 0xA5, np.uint8)
    _core.reduce(target, [s.view(np.uint8) for s in sources], number, oracle.OPS[op], divisor)
    return target.view(kind)


def draw(dtype, items, rng):
    """Noise of all bit patterns (NaN payloads and denormals among them), with the special values strewn in."""
    kind = np.dtype(oracle.DTYPES[dtype][1])
    if dtype == "bool":
        return rng.integers(0, 2, items).astype(np.bool_)
    noise = rng.integers(0, 256, items * kind.itemsize, np.uint8).view(kind)
    if dtype not in oracle.FLOATS and dtype not in oracle.COMPLEX:
        return noise
    parts = noise.view({"c64": np.float32, "c128": np.float64}.get(dtype, kind))
    count = parts.size
    specials = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-40, 2.0**-24, 65504.0], np.float64)
    near = rng.integers(-2048, 2048, count) / 256
    with np.errstate(all="ignore"):
        chosen = np.where(rng.random(count) < 0.2, rng.choice(specials, count), near).astype(parts.dtype)
    parts[:] = np.where(rng.random(count) < 0.2, parts, chosen)
    return noise


def assert_same_bits(got, want):
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


@pytest.mark.parametrize(("dtype", "op"), REAL_PAIRS)
def test_pair_equals_oracle(simd, dtype, op):
    rng = np.random.default_rng(1)
    for items in (0, 1, 2, 3, 15, 16, 17, 100, 1023, 5000):
        for count in (1, 2, 3, 5):
            sources = [draw(dtype, items, rng) for _ in range(count)]
            for divisor in (0, count, 3) if op == "mean" else (0,):
                want = oracle.reduce(dtype, op, sources, divisor)
                assert_same_bits(core_reduce(dtype, op, sources, divisor), want)


@pytest.mark.parametrize("dtype", oracle.FLOATS)
@pytest.mark.parametrize("op", ["max", "min"])
def test_nan_wins_in_every_placement(simd, dtype, op):
    kind = oracle.DTYPES[dtype][1]
    for who in range(4):
        sources = [np.array([v], kind) for v in (1.0, np.inf, -np.inf, 4.0)]
        sources[who][:] = np.nan
        assert np.isnan(core_reduce(dtype, op, sources)[0])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_negative_zero_and_denormals_are_kept(simd, dtype):
    kind = oracle.DTYPES[dtype][1]
    tiny = np.finfo(kind).smallest_subnormal
    zeros = [np.full(33, -0.0, kind)] * 3
    assert np.signbit(core_reduce(dtype, "sum", zeros)).all()
    assert (core_reduce(dtype, "sum", [np.full(33, tiny, kind)] * 3) == 3 * tiny).all()
    both = [np.full(33, -0.0, kind), np.full(33, 0.0, kind)]
    assert not np.signbit(core_reduce(dtype, "max", both)).any()
    assert np.signbit(core_reduce(dtype, "min", both)).all()


def test_bfloat16_rounds_once(simd):
    kind = oracle.DTYPES["bf16"][1]
    sources = [np.array([256.0], kind)] + [np.array([0.5], kind)] * 7
    assert core_reduce("bf16", "sum", sources)[0] == 260.0


def test_integers_wrap(simd):
    sources = [np.array([127, -128], np.int8), np.array([1, -1], np.int8)]
    assert core_reduce("i8", "sum", sources).tolist() == [-128, 127]
    assert core_reduce("u16", "prod", [np.array([65535], np.uint16)] * 2).tolist() == [1]


def test_target_may_be_a_source(simd):
    rng = np.random.default_rng(3)
    for which in range(3):
        sources = [draw("f32", 50_001, rng) for _ in range(3)]
        want = oracle.reduce("f32", "sum", sources)
        target = sources[which].view(np.uint8)
        assert_same_bits(core_reduce("f32", "sum", sources, target=target), want)


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
def test_documented_table_is_the_core(dtype, op):
    page = pathlib.Path(__file__).parents[2] / "docs" / "values.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if line.startswith("|")]
    header = rows[0]
    row = next(row for row in rows if row[0] == dtype)
    refused = row[header.index(op)] == "refused"
    assert refused != oracle.exists(dtype, op)
    source = np.zeros(2, oracle.DTYPES[dtype][1])
    if refused:
        with pytest.raises(ValueError, match="does not exist"):
            core_reduce(dtype, op, [source])
    else:
        assert_same_bits(core_reduce(dtype, op, [source]), source)


def test_misuse_is_refused():
    one = np.zeros(8, np.uint8)
    with pytest.raises(ValueError, match="no dtype"):
        _core.reduce(one, [one], 16, 1)
    with pytest.raises(ValueError, match="no operation"):
        _core.reduce(one, [one], 12, 6)
    with pytest.raises(ValueError, match="at least one source"):
        _core.reduce(one, [], 12, 1)
    with pytest.raises(ValueError, match="whole number"):
        _core.reduce(one[:7], [one[:7]], 12, 1)
    with pytest.raises(ValueError, match="source 1 has 4 bytes"):
        _core.reduce(one, [one, one[:4]], 12, 1)
    with pytest.raises(ValueError, match="divisor"):
        _core.reduce(one, [one], 12, 1, 2)
    with pytest.raises(ValueError, match="avx1024"):
        _core.set_simd("avx1024")
    read_only = one.copy()
    read_only.flags.writeable = False
    with pytest.raises(TypeError):
        _core.reduce(read_only, [one], 12, 1)
    _core.reduce(one, [read_only], 12, 1)
