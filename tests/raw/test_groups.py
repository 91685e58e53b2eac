# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks, parts of the world, and several communicators at once, by raw calls."""

import ml_dtypes
import numpy as np
import pytest
import raw_cases

from jhetcc.errors import BadArgumentError, Error

WIRES = {"shm": {}, "shared segments": {"JHETCC_CMA": "off"}, "tcp": {"JHETCC_TRANSPORT": "tcp"}}


def refused(call, *arguments, **keys):
    try:
        call(*arguments, **keys)
    except Error as error:
        return error
    raise AssertionError(f"{call.__name__} was accepted")


# Messages


def case_sizes_and_dtypes(comm):
    kinds = [np.dtype(one) for one in ("?", "i1", "u2", "i4", "f8", "c16", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)]
    for dtype in kinds:
        edge = raw_cases.INLINE_BYTES // dtype.itemsize
        for count in (0, 1, 7, edge - 1, edge, edge + 1, 300_001):
            data = raw_cases.contributions(comm, (count,), dtype)
            if comm.rank == 0:
                kept = data[0].copy()
                comm.send(data[0], 1)
                assert kept.tobytes() == data[0].tobytes()
            elif comm.rank == 1:
                got = comm.recv((count,), dtype, 0)
                assert got.dtype == dtype and got.tobytes() == data[0].tobytes(), (dtype, count)
            got = comm.sendrecv(data[comm.rank], (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size)
            assert got.tobytes() == data[comm.rank - 1].tobytes(), (dtype, count)


def case_tags(comm):
    """C086, C088, C089: messages meet by tag and order; a late tag never overtakes; tags up to 32 bits."""
    tags = (0, 1, 2**15, 2**31 - 1, 2**32 - 1)
    for round_ in range(20):
        for tag in tags:
            value = np.array([round_, tag % 1000, comm.rank])
            if comm.rank == 0:
                comm.send(value, 1, tag=tag)
            elif comm.rank == 1:
                assert comm.recv((3,), np.int64, 0, tag=tag).tolist() == [round_, tag % 1000, 0]
    if comm.rank < 2:
        for tag in (-1, 2**40):
            assert "tag" in str(refused(comm.send, np.zeros(1), 1 - comm.rank, tag=tag))
        with_self = refused(comm.send, np.zeros(1), comm.rank)
        assert isinstance(with_self, BadArgumentError)


def case_opposite(comm):
    """Rank 0 sends then receives, rank 1 receives then sends; and both exchange at once; both in every size."""
    for count in (1, 5000, 400_000):
        data = raw_cases.contributions(comm, (count,), np.dtype(np.float32))
        other = 1 - comm.rank
        for _ in range(10):
            if comm.rank == 0:
                comm.send(data[0], 1)
                got = comm.recv((count,), np.float32, 1)
            else:
                got = comm.recv((count,), np.float32, 0)
                comm.send(data[1], 0)
            assert got.tobytes() == data[other].tobytes()
            out = np.empty(count, np.float32)
            assert comm.sendrecv(data[comm.rank], other, other, out=out) is out
            assert out.tobytes() == data[other].tobytes()


def case_out_and_views(comm):
    """C008: views are their logical values; out must fit, and results go there."""
    base = np.arange(24.0).reshape(4, 6) + 100 * comm.rank
    other = 1 - comm.rank
    theirs = np.arange(24.0).reshape(4, 6) + 100 * other
    for cut in (
        lambda a: a[:, 0],
        lambda a: a[::2],
        lambda a: a[::-1],
        lambda a: a.T,
        lambda a: np.broadcast_to(a[:1], (3, 6)),
    ):
        assert np.array_equal(comm.sendrecv(cut(base), other, other), cut(theirs))
        assert np.array_equal(comm.all_reduce(cut(base)), cut(base) + cut(theirs))
        assert np.array_equal(comm.broadcast(cut(base), root=1), cut(base if comm.rank else theirs))
    for wrong in (np.empty((6, 4)), np.empty((4, 6), np.float32), np.empty((6, 4)).T, [0.0] * 24):
        assert "out" in str(refused(comm.all_reduce, base, out=wrong))
    frozen = np.empty((4, 6))
    frozen.flags.writeable = False
    assert "read-only" in str(refused(comm.all_reduce, base, out=frozen))
    assert "stream" in str(refused(comm.all_reduce, base, stream=1))
    for op in ("mean", "product"):
        assert op in str(refused(comm.all_reduce, np.arange(3), op))
    assert "root" in str(refused(comm.broadcast, base, root=2))
    comm.barrier()


@pytest.mark.parametrize("wire", WIRES)
def test_messages(pools, wire):
    pools(1, 1).run(case_sizes_and_dtypes, options=WIRES[wire])
    pools(1, 1).run(case_opposite, options=WIRES[wire])
    pools(1, 1).run(case_tags, options=WIRES[wire])


def test_messages_among_four(pools):
    pools(1, 1, 1, 1).run(case_sizes_and_dtypes)
    pools(1, 1, 1, 1).run(case_tags)


def test_views_and_results(pools):
    pools(1, 1).run(case_out_and_views)


# Parts of the world


def case_split(comm):
    """Colors, keys, ranks that stay out, parts of parts; numbers within a part (C079)."""
    me, every = comm.rank, np.arange(comm.size) * 10
    halves = comm.split(me % 2, key=-me, name=f"half{me % 2}")
    members = [rank for rank in reversed(range(comm.size)) if rank % 2 == me % 2]
    assert halves.world_ranks == tuple(members) and halves.rank == members.index(me)
    assert halves.all_gather(np.array(me * 10)).tolist() == [every[rank] for rank in members]
    assert halves.broadcast(np.array(me), root=0) == members[0]
    assert "root=" in str(refused(halves.broadcast, np.array(me), root=comm.size - 1))
    alone = halves.split(0 if halves.rank == 0 else -1, name="first")
    assert (alone is None) == (halves.rank != 0)
    if alone is not None:
        assert alone.size == 1 and alone.all_reduce(np.array(5)) == 5
        alone.close()
    halves.close()
    assert "closed" in str(refused(halves.all_reduce, np.zeros(1)))
    assert comm.split(-1) is None
    assert comm.all_reduce(np.array(1)) == comm.size


def case_several_at_once(comm):
    """C080: overlapping parts in use by turns; the same name of part again after close."""
    me, n = comm.rank, comm.size
    for _ in range(3):
        left = comm.split(0 if me < n - 1 else -1, name="left")
        right = comm.split(0 if me > 0 else -1, name="right")
        for k in range(20):
            assert comm.all_reduce(np.array(me + k)) == n * (n - 1) // 2 + n * k
            if left is not None:
                assert left.all_reduce(np.full(3000, k)).tolist() == [k * (n - 1)] * 3000
            if right is not None:
                assert right.all_gather(np.array(me)).tolist() == list(range(1, n))
                if right.rank == 0:
                    right.send(np.array(k), n - 2, tag=7)
                elif right.rank == n - 2:
                    assert right.recv((), np.int64, 0, tag=7) == k
        for part in (left, right):
            if part is not None:
                part.close()


def case_lists(comm):
    """A process of two ranks: lists in, lists out; point to point only in a part with one of them."""
    first = 0 in comm.local_ranks
    every = [np.arange(4.0) + 10 * rank for rank in range(comm.size)]
    got = comm.all_reduce(raw_cases.mine(comm, every))
    for one in raw_cases.as_list(comm, got):
        assert np.array_equal(one, sum(every))
    if first:
        assert len(got) == 2
        assert "2 ranks" in str(refused(comm.send, every[0], 2))
        assert "local ranks" in str(refused(comm.all_reduce, [np.zeros(2), np.zeros(3)]))
        assert refused(comm.all_reduce, np.zeros(2)) is not None
        assert refused(lambda: comm.rank) is not None
    part = comm.split([-1, 0] if first else 0, name="odd")
    assert part.size == comm.size - 1 and part.world_ranks == (1, 2, 3)
    if part.rank == 0:
        part.send(np.array([41]), 2)
    elif part.rank == 2:
        assert part.recv((1,), np.int64, 0).tolist() == [41]
    assert part.all_gather(np.array(part.rank)).tolist() == [0, 1, 2]
    if first:
        assert "colors" in str(refused(comm.split, [0, 1]))
    assert comm.split([5, 5] if first else -1, name="pair") is not None or not first
    part.close()
    comm.barrier()


def case_islands(comm):
    from jhetcc.world import state

    islands = state.communicator("islands")
    number = islands.local_ranks[0]
    assert islands.size == 3 and islands.world_ranks == (0, 2, 3)
    assert islands.all_gather(np.array(number)).tolist() == [0, 1, 2]


def test_split(pools):
    pools(1, 1, 1, 1).run(case_split)


def test_several_at_once(pools):
    pools(1, 1, 1, 1).run(case_several_at_once)
    pools(1, 1, 1).run(case_several_at_once)


def test_several_ranks_in_a_process(pools):
    pools(2, 1, 1).run(case_lists)
    pools(2, 1, 1).run(case_islands)


# Every operation after every other


def calls(comm, count):
    """Every call and what it must give this rank."""
    n, me = comm.size, comm.rank
    every = [np.arange(count, dtype=np.float32) + rank for rank in range(n)]
    tables = [np.stack([one + 100 * rank for one in every]) for rank in range(n)]
    total, nothing = sum(every), np.zeros((n, count), np.float32)
    return {
        "all_reduce": (lambda: comm.all_reduce(every[me]), total),
        "all_gather": (lambda: comm.all_gather(every[me]), np.stack(every)),
        "reduce_scatter": (lambda: comm.reduce_scatter(tables[me]), sum(tables)[me]),
        "all_to_all": (lambda: comm.all_to_all(tables[me]), np.stack([one[me] for one in tables])),
        "permute": (lambda: comm.permute(every[me], [(r, (r + 1) % n) for r in range(n)]), every[me - 1]),
        "broadcast": (lambda: comm.broadcast(every[me], root=n - 1), every[n - 1]),
        "reduce": (lambda: comm.reduce(every[me], root=0), total if me == 0 else np.zeros_like(total)),
        "scatter": (lambda: comm.scatter(tables[me], root=0), tables[0][me]),
        "gather": (lambda: comm.gather(every[me], root=0), np.stack(every) if me == 0 else nothing),
        "sendrecv": (lambda: comm.sendrecv(every[me], (me + 1) % n, (me - 1) % n), every[me - 1]),
    }


def case_pairs(comm):
    """C038, C013: each call directly after each other, tiny and large, with ranks that come late by turns."""
    rng = np.random.default_rng(comm.rank)
    for count in (1, 60_000):
        table = calls(comm, count)
        for first in table:
            for second in table:
                for name in (first, second):
                    call, want = table[name]
                    for _ in range(int(rng.integers(0, 3000))):  # comes a little late
                        pass
                    assert np.array_equal(call(), want), f"{name} in {first}, {second} of {count}"


@pytest.mark.parametrize("grouping", [(1, 1), (1, 1, 1)], ids=str)
def test_every_call_after_every_other(pools, grouping):
    pools(*grouping).run(case_pairs)
    pools(*grouping).run(case_pairs, options={"JHETCC_TRANSPORT": "tcp"})


def case_alternating(comm, rounds):
    """C013: broadcast and sum by turns, values coded by round and rank."""
    for k in range(rounds):
        count = k % 64 + 1
        assert (
            comm.broadcast(np.full(count, k * 10 + comm.rank), root=k % comm.size) == k * 10 + k % comm.size
        ).all(), k
        assert (comm.all_reduce(np.full(count, k + comm.rank)) == comm.size * k + sum(range(comm.size))).all(), k


def test_alternating_broadcasts_and_sums(pools):
    pools(1, 1, 1, 1).run(case_alternating, 2000)


# One process


def case_alone(comm):
    """C011: one rank; every call is the identity or the defined reshape."""
    raw_cases.case_tables(comm, ("float32", "int8"))
    assert comm.split(0, name="again").size == 1
    comm.barrier()


def test_alone(pools):
    pools(1).run(case_alone)


def case_large_exchange(comm):
    """C018: all-to-all of int64, megabytes a pair, and a size no frame divides."""
    n = comm.size
    for count in (500_000, 123_457):
        tables = [np.arange(n * count).reshape(n, count) + 10**9 * rank for rank in range(n)]
        got = comm.all_to_all(tables[comm.rank])
        assert np.array_equal(got, np.stack([table[comm.rank] for table in tables]))


@pytest.mark.parametrize("wire", WIRES)
def test_large_exchanges(pools, wire):
    pools(1, 1, 1).run(case_large_exchange, options=WIRES[wire])
