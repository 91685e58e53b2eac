# SPDX-License-Identifier: Apache-2.0
"""Values of every operation on four local devices against jax.lax and numpy; shapes, axes and dtypes."""

from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from conftest import over
from jax import lax
from jax.sharding import PartitionSpec as P

import jhetcc.ops as jh

N = 4


def on_ranks(f, *args, check_vma=False, n=N):
    """Runs f on n ranks; args and result carry the ranks' dimension first."""

    def body(*local):
        return jax.tree.map(lambda y: y[None], f(*(x[0] for x in local)))

    mapped = jax.shard_map(body, mesh=over(n), in_specs=P("d"), out_specs=P("d"), check_vma=check_vma)
    return jax.tree.map(np.asarray, jax.jit(mapped)(*args))


def iota(*shape, dtype=np.float32, n=N):
    """Contributions that depend on rank and index, one for each rank."""
    size = int(np.prod(shape))
    return np.stack([(1000 * r + np.arange(size)).reshape(shape) for r in range(n)]).astype(dtype)


@pytest.fixture(autouse=True)
def four(world):
    world.add("world", N)
    return world


SAME_AS_LAX = {
    "psum": lambda m, a: lambda x: m.psum(x, a),
    "pmean": lambda m, a: lambda x: m.pmean(x, a),
    "pmax": lambda m, a: lambda x: m.pmax(x, a),
    "pmin": lambda m, a: lambda x: m.pmin(x, a),
    "ppermute": lambda m, a: lambda x: m.ppermute(x, a, [(0, 1), (1, 2), (3, 3)]),
    "pbroadcast": lambda m, a: lambda x: m.psum(jnp.where(m.axis_index(a) == 2, x, jnp.zeros_like(x)), a),
    "all_gather": lambda m, a: lambda x: m.all_gather(x, a),
    "all_gather_axis": lambda m, a: lambda x: m.all_gather(x, a, axis=2),
    "all_gather_tiled": lambda m, a: lambda x: m.all_gather(x, a, axis=1, tiled=True),
    "psum_scatter": lambda m, a: lambda x: m.psum_scatter(x, a, scatter_dimension=1),
    "psum_scatter_tiled": lambda m, a: lambda x: m.psum_scatter(x, a, scatter_dimension=0, tiled=True),
    "all_to_all_tiled": lambda m, a: lambda x: m.all_to_all(x, a, 0, 1, tiled=True),
    "all_to_all": lambda m, a: lambda x: m.all_to_all(x, a, 1, 0),
}


class Lax:
    """jax.lax over a mesh axis; axis_index too."""

    def __getattr__(self, name):
        return getattr(lax, name)


@pytest.mark.parametrize("vma", [False, True])
@pytest.mark.parametrize("name", SAME_AS_LAX)
def test_like_lax(name, vma, monkeypatch):
    """Same shapes, dtypes and values as jax.lax on virtual devices, with and without varying-axes checks."""
    x = iota(8, 4)
    if name == "pbroadcast":
        ours = on_ranks(lambda y: jh.pbroadcast(y, "world", 2), x, check_vma=vma)
    else:
        ours = on_ranks(SAME_AS_LAX[name](jh, "world"), x, check_vma=vma)
    # The oracle runs unchecked: with checks lax makes some results invariant, which the stacking above would have to undo.
    theirs = on_ranks(SAME_AS_LAX[name](Lax(), "d"), x)
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("split", [0, 1, 2, -1])
@pytest.mark.parametrize("concat", [0, 1, 2, -2])
def test_all_to_all_axes(split, concat, tiled):
    """C019: every pair of split and concat axes."""
    shape = [2, 4, 6]
    shape[split] = 8 if tiled else N
    x = iota(*shape)
    ours = on_ranks(lambda y: jh.all_to_all(y, "world", split, concat, tiled=tiled), x)
    theirs = on_ranks(lambda y: lax.all_to_all(y, "d", split % 3, concat % 3, tiled=tiled), x)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_all_gather_axes(axis):
    """Negative axes count from the end of the result."""
    x = iota(2, 3)
    np.testing.assert_array_equal(
        on_ranks(lambda y: jh.all_gather(y, axis=axis), x), on_ranks(lambda y: lax.all_gather(y, "d", axis=axis), x)
    )


def test_rooted():
    """Reduce and gather fill the root only; broadcast and scatter read the root only."""
    x = iota(4, 3)
    got = on_ranks(
        lambda y: (jh.reduce(y, root=2), jh.gather(y, root=1), jh.broadcast(y, root=3), jh.scatter(y, root=1)), x
    )
    reduced, gathered, sent, scattered = got
    np.testing.assert_array_equal(reduced[2], x.sum(0))
    np.testing.assert_array_equal(gathered[1], x)
    assert not reduced[[0, 1, 3]].any() and not gathered[[0, 2, 3]].any()
    np.testing.assert_array_equal(sent, np.stack([x[3]] * N))
    np.testing.assert_array_equal(scattered, x[1])


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min", "prod"])
def test_reduce_ops(op):
    x = iota(3) / 1000 + 1
    out = on_ranks(lambda y: jh.reduce(y, "world", 1, op), x)
    np.testing.assert_allclose(out[1], getattr(np, op)(x, axis=0), rtol=1e-6)


@pytest.mark.parametrize("lengths", [(1, 0, 7, 2), (5, 5, 1, 5), (0, 0, 0, 0)])
def test_lengths(lengths):
    """C014: rows of each rank at the right place; forward and back."""
    rows, begin = max(lengths), np.cumsum([0, *lengths])
    x = iota(rows, 2)
    gathered, at_root = on_ranks(
        lambda y: (jh.all_gather(y, lengths=lengths), jh.gather(y, root=1, lengths=lengths)), x
    )
    want = np.concatenate([x[r, :k] for r, k in enumerate(lengths)])
    for r in range(N):
        np.testing.assert_array_equal(gathered[r], want)
        np.testing.assert_array_equal(at_root[r], want if r == 1 else 0 * want)
    back = on_ranks(lambda y: jh.scatter(y, root=1, lengths=lengths), iota(sum(lengths), 2))
    for r, k in enumerate(lengths):
        np.testing.assert_array_equal(back[r, :k], iota(sum(lengths), 2)[1, begin[r] : begin[r] + k])
        assert not back[r, k:].any()


def test_sizes_and_indices():
    """axis_size is static, psum(1) too (C045); Python numbers other than 1 are contributions."""
    assert jh.axis_size() == N and jh.psum(1) == N and type(jh.psum(1)) is int
    out = on_ranks(lambda y: (jh.psum(2), jh.pmin(1), jh.pmax(2.0), jh.psum(jnp.ones((jh.psum(1),)))), iota(1))
    assert (out[0] == 2 * N).all() and (out[1] == 1).all() and (out[2] == 2.0).all() and (out[3] == N).all()


def test_bool_and_integers():
    """C004, C005: sums of bool are int32, means of bool and integers float, max and min keep bool."""
    b = np.array([[True, False], [True, True], [False, True], [True, True]])
    total, mean, top, low, product = on_ranks(
        lambda y: (jh.psum(y), jh.pmean(y), jh.pmax(y), jh.pmin(y), jh.pprod(y)), b
    )
    assert total.dtype == np.int32 and total[0].tolist() == [3, 3]
    assert mean.dtype == np.float32 and mean[0].tolist() == [0.75, 0.75]
    assert top.dtype == bool and top[0].tolist() == [True, True] and low[0].tolist() == [False, False]
    assert product.dtype == np.int32 and product[0].tolist() == [0, 0]
    k = iota(5, dtype=np.int32)
    mean = on_ranks(jh.pmean, k)
    np.testing.assert_array_equal(mean, on_ranks(lambda y: lax.pmean(y, "d"), k))


FLOATS = ["float16", "bfloat16", "float32"]
SMALL = [
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e4m3b11fnuz",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32"]
SUB_BYTE = ["int4", "uint4", "int2", "uint2"]


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def small_values(name):
    kind = dtype_of(name)
    low = 1 if name == "float8_e8m0fnu" else 0
    values = np.array([[1, 2, 1], [1, 1, low], [1, 1, 1], [1, low, 1]])
    return (np.clip(values, None, 1) if "2" in name.removeprefix("u")[3:4] else values).astype(kind)


@pytest.mark.parametrize("name", FLOATS + SMALL + INTEGERS + SUB_BYTE)
def test_dtypes(name):
    """C020, C021: every dtype moves bit for bit; reductions keep the dtype and wrap, or round once."""
    x = small_values(name)
    moved = on_ranks(lambda y: (jh.all_gather(y), jh.ppermute(y, perm=[(0, 1), (1, 0)]), jh.broadcast(y, root=1)), x)
    assert all(m.dtype == x.dtype for m in moved)
    np.testing.assert_array_equal(moved[0][3].astype(np.float32), x.astype(np.float32))
    np.testing.assert_array_equal(moved[1][0].astype(np.float32), x[1].astype(np.float32))
    np.testing.assert_array_equal(moved[2][2].astype(np.float32), x[1].astype(np.float32))
    split = np.stack([x[:, :1]] * N, axis=1)
    exchanged = on_ranks(lambda y: jh.all_to_all(y, "world", 0, 0), split)
    np.testing.assert_array_equal(exchanged[2].astype(np.float32), x[:, :1].astype(np.float32))
    total, top, low = on_ranks(lambda y: (jh.psum(y), jh.pmax(y), jh.pmin(y)), x)
    assert total.dtype == top.dtype == low.dtype == x.dtype
    wide = x.astype(np.float32)
    want = np.asarray(jnp.asarray(wide.sum(0)).astype(jnp.int32 if "int" in name else jnp.float32).astype(x.dtype))
    np.testing.assert_array_equal(total[0].astype(np.float32), want.astype(np.float32))
    np.testing.assert_array_equal(top[0].astype(np.float32), wide.max(0))
    np.testing.assert_array_equal(low[0].astype(np.float32), wide.min(0))


def test_wire_forms(four):
    """What the wire sees: 8-bit floats move as bytes and reduce in float32; sub-byte integers are widened."""
    on_ranks(lambda y: (jh.all_gather(y), jh.psum(y)), small_values("float8_e5m2"))
    on_ranks(lambda y: (jh.all_gather(y), jh.psum(y)), small_values("uint4"))
    assert four.texts == ["all_gather(b8[3])", "psum(f32[3])", "all_gather(u8[3])", "psum(u8[3])"]


def test_complex():
    """C002: complex sums and means; an order of complex numbers is refused while tracing."""
    z = iota(3).astype(np.complex64) * (1 + 2j)
    total, mean = on_ranks(lambda y: (jh.psum(y), jh.pmean(y)), z)
    np.testing.assert_array_equal(total[1], z.sum(0))
    assert mean.dtype == np.complex64
    for f in (jh.pmax, jh.pmin, partial(jh.reduce, op="max")):
        with pytest.raises(TypeError, match=r"complex64.*no order"):
            jax.eval_shape(f, z[0])


@pytest.mark.parametrize("x64", [False, True])
def test_wide(x64):
    """64-bit types exist where x64 is on, and are never silently asked for where it is off."""
    with jax.enable_x64(x64):
        x = np.arange(3, dtype=np.float64)
        aval = jax.eval_shape(jh.psum, jnp.asarray(x))
        assert aval.dtype == (np.float64 if x64 else np.float32)
        total = on_ranks(jh.psum, np.stack([jnp.asarray(x)] * N))
        assert total.dtype == aval.dtype
        mean = jax.eval_shape(jh.pmean, jnp.arange(3))
        assert mean.dtype == aval.dtype


@pytest.mark.parametrize("shape", [(0,), (4, 0, 2), ()])
def test_empty_and_scalar(shape):
    """C010: zero-size and rank-0 arrays through everything, and their gradients."""
    x = iota(*shape)
    outs = on_ranks(
        lambda y: (
            jh.psum(y),
            jh.all_gather(y),
            jh.ppermute(y, perm=[(0, 1)]),
            jh.broadcast(y),
            jh.reduce(y),
            jh.gather(y),
        ),
        x,
    )
    assert [o.shape[1:] for o in outs] == [shape, (N, *shape), shape, shape, shape, (N, *shape)]
    if len(shape) == 3:
        outs = on_ranks(lambda y: (jh.psum_scatter(y), jh.all_to_all(y, "world", 0, 0), jh.scatter(y)), x)
        assert [o.shape[1:] for o in outs] == [(0, 2), (4, 0, 2), (0, 2)]
    grads = on_ranks(jax.grad(lambda y: jh.psum(y).sum() + jh.all_gather(y).sum()), x)
    assert grads.shape == x.shape


def test_random_keys():
    """Keys move, and are not reduced."""
    keys = jax.random.split(jax.random.key(0), N)
    body = jax.shard_map(
        lambda k: jh.broadcast(k, root=2), mesh=over(N), in_specs=P("d"), out_specs=P("d"), check_vma=False
    )
    out = jax.jit(body)(keys)
    assert (jax.random.key_data(out) == jax.random.key_data(keys)[2]).all()
    with pytest.raises(TypeError, match="random keys"):
        jax.eval_shape(jh.psum, keys[0])


def test_logical_layouts():
    """C008: strided, reversed and broadcast views are their logical values."""
    base = iota(4, 6)
    for view in (
        base[:, :, 0],
        base[:, ::2],
        base[:, ::-1],
        base.transpose(0, 2, 1),
        np.broadcast_to(base[:, :1], base.shape),
    ):
        np.testing.assert_array_equal(on_ranks(lambda y: jh.broadcast(y, root=1), view)[3], view[1])
        np.testing.assert_array_equal(on_ranks(jh.psum, view)[3], view.sum(0))


def test_ragged():
    """Slices of run-time length land where the receiver's offsets say; the rest of the output is kept."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 3, (N, N))  # sizes[i, j]: rows from i to j
    starts = np.concatenate([np.zeros((N, 1), int), np.cumsum(sizes, 1)[:, :-1]], 1)
    targets = np.concatenate([np.zeros((1, N), int), np.cumsum(sizes, 0)[:-1]], 0)
    x, out = iota(8, 2), np.full((N, 9, 2), -1, np.float32)
    got = on_ranks(
        lambda *a: jh.ragged_all_to_all(*a), x, out, starts.astype(np.int32), sizes.astype(np.int32),
        targets.astype(np.int32), sizes.T.astype(np.int32),
    )  # fmt: skip
    for j in range(N):
        want = np.concatenate([x[i, starts[i, j] : starts[i, j] + sizes[i, j]] for i in range(N)])
        np.testing.assert_array_equal(got[j, : len(want)], want)
        assert (got[j, len(want) :] == -1).all()


def test_one_rank(world):
    """C011, C012: a world of one rank is not special."""
    world.add("world", 1)
    x = jnp.arange(10.0)
    assert jh.all_gather(x).shape == (1, 10) and jh.all_gather(x, tiled=True).shape == (10,)
    np.testing.assert_array_equal(jh.psum(x), x)
    np.testing.assert_array_equal(jax.jit(jh.pmean)(x), x)
    np.testing.assert_array_equal(jax.grad(lambda y: jh.psum(y * y).sum())(x), 2 * x)
    np.testing.assert_array_equal(jh.sendrecv(np.arange(3), 0, 0), np.arange(3))
    assert jh.psum(np.float32(3)) == 3 and jh.psum([1.5, {"a": None}])[0] == 1.5
