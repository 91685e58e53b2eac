# SPDX-License-Identifier: Apache-2.0
"""Cases of ``("d", "islands")`` on real islands: every device of each contributes, shards cross, all get the same bits."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from per_rank import iota, only, same_everywhere

import jhetcc
import jhetcc.ops as jh
from jhetcc.errors import BadArgumentError

AXES = ("d", "islands")
EQUAL = np.testing.assert_array_equal
equal = only(lambda comm: len(set(comm.island_sizes)) == 1, "islands of equal size")


def mapped(comm, f, axes=("d",), shape=None, vma=False):
    """``f`` on each local device's row, compiled."""
    mesh = Mesh(np.array(comm.devices).reshape(shape or (-1,)), axes)

    def body(*rows):
        return jax.tree.map(lambda y: y[None], f(*jax.tree.map(lambda x: x[0], rows)))

    program = jhetcc.jit(jax.shard_map(body, mesh=mesh, in_specs=P(axes), out_specs=P(axes), check_vma=vma))

    def call(*everything):
        local = jax.tree.map(lambda a: a[np.array(comm.local_ranks)], everything)
        return jax.tree.map(np.asarray, program(*jax.device_put(local, NamedSharding(mesh, P(axes)))))

    return call


def check(comm, got, want):
    """Every device has what is wanted, and the same bits."""
    EQUAL(got, np.broadcast_to(want, (len(comm.local_ranks), *np.shape(want))))
    assert got.dtype == np.asarray(want).dtype
    if got.size:
        same_everywhere(comm, got)


@equal
def case_sizes(comm):
    """0-d, zero-size, smaller than the island, not divisible, large; every reduction."""
    for shape in ((), (0,), (1,), (3, 5), (4, 4), (70_001,)):
        x = iota(comm, *shape) % 97
        got = mapped(comm, _all)(x)
        check(comm, got["psum"], x.sum(0, dtype=np.float32))
        check(comm, got["psum_invariant"], x.sum(0, dtype=np.float32))
        check(comm, got["pmean"], x.sum(0, dtype=np.float32) / np.float32(comm.size))
        check(comm, got["pmax"], x.max(0))
        check(comm, got["pmin"], x.min(0))
        check(comm, got["pprod"], (x % 3 + 1).prod(0, dtype=np.float32))


def _all(y):
    found = {f.__name__: f(y, AXES) for f in (jh.psum, jh.psum_invariant, jh.pmean, jh.pmax, jh.pmin)}
    return found | {"pprod": jh.pprod(y % 3 + 1, AXES)}


@equal
def case_rounding(comm):
    """Where rounding depends on the order, all ranks still have the same bits."""
    x = np.random.default_rng(7).standard_normal((comm.size, 5001)).astype(np.float32)
    for dtype in (jnp.float32, jnp.bfloat16):
        got = mapped(comm, lambda y, dtype=dtype: jh.psum(y.astype(dtype), AXES))(x)
        same_everywhere(comm, got)
        np.testing.assert_allclose(got[0].astype(np.float32), x.sum(0), rtol=0.05, atol=0.1)


@equal
def case_trees_and_dtypes(comm):
    """Trees of several dtypes."""
    kinds = (np.float32, np.int32, np.complex64, np.int8, np.bool_, np.uint32)
    tree = {kind.__name__: (iota(comm, 5) % 3).astype(kind) for kind in kinds}
    got = mapped(comm, lambda t: jh.psum(t, AXES))(tree)
    for kind in kinds:
        whole = np.int32 if kind is np.bool_ else kind
        check(comm, got[kind.__name__], tree[kind.__name__].sum(0, dtype=whole))


@equal
def case_derivatives_and_loops(comm):
    """The transpose of psum is psum, that of psum_invariant hands on; vmap, scan."""
    x, weights = iota(comm, 3) % 11, np.arange(1.0, 4.0, dtype=np.float32)

    def loss(psum):
        return lambda y: (psum(y * weights, AXES) ** 2).sum()

    once = 2 * (x * weights).sum(0) * weights
    for vma in (False, True):
        check(comm, mapped(comm, jax.grad(loss(jh.psum)), vma=vma)(x), comm.size * once)
    check(comm, mapped(comm, jax.grad(loss(jh.psum_invariant)))(x), once)
    rows = iota(comm, 4, 3) % 5
    check(comm, mapped(comm, jax.vmap(lambda y: jh.psum(y, AXES)))(rows), rows.sum(0))

    def loop(y):
        return jax.lax.scan(lambda c, row: (c + jh.psum(row, AXES), jh.pmax(row, AXES)), jnp.zeros(3), y)

    total, largest = mapped(comm, loop)(rows)
    check(comm, total, rows.sum((0, 1)))
    check(comm, largest, rows.max(0))


@equal
def case_share(comm):
    """Each device's operation has its share of the elements, and no byte crosses more often than it must."""
    count, local = 600_000, comm.island_sizes[0]
    islands, x = comm.size // local, iota(comm, 600_000) % 7
    before = comm.status()["counters"]["bytes_moved"]
    got = mapped(comm, lambda y: jh.psum(y, AXES))(x)
    moved = comm.status()["counters"]["bytes_moved"] - before  # of all local devices, sent and received
    check(comm, got, x.sum(0))
    assert moved == 2 * 2 * (islands - 1) * 4 * count // islands
    operation = f"psum(f32[{count // local}]" + (f", columns={local})" if local > 1 else ")")
    assert f"each of {local} columns" in comm.explain(operation) or local == 1
    assert comm.status()["counters"]["operations_failed"] == 0


@equal
def case_sizes_and_indexes(comm):
    """axis_size counts contributors; axis_index numbers them, the local axis slowest."""
    local, islands = comm.island_sizes[0], comm.size // comm.island_sizes[0]
    got = mapped(comm, lambda y: jh.axis_index(AXES) + 0 * y.astype(jnp.int32))(iota(comm, 1))
    wanted = [rank % local * islands + rank // local for rank in comm.local_ranks]
    EQUAL(got[:, 0], wanted)
    sizes = []
    mapped(comm, lambda y: (sizes.append(jh.axis_size(AXES)), y)[1])(iota(comm, 1))
    assert set(sizes) == {comm.size}


@only(lambda comm: set(comm.island_sizes) == {4}, "islands of four")
def case_two_local_axes(comm):
    """Two axes of the mesh, all or one of them."""
    x = iota(comm, 7) % 13
    for axes in (("a", "b", "islands"), ("b", "a", "islands")):
        check(comm, mapped(comm, lambda y, axes=axes: jh.psum(y, axes), ("a", "b"), (2, 2))(x), x.sum(0))
    grid = x.reshape(-1, 2, 2, 7)
    got = mapped(comm, lambda y: jh.pmean(y, ("a", "islands")), ("a", "b"), (2, 2))(x)
    EQUAL(got, np.tile(grid.mean((0, 1)), (2, 1)))


@equal
def case_order(comm):
    """Mixed with other operations of the world, in program order, many times."""

    def f(y):
        for _ in range(3):
            y = jh.psum(y, AXES) % 5
            y = jh.psum(y + jh.axis_index("world"), "world") % 5
        return y

    x, ranks = iota(comm, 4) % 3, np.arange(comm.size)[:, None]
    program, want = mapped(comm, f), x
    for _ in range(3):
        want = np.broadcast_to(want.sum(0) % 5, x.shape)
        want = np.broadcast_to((want + ranks).sum(0) % 5, x.shape)
    for _ in range(10):
        EQUAL(program(x), want[np.array(comm.local_ranks)])


@only(lambda comm: len(set(comm.island_sizes)) > 1, "islands of different sizes")
def case_unequal(comm):
    """Refused at trace time, on every island alike."""
    for f in (jh.psum, jh.pmean, jh.pmax):
        try:
            mapped(comm, functools.partial(f, axis_name=AXES))(iota(comm, 2))
        except BadArgumentError as error:
            assert error.code == "unequal_islands" and "'world'" in str(error)
        else:
            raise AssertionError("unequal islands were accepted")
