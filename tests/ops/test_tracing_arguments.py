# SPDX-License-Identifier: Apache-2.0
"""Arguments: permutations in any form, ranks, tags, axes, shapes; every refusal is typed and names the value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jhetcc.ops as jh
from jhetcc.errors import BadArgumentError


@pytest.fixture(autouse=True)
def three(world):
    """A world of three ranks, one of them here."""
    world.add("world", 3, 1)
    return world


X = jnp.ones((3, 6))


def perm_of(f):
    (equation,) = jax.make_jaxpr(f)(X).eqns
    return equation.params["perm"]


def test_permutation_forms():
    """C003: one-shot iterators, lists and arrays give the same permutation, traced twice."""
    want = ((0, 1), (1, 2))
    pairs = [[1, 2], [0, 1]]
    for form in (pairs, np.array(pairs), tuple(map(tuple, pairs))):
        assert perm_of(lambda x, form=form: jh.ppermute(x, "world", form)) == want
    for _ in range(2):
        assert perm_of(lambda x: jh.ppermute(x, "world", zip([0, 1], [1, 2], strict=True))) == want
        assert perm_of(lambda x: jh.ppermute(x, "world", ((r, r + 1) for r in range(2)))) == want


def test_one_shot_permutation_of_a_tree(three):
    """The iterator is read once for all leaves."""
    jaxpr = jax.make_jaxpr(lambda x: jh.ppermute([x, x], "world", iter([(0, 1)])))(X)
    assert [e.params["perm"] for e in jaxpr.eqns] == [((0, 1),)] * 2


@pytest.mark.parametrize(
    ("perm", "match"),
    [
        ([(0, 3)], "destination 3 is not a rank of communicator 'world': its ranks are 0 to 2"),
        ([(-1, 0)], "source -1 is not a rank"),
        ([(0, 1), (0, 2)], "source 0 appears more than once"),
        ([(0, 1), (2, 1)], "destination 1 appears more than once"),
        ([0, 1], "pairs"),
        ([(0, 1.5)], "must be a Python integer"),
    ],
)
def test_bad_permutations(perm, match):
    with pytest.raises(BadArgumentError, match=match):
        jh.ppermute(X, "world", perm)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: jh.broadcast(X, root=3), r"root 3 is not a rank of communicator 'world': its ranks are 0 to 2"),
        (lambda: jh.reduce(X, root="a"), "root must be a Python integer"),
        (lambda: jh.reduce(X, op="xor"), "op must be one of sum, mean, max, min, prod, not 'xor'"),
        (lambda: jh.reduce(X.astype(int), op="mean"), "mean of int"),
        (lambda: jh.psum_scatter(X[:2]), r"dimension 0 of shape \(2, 6\) must equal the 3 ranks"),
        (lambda: jh.psum_scatter(X[:, :4], scatter_dimension=1, tiled=True), "must be a multiple of the 3 ranks"),
        (lambda: jh.all_to_all(X, "world", 1, 0), r"dimension 1 of shape \(3, 6\) must equal the 3 ranks"),
        (lambda: jh.all_to_all(X, "world", 2, 0), "split_axis 2 is not a dimension"),
        (lambda: jh.all_gather(X, axis=4), "axis 4 is not a dimension of an array with 3"),
        (lambda: jh.all_gather(X, lengths=(1, 2)), "lengths .* each of the 3 ranks"),
        (lambda: jh.all_gather(X, lengths=(1, 2, -1)), "zero or more"),
        (lambda: jh.all_gather(X, lengths=(1, 2, 5)), r"shape \(3, 6\); with lengths \(1, 2, 5\)"),
        (lambda: jh.all_gather(X, lengths=(3, 2, 5), axis=1), "axis=1 does not go with"),
        (lambda: jh.scatter(X[:2]), "leading dimension .* must be 3, one row for each rank"),
        (lambda: jh.scatter(X, lengths=(1, 1, 2)), "must be 4, the sum of lengths"),
        (lambda: jh.psum("text"), "str 'text' is not an array"),
        (lambda: jh.psum(X, 7), "name is a string"),
        (lambda: jh.psum(X, "nobody"), "nobody"),
        (lambda: jh.send(X, 1, tag=-1), r"tag -1 is not in 0 to 4294967295"),
        (lambda: jh.send(X, 1, tag=2**40), "tag 1099511627776 is not in"),
        (lambda: jh.recv(X, 1, tag=None), "tag must be a Python integer"),
        (lambda: jh.send(X, 3), "dest 3 is not a rank"),
        (lambda: jh.send(X, 0), "dest 0 of 'world' is this rank itself"),
        (lambda: jh.recv(X, 0), "source 0 of 'world' is this rank itself"),
        (lambda: jh.recv(jax.random.key(0), 1), "random keys"),
        (lambda: jh.ragged_all_to_all(X, X[:, :2], X, X, X, X), "must agree in dtype"),
        (lambda: jh.ragged_all_to_all(X, X, *[jnp.arange(2)] * 4), r"integers of shape \(3,\)"),
    ],
)  # fmt: skip
def test_refusals(call, match):
    with pytest.raises(BadArgumentError, match=match):
        call()


def test_tags_and_results():
    """C089: the largest tag works; a message of a sub-byte type is received in its dtype."""
    out = jax.eval_shape(lambda: jh.recv([jax.ShapeDtypeStruct((2,), jnp.int4), jnp.zeros(3)], 1, tag=2**32 - 1))
    assert [(o.shape, o.dtype) for o in out] == [((2,), jnp.int4), ((3,), jnp.float32)]


def test_self_pairs_are_copies():
    """C084: a permutation may name a rank as its own source."""
    assert perm_of(lambda x: jh.ppermute(x, "world", [(0, 0), (1, 1)])) == ((0, 0), (1, 1))


def test_weak_types_are_kept():
    """A reduced Python number promotes like the number."""
    assert jax.eval_shape(lambda x: x * jh.psum(2.0), jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16


def test_numpy_root():
    """Indices may be numpy integers."""
    (equation,) = jax.make_jaxpr(lambda x: jh.broadcast(x, root=np.int64(2)))(X).eqns
    assert equation.params["root"] == 2 and type(equation.params["root"]) is int
