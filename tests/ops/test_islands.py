# SPDX-License-Identifier: Apache-2.0
"""Reductions over ``("d", "islands")``: values and derivatives against ``jax.lax`` over a mesh of islands, and what is refused.

Four local devices play two islands of two: what crosses is reduced among the devices at the same place of each.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import over
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jhetcc.ops as jh
from jhetcc.errors import BadArgumentError

ISLANDS = ("d", "islands")
BOTH = ("i", "d")


def mesh_of(*shape, names=BOTH, devices=None):
    return Mesh(np.array(devices or jax.devices()[: int(np.prod(shape))]).reshape(shape), names)


@pytest.fixture
def two_by_two(world):
    world.add("world", 4, islands=(2, 2))
    world.add("islands", 2, 1)
    return world


def run(f, *everything, vma=False, mesh=None):
    """``f`` of each device's row of everything."""
    mesh = mesh or mesh_of(2, 2)

    def body(*rows):
        return jax.tree.map(lambda y: y[None], f(*jax.tree.map(lambda x: x[0], rows)))

    spec = P(mesh.axis_names)
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=vma))(*everything)


def iota(*shape, dtype=np.float32):
    return (np.arange(4 * int(np.prod(shape))).reshape(4, *shape) * 7 % 23 - 9).astype(dtype)


def check(mine, theirs, *everything, vma=False):
    """Both programs give the same bits and dtypes."""
    got, want = run(mine, *everything, vma=vma), run(theirs, *everything, vma=vma)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def product(x, axis):
    return lax.all_gather(x, axis).prod(0, dtype=x.dtype)


PAIRS = {
    "psum": (jh.psum, lax.psum),
    "psum_invariant": (jh.psum_invariant, lax.psum),
    "pmean": (jh.pmean, lax.pmean),
    "pmax": (jh.pmax, lax.pmax),
    "pmin": (jh.pmin, lax.pmin),
    "pprod": (jh.pprod, lambda x, axes: functools.reduce(product, axes, x)),
}


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2,), (3, 5), (4, 4), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_sizes(two_by_two, name, shape):
    """Every size, whether local devices divide it or not."""
    mine, theirs = PAIRS[name]
    check(lambda x: mine(x, ISLANDS), lambda x: theirs(x, BOTH), iota(*shape))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "float16", "bfloat16", "complex64"])
@pytest.mark.parametrize("name", ["psum", "pmean", "pmax", "pprod"])
def test_dtypes(two_by_two, name, dtype):
    """Results keep the dtype; bits are lax's where the numbers are small."""
    if name == "pmax" and dtype == "complex64":  # which have no order
        name = "psum"
    mine, theirs = PAIRS[name]
    values = (iota(5) % 3).astype(dtype)
    check(lambda x: mine(x, ISLANDS), lambda x: theirs(x, BOTH), values)


def test_bool(two_by_two):
    """bool counts as int32 in sums and products, and stays bool in pmax."""
    values = iota(5) > 2
    check(lambda x: jh.psum(x, ISLANDS), lambda x: lax.psum(x.astype(jnp.int32), BOTH), values)
    check(lambda x: jh.pprod(x, ISLANDS), lambda x: lax.all_gather(x, BOTH).prod(0), values)
    check(lambda x: jh.pmax(x, ISLANDS), lambda x: lax.all_gather(x, BOTH).any(0), values)


def test_special_values(two_by_two):
    """NaN of any device wins, and zeros are ordered by sign."""
    values = np.zeros((4, 6), np.float32)
    values[1, 0] = values[2, 3] = np.nan
    values[:, 1] = -0.0
    values[3, 1] = 0.0
    got = np.asarray(run(lambda x: (jh.pmax(x, ISLANDS), jh.pmin(x, ISLANDS)), values))
    for bits in got:
        assert np.isnan(bits[:, [0, 3]]).all() and not np.isnan(bits[:, [1, 2, 4, 5]]).any()
    np.testing.assert_array_equal(np.signbit(got[:, :, 1]), [[False] * 4, [True] * 4])


def test_trees_are_one_operation(two_by_two):
    """One operation for each dtype, of a shard: half of the elements cross from each device."""
    tree = {"a": iota(3), "b": iota(2, 2), "c": iota(4, dtype=np.int32)}
    check(lambda t: jh.psum(t, ISLANDS), lambda t: lax.psum(t, BOTH), tree)
    assert sorted(set(two_by_two.texts)) == ["psum(f32[4], columns=2)", "psum(i32[2], columns=2)"]


def test_what_is_lowered(two_by_two):
    """One psum_scatter of XLA, one operation on the wire of the shard, one all_gather."""
    mesh = mesh_of(2, 2)
    f = jax.shard_map(lambda x: jh.psum(x, ISLANDS), mesh=mesh, in_specs=P(BOTH), out_specs=P(BOTH), check_vma=False)
    jaxpr = str(jax.make_jaxpr(f)(np.ones((4, 6), np.float32)))
    assert jaxpr.count("reduce_scatter[") == jaxpr.count("all_gather[") == jaxpr.count("jhetcc_psum[") == 1
    assert "f32[3] = jhetcc_psum[" in jaxpr.replace("{V:d}", "") and "psum_invariant" not in jaxpr


def test_mean_counts_contributors(two_by_two):
    """pmean divides by all, also where it leaves a mesh axis out; sizes and indexes agree."""
    sizes = []

    def f(x):
        sizes.append((jh.axis_size(ISLANDS), jh.psum(1, ISLANDS)))
        return jh.axis_index(ISLANDS)

    got = run(f, iota(1))
    assert sizes == [(4, 4)]
    np.testing.assert_array_equal(got, [0, 2, 1, 3])  # the local axis counts slowest


def weighted(psum):
    return lambda x: (psum(x * jnp.arange(1.0, 4.0)) ** 2).sum()


@pytest.mark.parametrize("vma", [False, True])
def test_gradients(two_by_two, vma):
    """The transpose of psum is psum: the gradient of all ranks' losses."""
    x = iota(3)
    mine, theirs = weighted(lambda y: jh.psum(y, ISLANDS)), weighted(lambda y: lax.psum(y, BOTH))
    got = run(jax.grad(mine), x, vma=vma)
    np.testing.assert_array_equal(got, run(jax.grad(theirs), x))
    mean, their_mean = weighted(lambda y: jh.pmean(y, ISLANDS)), weighted(lambda y: lax.pmean(y, BOTH))
    np.testing.assert_array_equal(run(jax.grad(mean), x, vma=vma), run(jax.grad(their_mean), x))
    tangents = run(lambda x, t: jax.jvp(mine, (x,), (t,))[1], x, 2 * x, vma=vma)
    np.testing.assert_array_equal(tangents, run(lambda x, t: jax.jvp(theirs, (x,), (t,))[1], x, 2 * x))


@pytest.mark.parametrize("vma", [False, True])
def test_invariant_counts_once(two_by_two, vma):
    """The cotangent of psum_invariant is handed on unchanged."""
    got = run(jax.grad(weighted(lambda y: jh.psum_invariant(y, ISLANDS))), iota(3), vma=vma)
    weights = np.arange(1.0, 4.0, dtype=np.float32)
    want = 2 * (iota(3) * weights).sum(0) * weights
    np.testing.assert_array_equal(got, np.broadcast_to(want, (4, 3)))
    if vma:  # equal on all devices, and known to be
        f = jax.shard_map(
            lambda x: jh.psum_invariant(x, ISLANDS),
            mesh=mesh_of(2, 2),
            in_specs=P(BOTH),
            out_specs=P("i"),
            check_vma=True,
        )
        np.testing.assert_array_equal(jax.jit(f)(iota(3).reshape(-1)), np.tile(iota(3).sum(0), 2))


def test_no_derivative(two_by_two):
    """pmax, pmin and pprod refuse, as they do elsewhere."""
    for f in (jh.pmax, jh.pmin, jh.pprod):
        with pytest.raises(BadArgumentError, match="not differentiable"):
            run(jax.grad(weighted(lambda y, f=f: f(y, ISLANDS))), iota(3))


@pytest.mark.parametrize("name", PAIRS)
def test_vmap_and_scan(two_by_two, name):
    """Under vmap, with an axis of vmap among the names, and in a loop."""
    mine, theirs = PAIRS[name]
    check(jax.vmap(lambda x: mine(x, ISLANDS)), jax.vmap(lambda x: theirs(x, BOTH)), iota(3, 5))
    if name != "psum_invariant":
        v = {"axis_name": "v"}
        check(
            jax.vmap(lambda x: mine(x, ("v", *ISLANDS)), **v),
            jax.vmap(lambda x: theirs(x, ("v", *BOTH)), **v),
            iota(3, 5) % 3,
        )

    def loop(reduced):
        return lambda x: lax.scan(lambda c, y: (reduced(c + y).astype(c.dtype), reduced(y)), x[0], x)

    check(loop(lambda x: mine(x % 5, ISLANDS)), loop(lambda x: theirs(x % 5, BOTH)), iota(4, 3, dtype=np.int32))


def test_two_local_axes(world):
    """Axes in any order, and some of them only: devices at the same place of each island meet."""
    world.add("world", 4, islands=(4,))
    world.add("islands", 1)
    mesh = mesh_of(2, 2, names=("a", "b"))
    for axes in (("a", "b"), ("b", "a"), ("a",), ("b",)):
        got = run(lambda x, axes=axes: jh.psum(x, (*axes, "islands")), iota(5), mesh=mesh)
        np.testing.assert_array_equal(got, run(lambda x, axes=axes: lax.psum(x, axes), iota(5), mesh=mesh))
        got = run(lambda x, axes=axes: jh.pmean(x, (*axes, "islands")), iota(4), mesh=mesh)
        np.testing.assert_array_equal(got, run(lambda x, axes=axes: lax.pmean(x, axes), iota(4), mesh=mesh))
    thin = mesh_of(4, 1, names=("a", "b"))
    np.testing.assert_array_equal(run(lambda x: jh.psum(x, ("b", "islands")), iota(2), mesh=thin), iota(2))
    assert set(world.texts) == {"psum(f32[2], columns=4)", "psum(f32[3], columns=4)", "psum(f32[1], columns=4)"}


def refused(f, *everything, match, mesh, **keys):
    with pytest.raises(BadArgumentError, match=match):
        run(f, *everything, mesh=mesh, **keys)


def test_refusals(world):
    """Unequal islands, on every one of them; a mesh in another order; programs for other islands; other functions."""
    world.add("islands", 2, 1)
    world.add("world", 3, 2)
    for n in (2, 1):
        mesh, x = over(n), iota(3)[:n]
        for f in (jh.psum, jh.pmean, jh.pprod):
            refused(lambda x, f=f: f(x, ISLANDS), x, match=r"equal size.* 2, 1 ranks.*'world'", mesh=mesh)
    world.add("world", 4, 2)
    mesh, x = over(2), iota(3)[:2]
    swapped = mesh_of(2, names=("d",), devices=jax.devices()[1::-1])
    refused(lambda x: jh.psum(x, ISLANDS), x, match="in the order of their ranks", mesh=swapped)
    refused(lambda x: jh.psum(x, ("d", "world")), x, match="mixes local mesh axes with 'world'", mesh=mesh)
    refused(lambda x: jh.all_gather(x, ISLANDS), x, match="taken by reductions to all", mesh=mesh)
    refused(lambda x: jh.psum(x, "islands"), x, match="one device", mesh=mesh)
    refused(lambda x: jh.psum(x, ISLANDS), iota(3)[:3], match="exactly this island's 2 member", mesh=over(3))
    inner = jax.vmap(lambda y: jh.psum_invariant(y, ("v", *ISLANDS)), axis_name="v")
    refused(inner, x, match="axes of vmap", mesh=mesh)
    traced = jax.jit(
        jax.shard_map(lambda x: jh.psum(x, ISLANDS), mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    ).trace(x)
    world.add("world", 4, 2, islands=(1, 1, 2))
    with pytest.raises(BadArgumentError, match=r"traced for islands of 2 ranks.*1, 1, 2: retrace"):
        traced.lower()


def test_order_of_axes(two_by_two):
    """A shard's number follows from its device, however the axes are written: islands that write them differently agree."""

    def text(axes):
        f = jax.shard_map(
            lambda x: jh.psum(x, (*axes, "islands")), mesh=mesh_of(2, 2), in_specs=P(BOTH), out_specs=P(BOTH)
        )
        return str(jax.make_jaxpr(f)(iota(4)))

    assert text(("i", "d")) == text(("d", "i")) and text("d") != text("i")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_one_rounding_inside(world, dtype):
    """16-bit floats of local devices are added up in float32: small ones are not lost one by one."""
    world.add("world", 4, islands=(4,))
    world.add("islands", 1)
    large = {"bfloat16": 256.0, "float16": 2048.0}[dtype]
    x = np.array([large, 1, 1, 1]).reshape(4, 1).astype(dtype)
    got = run(lambda x: (jh.psum(x, ISLANDS), jh.pprod(x, ISLANDS)), x, mesh=over(4))
    assert got[0].dtype == got[1].dtype == dtype
    np.testing.assert_array_equal(np.asarray(got[0], np.float32), np.full((4, 1), large + 4))
    np.testing.assert_array_equal(np.asarray(got[1], np.float32), np.full((4, 1), large))
