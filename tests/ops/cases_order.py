# SPDX-License-Identifier: Apache-2.0
"""Cases: order of operations within and between programs, calls that nobody reads, callbacks, export."""

import importlib.util
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from per_rank import everyone, here, iota, only, per_rank, processes

import jhetcc.ops as jh

EQUAL = np.testing.assert_array_equal


def case_repeated_rounds(comm):
    """C029: a hundred rounds in one program: every element right, the same each time."""
    x = np.ones((comm.size, 100_000), np.float64)
    with jax.enable_x64(True):

        def f(y):
            return lax.fori_loop(0, 100, lambda _, z: 0.99 * jh.psum(z) / comm.size, y)

        first = per_rank(comm, f, x)
        np.testing.assert_allclose(first, 0.99**100, rtol=1e-12)
        for _ in range(3):
            EQUAL(per_rank(comm, f, x), first)


def case_independent_operations(comm):
    """C030: operations without data dependence, of different shapes, keep the order of the program."""
    xs = [iota(comm, k + 1) for k in range(5)]

    def f(*ys):
        return [jh.psum(y) for y in ys]

    for way in (jax.jit, jh.jit, lambda g: jax.jit(g, donate_argnums=(1, 3)), jax.jit):
        for got, x in zip(per_rank(comm, f, *xs, compile_with=way), xs, strict=True):
            EQUAL(got, everyone(comm, x.sum(0)))


def case_differing_programs(comm):
    """Ranks whose programs differ in computation, donation and unused results still meet in order (C030, C031)."""
    odd = bool(comm.local_ranks[0] % 2)
    x = iota(comm, 64)

    def f(y):
        if odd:
            y = jnp.cos(jnp.arccos(jnp.clip(y / 1e4, -1, 1))) * 1e4
        first = jh.psum(y)
        jh.barrier()
        unused = jh.pmax(y * 2)
        last = jh.psum_scatter(jnp.tile(y, (comm.size, 1)))
        return (last, first) if not odd else (last, first, unused)

    def way(g):
        return jax.jit(g, donate_argnums=0) if odd else jh.jit(g)

    got = per_rank(comm, f, x, compile_with=way)
    np.testing.assert_allclose(got[0], everyone(comm, x.sum(0)), rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(got[1], everyone(comm, x.sum(0)), rtol=1e-3, atol=1e-2)


def case_unused(comm):
    """C031: barriers, and reductions whose result only some ranks read."""
    keep = comm.local_ranks[0] == 0

    def f(y):
        jh.barrier()
        total = jh.psum(y)
        jh.barrier()
        return total if keep else y

    x = iota(comm, 3)
    got = per_rank(comm, f, x)
    EQUAL(got, everyone(comm, x.sum(0)) if keep else here(comm, x))
    EQUAL(per_rank(comm, jh.pmax, x), everyone(comm, x.max(0)))


def case_all_pairs(comm):
    """C038: every operation directly after every other, tiny and large."""
    n = comm.size
    for width in (1, 4096):
        x = iota(comm, n, width, dtype=np.int32)
        mine = np.array(comm.local_ranks)
        table = {
            "psum": (jh.psum, everyone(comm, x.sum(0).astype(np.int32))),
            "pmax": (jh.pmax, everyone(comm, x.max(0))),
            "all_gather": (jh.all_gather, everyone(comm, x)),
            "psum_scatter": (jh.psum_scatter, x.sum(0).astype(np.int32)[mine]),
            "all_to_all": (lambda y: jh.all_to_all(y, "world", 0, 0), x.swapaxes(0, 1)[mine]),
            "ppermute": (
                lambda y: jh.ppermute(y, "world", [(r, (r + 1) % n) for r in range(n)]),
                np.roll(x, 1, 0)[mine],
            ),
            "broadcast": (jh.broadcast, everyone(comm, x[0])),
            "reduce": (jh.reduce, np.where((mine == 0)[:, None, None], x.sum(0).astype(np.int32), 0)),
            "scatter": (jh.scatter, x[0][mine]),
        }
        pairs = list(itertools.product(table, table))

        def f(y, table=table, pairs=pairs):
            return [(table[a][0](y), table[b][0](y)) for a, b in pairs]

        for (a, b), (left, right) in zip(pairs, per_rank(comm, f, x), strict=True):
            EQUAL(left, table[a][1], err_msg=f"{a} then {b}")
            EQUAL(right, table[b][1], err_msg=f"{a} then {b}")


def case_many_programs(comm):
    """Programs one after the other, without waiting, compiled and eager mixed: order is that of the calls."""
    x = iota(comm, 50)

    def double(y):
        return jh.psum(y) * 2

    twice = jax.jit(double)
    for k in range(20):
        EQUAL(per_rank(comm, jh.psum, x + k), everyone(comm, (x + k).sum(0)))
        if len(comm.devices) == 1:
            value = jax.device_put(here(comm, x)[0], comm.devices[0])
            results = [twice(value * j) for j in range(5)]
            for j, result in enumerate(results):
                np.testing.assert_allclose(np.asarray(result), 2 * j * x.sum(0), rtol=1e-6)
        else:
            for j in range(5):
                np.testing.assert_allclose(per_rank(comm, double, x * j), everyone(comm, 2 * j * x.sum(0)), rtol=1e-6)


def case_callbacks(comm):
    """C034: a loop with reductions and a debug callback in its body finishes."""
    seen = []

    def body(state):
        k, y = state
        jax.debug.callback(lambda v: seen.append(float(v)), y[0])
        return k + 1, jh.psum(y) / comm.size

    x = np.ones((comm.size, 4), np.float32)
    per_rank(comm, lambda y: lax.while_loop(lambda s: s[0] < 100, body, (0, y))[1], x)
    jax.effects_barrier()
    assert len(seen) == 100 * len(comm.local_ranks)


def case_nested_jits(comm):
    """Inner compiled functions are part of the program that encloses them, order and all."""
    inner = jh.jit(lambda y: jh.psum(y))
    x = iota(comm, 3)

    def f(y):
        a = inner(y)
        b = jh.pmax(y)
        return a, b, jh.scope(lambda z: inner(z) + jh.psum(z))(y)

    a, b, c = per_rank(comm, f, x, compile_with=jh.jit)
    EQUAL(a, everyone(comm, x.sum(0)))
    EQUAL(b, everyone(comm, x.max(0)))
    EQUAL(c, everyone(comm, 2 * x.sum(0)))


def case_jit_arguments(comm):
    """jhetcc.jit takes what jax.jit takes."""

    def f(y, k, *, mode):
        return jh.psum(y) * k if mode == "sum" else y

    x = iota(comm, 3)
    for mode in ("sum", "none"):
        got = per_rank(comm, lambda y, mode=mode: jh.jit(f, static_argnames="mode")(y, 2, mode=mode), x)
        EQUAL(got, everyone(comm, 2 * x.sum(0)) if mode == "sum" else here(comm, x))


@only(lambda comm: comm.size == processes(comm), "one device a process")
def case_export(comm):
    """A program exported, serialised and read back runs; so does one compiled ahead of time."""
    x = here(comm, iota(comm, 6))[0]
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    exported = jax.export.export(jax.jit(jh.psum), disabled_checks=jh.export_checks())(shape)
    if importlib.util.find_spec("flatbuffers"):  # JAX writes and reads exports with it
        exported = jax.export.deserialize(exported.serialize())
    EQUAL(np.asarray(jax.jit(exported.call)(x)), iota(comm, 6).sum(0))
    EQUAL(np.asarray(jax.jit(jh.psum).lower(shape).compile()(x)), iota(comm, 6).sum(0))
