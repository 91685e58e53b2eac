# SPDX-License-Identifier: Apache-2.0
"""Cases: values of every operation and dtype, against numpy, on any grouping of ranks."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from per_rank import eagerly, everyone, here, iota, only, per_rank, same_everywhere

import jhetcc.ops as jh

EQUAL = np.testing.assert_array_equal


def case_psum_family(comm):
    x = iota(comm, 7, 3) / 100 + 1
    total, mean, top, low = per_rank(comm, lambda y: (jh.psum(y), jh.pmean(y), jh.pmax(y), jh.pmin(y)), x)
    np.testing.assert_allclose(total, everyone(comm, x.sum(0)), rtol=1e-6)
    np.testing.assert_allclose(mean, everyone(comm, x.mean(0)), rtol=1e-6)
    EQUAL(top, everyone(comm, x.max(0)))
    EQUAL(low, everyone(comm, x.min(0)))
    same_everywhere(comm, total)
    small = iota(comm, 4, dtype=np.int64) % 7 + 1
    EQUAL(per_rank(comm, jh.pprod, small.astype(np.int32)), everyone(comm, small.prod(0).astype(np.int32)))


def case_gathers(comm):
    """C012: shapes and values of gathers, stacked and tiled, along every axis."""
    x = iota(comm, 4, 3)
    for axis in range(3):
        got = per_rank(comm, lambda y, axis=axis: jh.all_gather(y, axis=axis), x)
        EQUAL(got, everyone(comm, np.moveaxis(x, 0, axis)))
    for axis in range(2):
        got = per_rank(comm, lambda y, axis=axis: jh.all_gather(y, axis=axis, tiled=True), x)
        EQUAL(got, everyone(comm, np.concatenate(list(x), axis=axis)))
    wide = iota(comm, comm.size * 2, 3)
    EQUAL(
        per_rank(comm, lambda y: jh.psum_scatter(y, tiled=True), wide),
        here(comm, np.stack(np.split(wide.sum(0), comm.size))),
    )
    square = iota(comm, comm.size, 5)
    EQUAL(per_rank(comm, jh.psum_scatter, square), here(comm, square.sum(0)))


def case_rooted(comm):
    """Reduce, gather, broadcast and scatter from every root; non-roots get zeros."""
    x = iota(comm, comm.size, 3)
    mine = np.array(comm.local_ranks)
    for root in range(comm.size):
        reduced, gathered, sent, scattered = per_rank(
            comm,
            lambda y, root=root: (
                jh.reduce(y, root=root),
                jh.gather(y, root=root),
                jh.broadcast(y, root=root),
                jh.scatter(y, root=root),
            ),
            x,
        )
        at_root = (mine == root)[:, None, None]
        EQUAL(reduced, np.where(at_root, x.sum(0), 0))
        EQUAL(gathered, np.where(at_root[..., None], x, 0))
        EQUAL(sent, everyone(comm, x[root]))
        EQUAL(scattered, x[root][mine])


def case_all_to_all(comm):
    """C019: every pair of split and concat axes, stacked and tiled."""
    for split, concat, tiled in itertools.product(range(3), range(3), (False, True)):
        shape = [2, 3, 4]
        shape[split] = comm.size * (2 if tiled else 1)
        x = iota(comm, *shape)
        got = per_rank(comm, lambda y, s=split, c=concat, t=tiled: jh.all_to_all(y, "world", s, c, tiled=t), x)
        pieces = [np.split(one, comm.size, axis=split) for one in x]
        for k, rank in enumerate(comm.local_ranks):
            arrived = [pieces[source][rank] for source in range(comm.size)]
            want = (
                np.concatenate(arrived, axis=concat)
                if tiled
                else np.stack([a.squeeze(split) for a in arrived], axis=concat)
            )
            EQUAL(got[k], want)


def case_permutations(comm):
    """C003, C037, C084: one-shot forms, open chains, self pairs, permutations in which some ranks take no part."""
    n, x = comm.size, iota(comm, 5)

    def want(pairs):
        out = np.zeros_like(x)
        for a, b in pairs:
            out[b] = x[a]
        return here(comm, out)

    ring = [(r, (r + 1) % n) for r in range(n)]
    for pairs in (ring, ring[:-1], [(r, r) for r in range(n)], [(0, n - 1)], []):
        EQUAL(per_rank(comm, lambda y, p=pairs: jh.ppermute(y, "world", iter(p)), x), want(pairs))
        EQUAL(per_rank(comm, lambda y, p=pairs: jh.ppermute(y, "world", np.array(p).reshape(-1, 2)), x), want(pairs))
    apart = [[(a, b)] for a, b in ((0, n - 1), (n - 1, 0), (n // 2, 0)) if a < n and b < n]
    got = per_rank(comm, lambda y: [jh.ppermute(y, "world", p) for p in apart], x)
    for one, pairs in zip(got, apart, strict=True):
        EQUAL(one, want(pairs))


def case_lengths(comm):
    """C014: gathers and scatters of different lengths, zero among them."""
    for lengths in ([1, 0, 7, 2, 3, 0, 1, 4][: comm.size], [5, 5, 1, 5, 1, 1, 5, 5][: comm.size]):
        rows, begin = max(lengths), np.cumsum([0, *lengths])
        x = iota(comm, rows, 2)
        joined = np.concatenate([x[r, :k] for r, k in enumerate(lengths)])
        gathered, at_root = per_rank(
            comm, lambda y, k=tuple(lengths): (jh.all_gather(y, lengths=k), jh.gather(y, lengths=k)), x
        )
        EQUAL(gathered, everyone(comm, joined))
        EQUAL(at_root, np.stack([joined * (r == 0) for r in comm.local_ranks]))
        source = iota(comm, sum(lengths), 2)
        parts = per_rank(comm, lambda y, k=tuple(lengths): jh.scatter(y, lengths=k), source)
        for part, rank in zip(parts, comm.local_ranks, strict=True):
            EQUAL(part[: lengths[rank]], source[0, begin[rank] : begin[rank + 1]])
            assert not part[lengths[rank] :].any()


REDUCE = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32", "complex64", "bool"]
MOVE = ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn", "int4", "uint4", "int2", "uint2"]


def _dtype(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def case_dtypes_reduce(comm):
    """C002, C004, C006, C021: every dtype; integers wrap, bool counts, complex adds, half precision rounds once."""
    for name in REDUCE:
        kind = _dtype(name)
        x = iota(comm, 6) % 9
        x = x.astype(kind) if name != "complex64" else (x * (1 + 2j)).astype(kind)
        total, mean = per_rank(comm, lambda y: (jh.psum(y), jh.pmean(y)), x)
        want = x.astype(np.int32) if name == "bool" else x.astype(np.complex128 if name == "complex64" else np.float64)
        assert total.dtype == (np.int32 if name == "bool" else kind), name
        EQUAL(total, everyone(comm, want.sum(0).astype(total.dtype)))
        np.testing.assert_allclose(
            mean.astype(np.complex128),
            everyone(comm, (want.sum(0) / comm.size).astype(mean.dtype)).astype(np.complex128),
            rtol=1e-6,
        )
        if name != "complex64":
            top, low = per_rank(comm, lambda y: (jh.pmax(y), jh.pmin(y)), x)
            assert top.dtype == kind
            EQUAL(top, everyone(comm, x.max(0)))
            EQUAL(low, everyone(comm, x.min(0)))
    if comm.size == 2:
        for kind, a, b, want in (
            (np.int8, 120, 100, -36),
            (np.uint8, 200, 100, 44),
            (np.int32, 2**31 - 1, 1, -(2**31)),
        ):
            x = np.array([[a], [b]], kind)
            assert (per_rank(comm, jh.psum, x) == want).all()


def case_dtypes_move(comm):
    """C020: small and sub-byte types move bit for bit, and reduce right where they do."""
    for name in [*MOVE, "bfloat16", "bool", "float32", "complex64"]:
        kind = _dtype(name)
        x = (iota(comm, comm.size, 3) % 2 + (1 if name == "float8_e8m0fnu" else 0)).astype(np.float32).astype(kind)
        gathered, sent, exchanged = per_rank(
            comm,
            lambda y: (jh.all_gather(y), jh.broadcast(y, root=comm.size - 1), jh.all_to_all(y, "world", 0, 0)),
            x,
        )
        wide = x.astype(np.complex64)
        assert gathered.dtype == sent.dtype == exchanged.dtype == kind, name
        EQUAL(gathered.astype(np.complex64), everyone(comm, wide))
        EQUAL(sent.astype(np.complex64), everyone(comm, wide[-1]))
        EQUAL(exchanged.astype(np.complex64), here(comm, wide.swapaxes(0, 1)))


def case_wide_dtypes(comm):
    """C002, C129: 64-bit types with x64 on."""
    with jax.enable_x64(True):
        for kind in (np.float64, np.int64, np.uint64, np.complex128):
            x = (iota(comm, 5, dtype=np.float64) * 1e9).astype(kind)
            total, gathered = per_rank(comm, lambda y: (jh.psum(y), jh.all_gather(y)), x)
            assert total.dtype == kind
            EQUAL(total, everyone(comm, x.sum(0)))
            EQUAL(gathered, everyone(comm, x))


@only(lambda comm: comm.size <= 4, "all placements of four values")
def case_nan_and_infinities(comm):
    """C007: NaN on every rank in every placement; infinities and signed zeros as documented."""
    values = np.float32([1, np.nan, 3, 4])
    places = list(itertools.permutations(range(4)))
    x = np.stack([[values[p[rank]] for p in places] for rank in range(comm.size)]).astype(np.float32)
    top, low = per_rank(comm, lambda y: (jh.pmax(y), jh.pmin(y)), x)
    EQUAL(top, everyone(comm, np.max(x, 0)))
    EQUAL(low, everyone(comm, np.min(x, 0)))
    zeros = np.float32([[-0.0, np.inf, -np.inf]] + [[0.0, 1, 1]] * (comm.size - 1))
    top, low = per_rank(comm, lambda y: (jh.pmax(y), jh.pmin(y)), zeros)
    assert (np.signbit(low[:, 0])).all() and (top[:, 1] == np.inf).all() and (low[:, 2] == -np.inf).all()
    if comm.size > 1:
        assert not np.signbit(top[:, 0]).any()
    same_everywhere(comm, top)


def case_empty_and_scalar(comm):
    """C010: nothing to send, and rank 0; the next operation still matches."""
    for shape in ((0,), (comm.size, 0, 2), ()):
        x = iota(comm, *shape)
        outs = per_rank(
            comm,
            lambda y: (jh.psum(y), jh.all_gather(y), jh.ppermute(y, "world", [(0, 0)]), jh.broadcast(y)),
            x,
        )
        assert outs[0].shape[1:] == shape and outs[1].shape[1:] == (comm.size, *shape)
        grads = per_rank(comm, jax.grad(lambda y: jh.psum(y).sum() + jh.all_gather(y).sum()), x)
        EQUAL(grads, here(comm, np.full_like(x, 2 * comm.size)))
    x = iota(comm, comm.size, 0, 2)
    outs = per_rank(comm, lambda y: (jh.psum_scatter(y), jh.all_to_all(y, "world", 0, 0), jh.scatter(y)), x)
    assert [o.shape[1:] for o in outs] == [(0, 2), (comm.size, 0, 2), (0, 2)]
    EQUAL(per_rank(comm, jh.psum, iota(comm, 2)), everyone(comm, iota(comm, 2).sum(0)))


def case_few_elements(comm):
    """C015: fewer elements than ranks, and numbers that do not divide."""
    for count in (1, 2, 3, 5, 7):
        x = iota(comm, count)
        EQUAL(per_rank(comm, jh.psum, x), everyone(comm, x.sum(0)))
    for rows in (comm.size, 2 * comm.size):
        x = iota(comm, rows)
        EQUAL(per_rank(comm, lambda y: jh.psum_scatter(y, tiled=True), x), here(comm, x.sum(0).reshape(comm.size, -1)))


def case_strided(comm):
    """C008: views are their logical values, in eager calls (one rank a process) and compiled."""
    base = iota(comm, 4, 6)
    views = (
        base[:, :, 0],
        base[:, ::2],
        base[:, ::-1],
        base.transpose(0, 2, 1),
        np.broadcast_to(base[:, :1], base.shape),
    )
    for view in views:
        for way in (jax.jit, eagerly(comm)):
            got = per_rank(comm, lambda y: (jh.broadcast(y), jh.psum(y)), view, compile_with=way)
            EQUAL(got[0], everyone(comm, view[0]))
            EQUAL(got[1], everyone(comm, view.sum(0)))


def case_slices(comm):
    """C009: each rank slices another part of one array; the gather holds them all, none twice."""
    whole = np.arange(comm.size * 16 * 16, dtype=np.float32).reshape(comm.size, 16, 16)

    def f(_):
        mine = jax.lax.dynamic_index_in_dim(jnp.asarray(whole), jh.axis_index(), keepdims=False)
        return jh.all_gather(mine)

    EQUAL(per_rank(comm, f, iota(comm, 1)), everyone(comm, whole))


def case_sizes_around_protocols(comm):
    """C016: every count near powers of two, where messages change their way."""
    for power in (3, 8, 12, 14, 16):
        for count in range((1 << power) - 2, (1 << power) + 3):
            x = iota(comm, count, dtype=np.int32)
            EQUAL(per_rank(comm, jh.psum, x), everyone(comm, x.sum(0).astype(np.int32)))


def case_large(comm):
    """C001, C057: megabytes, changed every time, exact, inputs intact."""
    count = comm.size * ((1 << 19) // comm.size)
    for k in range(4):
        x = (iota(comm, count, dtype=np.int32) * (k + 1)).astype(np.float64).astype(np.float32)
        kept = x.copy()
        scattered, total = per_rank(
            comm, lambda y: (jh.psum_scatter(y.astype(jnp.int32), tiled=True), jh.psum(y.astype(jnp.int32))), x
        )
        want = x.astype(np.int32).sum(0)
        EQUAL(total, everyone(comm, want))
        EQUAL(scattered, here(comm, want.reshape(comm.size, -1)))
        EQUAL(x, kept)


def case_donation(comm):
    """C022: donated and kept inputs give the same; what is kept stays intact, also when it is used again."""
    x = iota(comm, 1000)
    total = everyone(comm, x.sum(0))

    def donating(f):
        return jax.jit(f, donate_argnums=0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that a donated buffer is of no use is a warning
        EQUAL(per_rank(comm, jh.psum, x, compile_with=donating), total)
    got = per_rank(comm, lambda y: (jh.psum(y), y, jh.psum(y * 2) + y), x, compile_with=donating)
    EQUAL(got[0], total)
    EQUAL(got[1], here(comm, x))
    np.testing.assert_allclose(got[2], 2 * total + here(comm, x))
    kept = here(comm, x)

    def program(y):
        return jh.psum(y) + y

    if len(comm.devices) == 1:
        kept = jax.device_put(kept[0], comm.devices[0])
        compiled = jax.jit(program)
        for _ in range(3):
            EQUAL(np.asarray(compiled(kept)), (total + here(comm, x))[0])
        EQUAL(np.asarray(kept), here(comm, x)[0])
    else:
        for _ in range(3):
            EQUAL(per_rank(comm, program, x), total + kept)


def case_trees(comm):
    """C058: a tree of many leaves, some odd, is reduced right, packed or not; structure comes back."""
    leaves = {f"p{k}": iota(comm, 50 + k % 3) * (k + 1) for k in range(30)}
    tree = {"a": leaves, "b": [iota(comm, 3).astype(ml_dtypes.bfloat16), None], "n": iota(comm, 2, dtype=np.int32)}
    for way in (jh.jit, eagerly(comm)):
        got = per_rank(comm, jh.psum, tree, compile_with=way)
        assert jax.tree.structure(got) == jax.tree.structure(tree)
        for key, leaf in leaves.items():
            np.testing.assert_allclose(got["a"][key], everyone(comm, leaf.sum(0)), rtol=1e-6)
        EQUAL(got["n"], everyone(comm, tree["n"].sum(0).astype(np.int32)))


def case_low_precision(comm):
    """C145: bfloat16 sums are accumulated in float32 and rounded once."""
    x = np.full((comm.size, 1), 0.5, np.float32)
    x[0] = 256
    got = per_rank(comm, jh.psum, x.astype(ml_dtypes.bfloat16))
    EQUAL(got.astype(np.float32), everyone(comm, x.sum(0).astype(ml_dtypes.bfloat16).astype(np.float32)))


def case_same_bits(comm):
    """C143: random numbers summed: the same bits on all ranks."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(comm.size, 3001)).astype(np.float32)
    for kind in (np.float32, ml_dtypes.bfloat16, np.complex64):
        same_everywhere(comm, per_rank(comm, jh.psum, x.astype(kind)))
        same_everywhere(comm, per_rank(comm, jh.pmean, x.astype(kind)))


def case_ragged(comm):
    """Slices of run-time length."""
    n, rng = comm.size, np.random.default_rng(3)
    sizes = rng.integers(0, 3, (n, n))
    starts = np.concatenate([np.zeros((n, 1), int), np.cumsum(sizes, 1)[:, :-1]], 1)
    targets = np.concatenate([np.zeros((1, n), int), np.cumsum(sizes, 0)[:-1]], 0)
    x, out = iota(comm, 2 * n, 2), np.full((comm.size, 2 * n + 1, 2), -1, np.float32)
    plan = [a.astype(np.int32) for a in (starts, sizes, targets, sizes.T)]
    got = per_rank(comm, lambda *a: jh.ragged_all_to_all(*a), x, out, *plan)
    for k, j in enumerate(comm.local_ranks):
        want = np.concatenate([x[i, starts[i, j] : starts[i, j] + sizes[i, j]] for i in range(n)])
        EQUAL(got[k, : len(want)], want)
        assert (got[k, len(want) :] == -1).all()


def case_indices(comm):
    """axis_index at run time, axis_size and psum(1) static, Python numbers (C045)."""
    index, ones = per_rank(comm, lambda _: (jh.axis_index(), jnp.zeros(jh.psum(1)) + jh.axis_size()), iota(comm, 1))
    EQUAL(index, np.array(comm.local_ranks))
    assert ones.shape[1] == comm.size and (ones == comm.size).all()
    two, low, top = per_rank(comm, lambda _: (jh.psum(2), jh.pmin(1), jh.pmax(2.0)), iota(comm, 1))
    assert (two == 2 * comm.size).all() and (low == 1).all() and (top == 2).all()
