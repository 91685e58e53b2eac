# SPDX-License-Identifier: Apache-2.0
"""Cases: derivatives, batching and control flow over ranks, against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from per_rank import everyone, here, iota, only, per_rank

import jhetcc.ops as jh
from jhetcc.errors import BadArgumentError, UnavailableError

EQUAL = np.testing.assert_array_equal
CLOSE = np.testing.assert_allclose


def case_convention(comm):
    """C039, C042, C051: the documented gradients, with and without varying-axes checks, nested in jit."""
    n, x = comm.size, iota(comm, 3) / 1000
    for vma in (False, True):
        for f, want in ((jh.psum, n), (jh.pmean, 1), (jh.psum_invariant, 1)):
            got = per_rank(comm, jax.grad(lambda y, f=f: jax.jit(f)(y).sum()), x, vma=vma)
            EQUAL(got, np.full_like(here(comm, x), want))
    got = per_rank(comm, jax.grad(lambda y: (jh.psum(y**2) + jh.psum(jnp.abs(y))).sum()), x + 1.5)
    CLOSE(got, n * (2 * here(comm, x + 1.5) + 1), rtol=1e-5)
    EQUAL(per_rank(comm, jax.grad(lambda y: jh.all_gather(y).sum()), x), np.full_like(here(comm, x), n))
    c = iota(comm, n, 3)
    CLOSE(per_rank(comm, jax.grad(lambda y, c: (jh.all_gather(y) * c).sum()), x, c), here(comm, c.sum(0)))


def _objective(f):
    """The global objective: every rank's part, summed over the ranks."""
    return lambda y: (jnp.sin(f(y * y)) ** 2).sum()


def case_finite_differences(comm):
    """C040, C047: directional derivatives of the objective summed over ranks, first and second order."""
    n, rng = comm.size, np.random.default_rng(5)
    x = rng.normal(size=(n, n, 2)) / 2
    v = rng.normal(size=x.shape)
    ring = [(r, (r + 1) % n) for r in range(n)]
    fs = (
        jh.psum,
        jh.all_gather,
        lambda y: jh.psum_scatter(y),
        lambda y: jh.ppermute(y, "world", ring),
        lambda y: jh.all_to_all(y, "world", 0, 1),
        lambda y: jh.broadcast(y, root=n - 1),
        lambda y: jh.reduce(y, root=0),
        lambda y: jh.gather(y, root=0),
        lambda y: jh.scatter(y, root=n - 1),
    )
    with jax.enable_x64(True):
        for f in fs:
            part = _objective(f)

            def slope(y, d, part=part):
                return (jax.grad(part)(y) * d).sum()

            def measure(y, d, part=part, slope=slope):
                return jh.psum((part(y), slope(y, d), (jax.grad(slope)(y, d) * d).sum()))

            step = 1e-5
            (_, first, second), (up, first_up, _), (down, first_down, _) = (
                [float(value[0]) for value in per_rank(comm, measure, at, v)] for at in (x, x + step * v, x - step * v)
            )
            CLOSE(first, (up - down) / (2 * step), rtol=1e-5, atol=1e-7)
            CLOSE(second, (first_up - first_down) / (2 * step), rtol=1e-4, atol=1e-6)


def case_jacobians(comm):
    """C048: jacfwd, jacrev and hessian of psum(sin(x) * rank) are the analytic matrices."""
    n, ranks = comm.size, np.arange(comm.size, dtype=np.float32)
    x = np.tile(np.float32([0.1, 0.2, 0.3]), (n, 1))

    def f(y, r):
        return jh.psum(jnp.sin(y) * r)

    forward, reverse, hessian = per_rank(
        comm,
        lambda y, r: (jax.jacfwd(f)(y, r), jax.jacrev(f)(y, r), jax.hessian(lambda z, r: f(z, r).sum())(y, r)),
        x,
        ranks,
    )
    diagonal = np.diag(np.cos(x[0]))
    CLOSE(forward, everyone(comm, ranks.sum() * diagonal), rtol=1e-5, atol=1e-6)
    CLOSE(reverse, here(comm, n * ranks)[:, None, None] * diagonal, rtol=1e-5, atol=1e-6)
    # Forward over reverse: the gradient n * r * cos(x) is local, so its own derivative is.
    CLOSE(hessian, here(comm, n * ranks)[:, None, None] * -np.diag(np.sin(x[0])), rtol=1e-5, atol=1e-6)


@only(lambda comm: comm.size >= 3, "a chain of three")
def case_open_chain(comm):
    """C049, C043: permutations that are no cycle; cotangents flow backwards."""
    n = comm.size
    x, ct = iota(comm, 1) + 1, np.arange(1, n + 1, dtype=np.float32)[:, None]
    pairs = [(r, r + 1) for r in range(n - 1)]
    out = per_rank(comm, lambda y: jh.ppermute(y, "world", pairs), x)
    EQUAL(out, here(comm, np.concatenate([np.zeros_like(x[:1]), x[:-1]])))
    back = per_rank(comm, lambda y, c: jax.vjp(lambda z: jh.ppermute(z, "world", pairs), y)[1](c)[0], x, ct)
    EQUAL(back, here(comm, np.concatenate([ct[1:], np.zeros_like(ct[:1])])))


def case_vmap(comm):
    """C044: batched operations and gradients equal a loop over the batch."""
    x = iota(comm, 5, comm.size, 3) / 1000
    fs = (
        jh.psum,
        jh.all_gather,
        lambda y: jh.psum_scatter(y),
        lambda y: jh.all_to_all(y, "world", 0, 1),
        lambda y: jh.broadcast(y, root=comm.size - 1),
        lambda y: (jh.all_gather(y) ** 2).sum(),
    )
    for f in fs:
        batched, looped = per_rank(comm, lambda y, f=f: (jax.vmap(f)(y), jnp.stack([f(y[k]) for k in range(5)])), x)
        EQUAL(batched, looped)
    f = fs[-1]
    one, many = per_rank(comm, lambda y: (jax.vmap(jax.grad(f))(y), jax.grad(lambda z: jax.vmap(f)(z).sum())(y)), x)
    CLOSE(one, many, rtol=1e-6)


def case_vmap_of_cond(comm):
    """C035: refused with an explanation on every rank, while tracing; nothing was sent."""
    p, x = np.arange(3) % 2 == 0, np.ones((3, 2), np.float32)
    try:
        jax.jit(jax.vmap(lambda q, y: lax.cond(q, jh.psum, lambda z: z, y)))(p, x)
    except UnavailableError as error:
        assert "select" in str(error)
    else:
        raise AssertionError("a mapped predicate was accepted")
    EQUAL(per_rank(comm, jh.psum, iota(comm, 2)), everyone(comm, iota(comm, 2).sum(0)))


def case_custom_rules(comm):
    """C046: operations inside custom_vjp rules, compiled, differentiated and batched."""

    @jax.custom_vjp
    def f(y):
        return jh.psum(y)

    f.defvjp(lambda y: (jh.psum(y), None), lambda _, ct: (jh.pmean(ct) * 7,))
    x = iota(comm, 3)
    assert (per_rank(comm, jax.grad(lambda y: f(y).sum()), x) == 7).all()
    assert (per_rank(comm, jax.vmap(jax.grad(f)), x) == 7).all()


def case_solver(comm):
    """C041: conjugate gradients whose matrix product ends in a reduction; the solution and its gradient are the whole system's."""
    n, rng = comm.size, np.random.default_rng(2)
    parts = rng.normal(size=(n, 3, 3))
    spd = np.einsum("rij,rkj->rik", parts, parts) + np.eye(3)
    whole, b = spd.sum(0), rng.normal(size=3)

    with jax.enable_x64(True):

        def solve(a, rhs):
            return jax.scipy.sparse.linalg.cg(lambda v: jh.psum_invariant(a @ v), rhs, tol=1e-12)[0]

        rhs = np.tile(b, (n, 1))
        CLOSE(per_rank(comm, solve, spd, rhs), everyone(comm, np.linalg.solve(whole, b)), rtol=1e-8)
        # The matrix is symmetric, so its transposed solve is the whole system's too.
        grad = per_rank(comm, jax.grad(lambda r, a: jh.pmean(solve(a, r)).sum()), rhs, spd)
        CLOSE(grad, everyone(comm, np.linalg.solve(whole, np.ones(3))), rtol=1e-8)


def case_control_flow(comm):
    """Loops and branches, their gradients, and predicates that are themselves reduced."""
    n, x = comm.size, iota(comm, 2) / 1000

    def body(y):
        y = lax.cond(jh.psum(y).sum() > 0, lambda z: jh.psum(z) / n, lambda z: jh.pmean(z), y)
        return lax.scan(lambda c, k: (jh.pmean(c) + k, jh.psum(c)), y, jnp.arange(3.0))[0]

    CLOSE(per_rank(comm, body, x), everyone(comm, x.mean(0) + 3), rtol=1e-5)
    CLOSE(per_rank(comm, jax.grad(lambda y: body(y).sum()), x), np.ones_like(here(comm, x)), rtol=1e-5)
    steps = per_rank(
        comm, lambda y: lax.while_loop(lambda s: jh.psum(s).max() < 10 * n, lambda s: s + 1, y * 0), iota(comm, 1)
    )
    assert (steps == 10).all()


def case_remat(comm):
    """A checkpointed function has the gradient of the plain one."""
    x = iota(comm, 4) / 1000

    def f(y):
        return jnp.sin(jh.psum(jnp.sin(y))).sum()

    plain, saved = per_rank(comm, lambda y: (jax.grad(f)(y), jax.grad(jax.checkpoint(f))(y)), x)
    EQUAL(plain, saved)


def case_not_differentiable(comm):
    """Maxima and products say why; nothing was sent."""
    for f in (jh.pmax, jh.pprod):
        try:
            jax.make_jaxpr(jax.grad(lambda y, f=f: f(y).sum()))(jnp.ones(2))
        except BadArgumentError as error:
            assert "not differentiable" in str(error)
        else:
            raise AssertionError(f"{f} was differentiated")


def case_training_step(comm):
    """Data parallel least squares: gradients of a tree by one pmean, equal to the whole batch's on every step."""
    n, rng = comm.size, np.random.default_rng(9)
    data, target = rng.normal(size=(n, 8, 3)).astype(np.float32), rng.normal(size=(n, 8)).astype(np.float32)

    def loss(p, a, b):
        return ((a @ p["w"] + p["b"] - b) ** 2).mean()

    def train(a, b, reduce):
        def step(p, _):
            value, grads = jax.value_and_grad(loss)(p, a, b)
            value, grads = reduce((value, grads))
            return jax.tree.map(lambda q, g: q - 0.1 * g, p, grads), value

        return lax.scan(step, {"w": jnp.zeros(3), "b": jnp.zeros(())}, None, length=20)

    params, losses = per_rank(comm, lambda a, b: train(a, b, jh.pmean), data, target, compile_with=jh.jit)
    want, want_losses = jax.jit(lambda a, b: train(a, b, lambda t: t))(data.reshape(-1, 3), target.reshape(-1))
    CLOSE(params["w"], everyone(comm, np.asarray(want["w"])), rtol=1e-4, atol=1e-5)
    CLOSE(losses, everyone(comm, np.asarray(want_losses)), rtol=1e-4)
