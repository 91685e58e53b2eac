# SPDX-License-Identifier: Apache-2.0
"""Derivatives, batching and control flow on four local devices against jax.lax, finite differences and plain numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import over
from jax import lax
from jax.sharding import PartitionSpec as P
from test_tracing_values import iota, on_ranks

import jhetcc.ops as jh
from jhetcc.errors import BadArgumentError, UnavailableError

N = 4


@pytest.fixture(autouse=True)
def four(world):
    world.add("world", N)
    return world


LINEAR = {
    "psum": lambda m, a: lambda x: m.psum(x, a),
    "pmean": lambda m, a: lambda x: m.pmean(x, a),
    "ppermute": lambda m, a: lambda x: m.ppermute(x, a, [(0, 1), (1, 2)]),
    "all_gather": lambda m, a: lambda x: m.all_gather(x, a, axis=1, tiled=True),
    "psum_scatter": lambda m, a: lambda x: m.psum_scatter(x, a, scatter_dimension=0, tiled=True),
    "all_to_all": lambda m, a: lambda x: m.all_to_all(x, a, 0, 1, tiled=True),
}


def loss(f):
    return lambda x: (jnp.sin(f(x * x)) ** 2).sum()


@pytest.mark.parametrize("name", LINEAR)
def test_grad_like_lax(name):
    """C040, C047: first and second order derivatives are those of jax.lax without varying-axes checks."""
    x = np.random.default_rng(0).normal(size=(N, 4, 2)).astype(np.float32)
    ours, theirs = LINEAR[name](jh, "world"), LINEAR[name](lax, "d")
    for order in (jax.grad, lambda f: jax.grad(lambda x: (jax.grad(f)(x) ** 3).sum())):
        np.testing.assert_allclose(
            on_ranks(order(loss(ours)), x), on_ranks(order(loss(theirs)), x), rtol=2e-4, atol=1e-4
        )
    for mode in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(on_ranks(mode(ours), x), on_ranks(mode(theirs), x), atol=1e-6)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jh.broadcast(x, root=2),
        lambda x: jh.reduce(x, root=1),
        lambda x: jh.reduce(x, root=1, op="mean"),
        lambda x: jh.gather(x, root=3),
        lambda x: jh.scatter(x, root=3),
        lambda x: jh.all_gather(x, lengths=(1, 0, 4, 2)),
        lambda x: jh.gather(x, root=0, lengths=(4, 0, 4, 2)),
        lambda x: jh.scatter(x, root=2, lengths=(1, 0, 1, 2)),
        lambda x: jh.sendrecv(x, 0, 0),
    ],
)
def test_transpose_is_the_adjoint(f):
    """<y, f x> summed over the ranks equals <f^T y, x>: for linear f that is what a transpose is."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(N, 4, 2)).astype(np.float32)
    out = on_ranks(f, x)
    y = rng.normal(size=out.shape).astype(np.float32)
    back = on_ranks(lambda x, y: jax.vjp(f, x)[1](y)[0], x, y)
    if "sendrecv" not in f.__code__.co_names:  # the fake wire's sendrecv is not a permutation across ranks
        np.testing.assert_allclose((out * y).sum(), (back * x).sum(), rtol=1e-4)
    tangent = on_ranks(lambda x, y: jax.jvp(f, (x,), (y,))[1], x, x)
    np.testing.assert_allclose(tangent, out, rtol=1e-6)


@pytest.mark.parametrize("vma", [False, True])
def test_psum_convention(vma):
    """C039: the transpose of psum is psum; psum_invariant counts the cotangent once, inside and outside of shard_map."""
    x = iota(2)

    def inside(f):
        return on_ranks(jax.grad(lambda y: f(y).sum()), x, check_vma=vma)

    np.testing.assert_array_equal(inside(jh.psum), np.full_like(x, N))
    np.testing.assert_array_equal(inside(jh.pmean), np.ones_like(x))
    np.testing.assert_array_equal(inside(jh.psum_invariant), np.ones_like(x))
    mapped = jax.shard_map(jh.psum_invariant, mesh=over(N), in_specs=P("d"), out_specs=P(), check_vma=True)
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda y: mapped(y).sum()))(x), np.ones_like(x))
    np.testing.assert_array_equal(mapped(x), x.sum(0, keepdims=True))


def test_two_psums():
    """C042: the gradient of a sum of two reduced values."""
    x = np.full((N,), 1.5, np.float32)
    got = on_ranks(jax.grad(lambda y: jh.psum(y**2) + jh.psum(jnp.abs(y))), x)
    np.testing.assert_array_equal(got, np.full((N,), 4 * N, np.float32))


def test_open_chain():
    """C049: a permutation that is no cycle; cotangents go back, ends get zeros."""
    x, ct = iota(1) + 1, np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)
    chain = [(0, 1), (1, 2)]
    assert on_ranks(lambda y: jh.ppermute(y, perm=chain), x)[0] == 0
    back = on_ranks(lambda y, c: jax.vjp(lambda z: jh.ppermute(z, perm=chain), y)[1](c)[0], x, ct)
    assert back.ravel().tolist() == [2.0, 3.0, 0.0, 0.0]


def test_hessian_and_jacobians():
    """C048: matrices of psum(sin(x) * rank) are the analytic ones."""
    x, rank = np.tile(np.float32([0.1, 0.2, 0.3]), (N, 1)), np.arange(N, dtype=np.float32)

    def f(y, r):
        return jh.psum(jnp.sin(y) * r)

    for mode in (jax.jacfwd, jax.jacrev):
        got = on_ranks(mode(f), x, rank)
        # Forward: the tangents of all ranks add up. Reverse: all ranks' cotangents, times the own factor.
        factor = rank.sum() * np.ones(N) if mode is jax.jacfwd else N * rank
        np.testing.assert_allclose(got, factor[:, None, None] * np.diag(np.cos(x[0])), rtol=1e-5)
    hessian = on_ranks(jax.hessian(lambda y, r: f(y, r).sum()), x, rank)
    assert hessian.shape == (N, 3, 3) and np.isfinite(hessian).all()
    out = on_ranks(lambda y: jax.linearize(jh.psum, y)[1](y), x)
    np.testing.assert_allclose(out[0], x.sum(0), rtol=1e-6)


@pytest.mark.parametrize("f", [jh.pmax, jh.pmin, jh.pprod, lambda x: jh.reduce(x, op="max")])
def test_not_differentiable(f):
    """max, min and products have no derivative, and say their name; stop_gradient and integers pass."""
    with pytest.raises(BadArgumentError, match=r"(pmax|pmin|pprod|reduce).*not differentiable"):
        jax.make_jaxpr(jax.grad(lambda x: f(x).sum()))(jnp.ones(2))
    jax.make_jaxpr(jax.grad(lambda x: (x * f(lax.stop_gradient(x))).sum()))(jnp.ones(2))
    jax.make_jaxpr(jax.grad(lambda x: (x * f(jnp.arange(2))).sum()))(jnp.ones(2))


def test_send_is_not_differentiable(world):
    """C043: the two halves of a message cannot be transposed apart; refused while tracing."""
    world.add("world", N, 1)
    with pytest.raises(BadArgumentError, match=r"send on 'world' is not differentiable.*sendrecv"):
        jax.make_jaxpr(jax.grad(lambda x: (jh.send(x, 1), x.sum())[1]))(jnp.ones(2))


@pytest.mark.parametrize("in_axis", [0, 1, 2])
@pytest.mark.parametrize("name", LINEAR)
def test_vmap(name, in_axis, four):
    """C044: a vmapped operation is one operation on the wire and equals a loop over the batch."""
    x = np.moveaxis(iota(5, 4, 2), 1, in_axis + 1)
    f = LINEAR[name](jh, "world")
    got = on_ranks(jax.vmap(f, in_axes=in_axis, out_axes=0), x)
    assert len(four.texts) == 1
    want = on_ranks(lambda y: jnp.stack([f(jnp.take(y, k, axis=in_axis)) for k in range(5)]), x)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jh.all_gather(x, lengths=(1, 0, 4, 2)),
        lambda x: jh.gather(x, root=1),
        lambda x: jh.scatter(x, root=1),
        lambda x: jh.scatter(x, root=1, lengths=(0, 2, 1, 1)),
        lambda x: jh.reduce(x, root=2, op="max"),
        lambda x: jh.broadcast(x, root=2),
        lambda x: jh.all_to_all(x, "world", 0, 1),
        lambda x: jh.psum_scatter(x),
    ],
)
@pytest.mark.parametrize("in_axis", [0, 1, 2])
def test_vmap_others(f, in_axis, four):
    x = np.moveaxis(iota(5, 4, 2), 1, in_axis + 1)
    got = on_ranks(jax.vmap(f, in_axes=in_axis), x)
    assert len(four.texts) == 1
    np.testing.assert_array_equal(
        got, on_ranks(lambda y: jnp.stack([f(jnp.take(y, k, axis=in_axis)) for k in range(5)]), x)
    )


def test_vmap_of_grad():
    """C044: gradients per example, and of a batched sum."""
    x = iota(5, 4)
    f = lambda y: (jh.all_gather(y) ** 2).sum()  # noqa: E731
    want = on_ranks(lambda y: jnp.stack([jax.grad(f)(y[k]) for k in range(5)]), x)
    np.testing.assert_allclose(on_ranks(jax.vmap(jax.grad(f)), x), want)
    np.testing.assert_allclose(on_ranks(jax.grad(lambda y: jax.vmap(f)(y).sum()), x), want)


def test_constants_under_transforms():
    """C045: Python constants in eager mode, jit, vmap and grad."""
    x = iota(3)
    assert (on_ranks(jax.vmap(lambda y: y * jh.psum(1)), x) == N * x).all()
    assert (on_ranks(jax.grad(lambda y: (y * jh.pmax(2.0) * jh.psum(1)).sum()), x) == 2 * N).all()


def test_cond_scan_while():
    """Control flow around operations, and their gradients."""
    x = iota(2) / 1000

    def body(y):
        y = lax.cond(jh.psum(y).sum() > 0, lambda z: jh.psum(z) / N, lambda z: jh.pmean(z) * 0, y)
        y = lax.scan(lambda c, k: (jh.pmean(c) + k, jh.psum(c)), y, jnp.arange(3.0))[0]
        return y

    got = on_ranks(body, x)
    np.testing.assert_allclose(got, np.tile(x.mean(0) + 3, (N, 1)), rtol=1e-6)
    grads = on_ranks(jax.grad(lambda y: body(y).sum()), x)
    np.testing.assert_allclose(grads, np.ones_like(x), rtol=1e-6)
    looped = on_ranks(
        lambda y: lax.while_loop(lambda s: (jh.psum(s[0]) < 40).all(), lambda s: (s[0] + 1, jh.pmax(s[1])), (y * 0, y))[
            0
        ],
        x,
    )
    assert (looped == 10).all()
    again = on_ranks(
        lambda y: lax.fori_loop(0, 100, lambda _, z: 0.99 * jh.psum(z) / N, y), np.ones((N, 1000), np.float32)
    )
    np.testing.assert_allclose(again, 0.99**100, rtol=1e-4)


def test_vmap_of_cond():
    """C035: a mapped predicate around an operation is refused; an unmapped one, or no operation inside, is not."""

    def choose(f):
        return lambda p, y: lax.cond(p, f, lambda z: z, y)

    x = jnp.ones((3, 2))
    with pytest.raises(UnavailableError, match=r"vmap of jax\.lax\.cond.*select"):
        jax.make_jaxpr(jax.vmap(choose(jh.psum)))(jnp.array([True, False, True]), x)
    jax.make_jaxpr(jax.vmap(choose(jh.psum), in_axes=(None, 0)))(True, x)
    jax.make_jaxpr(jax.vmap(choose(jnp.sin)))(jnp.array([True, False, True]), x)


def test_remat_runs_once(four):
    """A reduction inside a checkpoint is saved, not repeated: each one on the wire once forward, once backward."""
    x = iota(2) / 1000
    f = jax.checkpoint(lambda y: jnp.sin(jh.psum(jnp.sin(y))))
    got = on_ranks(jax.grad(lambda y: f(y).sum()), x)
    assert len(four.texts) == 2
    want = on_ranks(jax.grad(lambda y: jnp.sin(lax.psum(jnp.sin(y), "d")).sum()), x)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_custom_rules():
    """C046: operations in the forward and backward rules of custom_vjp, and in custom_jvp."""

    @jax.custom_vjp
    def f(y):
        return jh.psum(y)

    f.defvjp(lambda y: (jh.psum(y), None), lambda _, ct: (jh.pmean(ct) * 7,))

    @jax.custom_jvp
    def g(y):
        return jh.pmax(y)

    g.defjvp(lambda primals, tangents: (g(*primals), jh.psum(tangents[0])))
    x = iota(3)
    assert (on_ranks(jax.grad(lambda y: f(y).sum()), x) == 7).all()
    assert (on_ranks(jax.vmap(jax.grad(lambda y: f(y))), x) == 7).all()
    assert (on_ranks(jax.grad(lambda y: g(y).sum()), x) == N).all()


def test_conjugate_gradients():
    """C041: an iterative solver whose matrix product ends in a psum: solved, differentiated, equal to the whole system."""
    rng = np.random.default_rng(2)
    parts = rng.normal(size=(N, 3, 3)).astype(np.float32)
    spd = np.einsum("rij,rkj->rik", parts, parts) + np.eye(3, dtype=np.float32)
    b = np.tile(rng.normal(size=3).astype(np.float32), (N, 1))

    def solve(a, rhs):
        return jax.scipy.sparse.linalg.cg(lambda v: jh.psum_invariant(a @ v), rhs, maxiter=20)[0]

    whole = spd.sum(0)
    np.testing.assert_allclose(on_ranks(solve, spd, b)[0], np.linalg.solve(whole, b[0]), rtol=2e-3, atol=1e-4)
    grad = on_ranks(jax.grad(lambda r, a: solve(a, r).sum()), b, spd)
    assert np.isfinite(grad).all()


def test_gather_cotangent():
    """C051: the cotangent of a gather's sum is a broadcast of one number."""
    x = iota(3)
    assert (on_ranks(jax.grad(lambda y: jh.all_gather(y).sum()), x) == N).all()
    c = iota(N, 3)
    got = on_ranks(jax.grad(lambda y, c: (jh.all_gather(y) * c).sum()), x, c)
    np.testing.assert_array_equal(got, c.sum(0))


def test_float0_leaves():
    """Trees of gradients with integer parameters pass through: such leaves carry nothing."""

    def step(y):
        grads = jax.grad(lambda p: (p["w"] ** 2).sum(), allow_int=True)({"w": y, "n": jnp.arange(3)})
        reduced = jh.pmean(grads)
        assert reduced["n"].dtype == jax.dtypes.float0
        assert jh.broadcast(grads)["n"].dtype == jax.dtypes.float0
        return reduced["w"]

    x = iota(2)
    np.testing.assert_allclose(on_ranks(step, x)[1], 2 * x.mean(0))
