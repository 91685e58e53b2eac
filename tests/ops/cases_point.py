# SPDX-License-Identifier: Apache-2.0
"""Cases: messages between two ranks, and communicators that are parts of the world. One device a process where said."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from per_rank import everyone, here, iota, only, per_rank, processes

import jhetcc.ops as jh
from jhetcc.errors import BadArgumentError, Error

EQUAL = np.testing.assert_array_equal
one_rank_each = only(lambda comm: comm.size == processes(comm) >= 2, "one rank a process, two or more")


def me(comm):
    return comm.local_ranks[0]


@only(lambda comm: comm.size == processes(comm), "peers are static: local ranks of one program would name the same one")
def case_ring(comm):
    """sendrecv around a ring, forward and its gradient; a rank may be its own peer."""
    n, x = comm.size, iota(comm, 5)
    to, from_ = (me(comm) + 1) % n, (me(comm) - 1) % n
    EQUAL(per_rank(comm, lambda y: jh.sendrecv(y, to, from_), x), here(comm, np.roll(x, 1, 0)))
    ct = iota(comm, 5) + 7
    back = per_rank(comm, lambda y, c: jax.vjp(lambda z: jh.sendrecv(z, to, from_), y)[1](c)[0], x, ct)
    EQUAL(back, here(comm, np.roll(ct, -1, 0)))


@one_rank_each
def case_messages(comm):
    """C024, C088: many messages to one peer in one program, each in its own buffer; dtypes and trees."""
    rounds, count = 3, 7
    for k in range(rounds):
        sent = [np.arange(100_000, dtype=np.float32) + 1e6 * i + k for i in range(count)]
        if me(comm) == 0:
            per_rank(
                comm,
                lambda _, s=sent, k=k: (jh.send([jnp.asarray(v) for v in s], 1, tag=k), jnp.zeros(()))[1],
                iota(comm, 1),
            )
        elif me(comm) == 1:
            like = [jax.ShapeDtypeStruct((100_000,), np.float32)] * count
            got = per_rank(comm, lambda _, like=like, k=k: jh.recv(like, 0, tag=k), iota(comm, 1))
            for value, want in zip(got, sent, strict=True):
                EQUAL(value[0], want)
    for name in ("bfloat16", "int4", "float8_e5m2", "bool"):
        kind = np.dtype(getattr(ml_dtypes, name, None) or name)
        value = (np.arange(6) % 2).astype(np.float32).astype(kind)
        if me(comm) == 0:
            jh.send(jnp.asarray(value), 1)
        elif me(comm) == 1:
            got = np.asarray(jh.recv(jax.ShapeDtypeStruct((6,), kind), 0))
            assert got.dtype == kind
            EQUAL(got.astype(np.float32), value.astype(np.float32))


@one_rank_each
def case_opposite_orders(comm):
    """C030: rank 0 sends then receives, rank 1 receives then sends, without data dependence, many times."""
    if me(comm) > 1:
        return
    other = 1 - me(comm)
    like = jax.ShapeDtypeStruct((16,), np.float32)

    def first(y):
        jh.send(y, other)
        return jh.recv(like, other)

    def second(y):
        got = jh.recv(like, other)
        jh.send(y, other)
        return got

    x = iota(comm, 16)
    program = jax.jit(first if me(comm) == 0 else second)
    for k in range(50):
        EQUAL(np.asarray(program(x[me(comm)] + k)), x[other] + k)


@one_rank_each
def case_large_tags_and_sizes(comm):
    """C089, C087: tags up to 2^32-1, and one behaviour for all sizes."""
    if me(comm) > 1:
        return
    other = 1 - me(comm)
    for tag in (1, 2**15, 2**31 - 1, 2**32 - 1):
        got = jh.sendrecv(jnp.arange(3) + me(comm), other, other, tag=tag)
        EQUAL(np.asarray(got), np.arange(3) + other)
    for tag in (-1, 2**40):
        try:
            jh.send(jnp.zeros(1), other, tag=tag)
        except BadArgumentError as error:
            assert "4294967295" in str(error)
        else:
            raise AssertionError(f"tag {tag} was accepted")
    for power in range(0, 21, 2):
        x = np.arange(1 << power, dtype=np.uint8 if power > 18 else np.int32)
        EQUAL(np.asarray(jh.sendrecv(jnp.asarray(x), other, other)), x)


@one_rank_each
def case_empty_message(comm):
    """C010: a message of nothing is a message."""
    if me(comm) == 0:
        jh.send(jnp.zeros((0, 3)), 1)
    elif me(comm) == 1:
        assert jh.recv(jax.ShapeDtypeStruct((0, 3), jnp.float32), 0).shape == (0, 3)


@one_rank_each
def case_self_message(comm):
    """C084: to send to oneself alone is refused by name; nothing was sent."""
    try:
        jh.send(jnp.zeros(1), me(comm))
    except BadArgumentError as error:
        assert "itself" in str(error)
    else:
        raise AssertionError("a message to oneself was accepted")


@only(lambda comm: comm.size == 4 and processes(comm) == 2, "two processes of two devices")
def case_one_local_rank_sends(comm):
    """Under shard_map a branch on axis_index picks the local rank that sends, and the one that receives."""

    def f(y):
        index = jh.axis_index()

        def talk(z):
            if 0 in comm.local_ranks:
                return lax.cond(index == 0, lambda v: (jh.send(v, 2), v)[1], lambda v: v, z)
            return lax.cond(index == 2, lambda v: jh.recv(v, 0), lambda v: v, z)

        return talk(y)

    x = iota(comm, 4)
    want = x.copy()
    want[2] = x[0]
    EQUAL(per_rank(comm, f, x), here(comm, want))


# Parts of the world


@one_rank_each
def case_split_numbering(comm):
    """C079, C050, C078: ranks are numbered within the part, everywhere; who is out may not call."""
    n, last = comm.size, comm.size - 1
    inside = me(comm) >= n - 2  # the last two ranks
    part = comm.split(0 if inside else -1, name="tail")
    x = iota(comm, 3)
    if not inside:
        assert part is None
        for call in (lambda: jh.broadcast(jnp.zeros(1), "tail"), lambda: jh.psum(jnp.zeros(1), "tail")):
            try:
                call()
            except Error:
                continue
            raise AssertionError("an operation of strangers was accepted")
        jh.barrier()
        return
    assert part.size == 2 and part.local_ranks == (me(comm) - (n - 2),)
    mine = jnp.asarray(x[me(comm)])
    EQUAL(np.asarray(jh.broadcast(mine, "tail", 0)), x[n - 2])
    EQUAL(np.asarray(jh.ppermute(mine, "tail", [(0, 1), (1, 0)])), x[last if me(comm) == n - 2 else n - 2])
    EQUAL(np.asarray(jh.sendrecv(mine, 1 - part.local_ranks[0], 1 - part.local_ranks[0], axis_name="tail")),
          x[last if me(comm) == n - 2 else n - 2])  # fmt: skip
    grad = jax.grad(lambda y: jh.broadcast(y, "tail", 0).sum())(mine)
    EQUAL(np.asarray(grad), np.full(3, 2.0 if part.local_ranks == (0,) else 0.0, np.float32))
    try:
        jh.broadcast(mine, "tail", 3)
    except BadArgumentError as error:
        assert "0 to 1" in str(error)
    else:
        raise AssertionError("a world number was taken for a number of the part")
    jh.barrier()
    part.close()


@only(lambda comm: comm.size == processes(comm) == 3, "three processes")
def case_overlapping_parts(comm):
    """C080: rank 1 is in both parts; sums and barriers in the same order."""
    left = comm.split(0 if me(comm) < 2 else -1, name="left")
    right = comm.split(0 if me(comm) > 0 else -1, name="right")
    value = jnp.asarray(np.float32(me(comm)))
    if left is not None:
        assert float(jh.psum(value, "left")) == 1
        jh.barrier("left")
    if right is not None:
        assert float(jh.psum(value, "right")) == 3
        jh.barrier("right")
    jh.barrier()


def case_islands(comm):
    """One contribution a process on the axis "islands", with a local axis first where there is one of size one."""
    index, size = int(jh.axis_index("islands")), jh.axis_size("islands")
    total = jh.psum(jnp.float32(index + 1), "islands")
    assert float(total) == size * (size + 1) / 2
    if len(comm.devices) > 1:
        for call in (
            lambda: per_rank(comm, lambda y: jh.psum(y, "islands"), iota(comm, 2)),
            lambda: jax.jit(jh.psum)(here(comm, iota(comm, 2))[0]),
        ):
            try:
                call()
            except BadArgumentError as error:
                assert "shard_map" in str(error)
            else:
                raise AssertionError("an ambiguous program was accepted")
    EQUAL(per_rank(comm, jh.psum, iota(comm, 2)), everyone(comm, iota(comm, 2).sum(0)))
