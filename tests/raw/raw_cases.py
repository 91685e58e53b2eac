# SPDX-License-Identifier: Apache-2.0
"""Raw calls of every rank against numpy: the vocabulary of the tests in this folder. Runs in pooled processes."""

import dataclasses
import hashlib

import ml_dtypes
import numpy as np

from jhetcc.schedule import Operation, can_reduce, run
from jhetcc.world.planning import planned
from jhetcc.world.raw import dtype_name

REDUCE = [
    np.dtype(one) for one in ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
] + [np.dtype(ml_dtypes.bfloat16)]
MOVE = [np.dtype(one) for one in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4)]
OPS = ("sum", "prod", "max", "min", "mean")
INLINE_BYTES = 16384  # where messages begin to be fetched instead of travelling with their header


def named(name):
    return next(dtype for dtype in REDUCE + MOVE if dtype.name == name)


def sizes(dtype):
    edge = INLINE_BYTES // dtype.itemsize
    return (0, 1, 7, edge - 1, edge, edge + 1)


def contributions(comm, shape, dtype, small=False):
    """One array a rank, of small whole numbers that differ by rank and index: sums and products of them are exact."""
    count = int(np.prod(shape))
    every = []
    for rank in range(comm.size):
        numbers = (rank * 5 + np.arange(count) * 3 + np.arange(count) // 11) % (2 if small else 7) + 1
        if dtype == np.bool_:
            numbers = numbers % 2
        elif dtype.kind == "c":
            numbers = numbers * (1 if small else 1 + 2j)
        every.append(numbers.astype(np.complex128 if dtype.kind == "c" else np.float32).astype(dtype).reshape(shape))
    return every


def reduced(every, op):
    """The oracle for numbers whose reduction is exact (means: rounded once)."""
    dtype = every[0].dtype
    if dtype == np.bool_:
        return np.logical_or.reduce(every) if op in ("sum", "max") else np.logical_and.reduce(every)
    wide = np.stack([one.astype(np.complex128 if dtype.kind == "c" else np.float64) for one in every])
    if op == "mean":
        parts = np.atleast_1d(wide.sum(0)).view(np.float64)
        return (
            (parts / len(every)).view(wide.dtype).reshape(wide.shape[1:]).astype(dtype)
        )  # complex: each part by itself
    return getattr(wide, op)(0).astype(dtype)


def mine(comm, every):
    """What this process hands to a call: one array, or a list where it owns several ranks."""
    local = [every[rank] for rank in comm.local_ranks]
    return local if len(local) > 1 else local[0]


def as_list(comm, result):
    return result if len(comm.local_ranks) > 1 else [result]


def equal(comm, got, want, what):
    """Compares this process's results with what each of all ranks should have, bit for bit."""
    for rank, one in zip(comm.local_ranks, as_list(comm, got), strict=True):
        expected = want[rank]
        assert one.dtype == expected.dtype and one.shape == expected.shape, (
            what,
            rank,
            one.dtype,
            one.shape,
            expected.shape,
        )
        if one.tobytes() != np.ascontiguousarray(expected).tobytes():
            wrong = np.flatnonzero(
                one.reshape(-1).view(np.uint8) != np.ascontiguousarray(expected).reshape(-1).view(np.uint8)
            )
            at = wrong[0] // one.itemsize
            raise AssertionError(
                f"{what} on {comm.name} of {comm.size}: rank {rank}: {len(wrong)} bytes wrong, first in element {at}: "
                f"{one.reshape(-1)[at]!r}, should be {expected.reshape(-1)[at]!r}"
            )


def both_ways(comm, call, every, want, what, in_place):
    """Runs a call into new memory, and where it may, into its own input; inputs are intact otherwise."""
    kept = [one.copy() for one in every]
    equal(comm, call(mine(comm, every)), want, what)
    for before, after in zip(kept, every, strict=True):
        assert before.tobytes() == after.tobytes(), f"{what}: an input was changed"
    if in_place:
        buffers = mine(comm, kept)
        equal(comm, call(buffers, out=buffers), want, f"{what} in place")


def check_reductions(comm, dtype, shape, ops=OPS):
    n = comm.size
    for op in ops:
        if not can_reduce(dtype_name(dtype), op):
            continue
        every = contributions(comm, shape, dtype, op == "prod")
        total, what = reduced(every, op), f"{op} of {dtype}{list(shape)}"
        both_ways(
            comm, lambda b, op=op, **k: comm.all_reduce(b, op, **k), every, [total] * n, f"all_reduce {what}", True
        )
        root = (len(shape) + int(np.prod(shape))) % n
        want = [total if rank == root else np.zeros_like(total) for rank in range(n)]
        both_ways(
            comm,
            lambda b, op=op, root=root, **k: comm.reduce(b, op, root=root, **k),
            every,
            want,
            f"reduce {what}",
            True,
        )
        every = contributions(comm, (n, *shape), dtype, op == "prod")
        both_ways(
            comm,
            lambda b, op=op, **k: comm.reduce_scatter(b, op, **k),
            every,
            reduced(every, op),
            f"reduce_scatter {what}",
            False,
        )


def check_movement(comm, dtype, shape):
    n, every, what = comm.size, contributions(comm, shape, dtype), f"of {dtype}{list(shape)}"
    both_ways(comm, comm.all_gather, every, [np.stack(every)] * n, f"all_gather {what}", False)
    tables = contributions(comm, (n, *shape), dtype)
    want = [np.stack([tables[source][rank] for source in range(n)]) for rank in range(n)]
    both_ways(comm, comm.all_to_all, tables, want, f"all_to_all {what}", True)
    for root in {0, n - 1}:
        zeros = np.zeros((n, *shape), dtype)
        want = [np.stack(every) if rank == root else zeros for rank in range(n)]
        both_ways(comm, lambda b, root=root, **k: comm.gather(b, root=root, **k), every, want, f"gather {what}", False)
        both_ways(
            comm,
            lambda b, root=root, **k: comm.broadcast(b, root=root, **k),
            every,
            [every[root]] * n,
            f"broadcast {what}",
            True,
        )
        both_ways(
            comm,
            lambda b, root=root, **k: comm.scatter(b, root=root, **k),
            tables,
            tables[root],
            f"scatter {what}",
            False,
        )
    ring = [(rank, (rank + 1) % n) for rank in range(n)]
    for perm in (ring, ring[1:], [(0, n - 1)], [(rank, rank) for rank in range(n)], []):
        want = [np.zeros(shape, dtype) for _ in range(n)]
        for source, destination in perm:
            want[destination] = every[source]
        both_ways(
            comm, lambda b, perm=perm, **k: comm.permute(b, perm, **k), every, want, f"permute {perm} {what}", True
        )


def check_lengths(comm, dtype, lengths):
    n, rows = comm.size, max(lengths)
    every = contributions(comm, (rows, 3), dtype)
    joined, what = np.concatenate([every[rank][: lengths[rank]] for rank in range(n)]), f"lengths {lengths} of {dtype}"
    got = comm.all_gather(mine(comm, every), lengths=lengths)
    equal(comm, got, [joined] * n, f"all_gather {what}")
    want = [joined if rank == n - 1 else np.zeros_like(joined) for rank in range(n)]
    equal(comm, comm.gather(mine(comm, every), root=n - 1, lengths=lengths), want, f"gather {what}")
    tables, begins = contributions(comm, (sum(lengths), 3), dtype), np.cumsum([0, *lengths])
    want = [np.zeros((rows, 3), dtype) for _ in range(n)]
    for rank in range(n):
        want[rank][: lengths[rank]] = tables[0][begins[rank] : begins[rank + 1]]
    equal(comm, comm.scatter(mine(comm, tables), root=0, lengths=lengths), want, f"scatter {what}")


def random_contributions(comm, shape, dtype, seed):
    """Numbers whose sums round: their bits tell the order of reduction."""
    every = []
    for rank in range(comm.size):
        rng = np.random.default_rng((seed, rank))
        if dtype.kind in "iub":
            every.append(
                rng.integers(0, 256, int(np.prod(shape)) * dtype.itemsize, np.uint8).view(dtype).reshape(shape)
            )
            continue
        numbers = rng.normal(size=shape) * np.exp(rng.normal(size=shape) * 3)
        if dtype.kind == "c":
            numbers = numbers + 1j * rng.normal(size=shape)
        every.append(numbers.astype(dtype))
    return every


def fingerprint(comm):
    """A digest of the bits of sums that are not exact."""
    digest = hashlib.sha256()
    for dtype in map(named, ("float32", "bfloat16", "complex64")):
        for count in (7, 3000, 200_000):
            every = random_contributions(comm, (count,), dtype, count)
            digest.update(comm.all_reduce(every[comm.rank]).tobytes())
    return digest.hexdigest()


def interpreted(comm, text, every, options):
    """What the schedule of an operation gives when numpy runs it for all ranks."""
    operation = Operation.parse(text)
    plan = planned(text, comm.layout, options.algorithm, options.chunk_bytes)
    outputs = run(operation, {rank: plan.expand(rank) for rank in range(comm.size)}, [one.reshape(-1) for one in every])
    return plan, outputs


def case_tables(comm, names, counts=None):
    """Every call on every size of some dtypes."""
    for dtype in map(named, names):
        for count in sizes(dtype) if counts is None else counts:
            if dtype in REDUCE:
                check_reductions(comm, dtype, (count,))
            check_movement(comm, dtype, (count,))
    comm.barrier()


def case_shapes(comm):
    for shape in ((), (2, 0, 3), (3, 1, 2)):
        check_reductions(comm, np.dtype(np.float32), shape, ("sum", "max"))
        check_movement(comm, np.dtype(np.float32), shape)


def case_lengths(comm, names):
    n = comm.size
    for dtype in map(named, names):
        for lengths in ([1, 0, 7, 2, 3][:n], [5, 5, 1, 5, 5][:n], [0] * n, [2000, 1, 0, 3000, 2][:n]):
            check_lengths(comm, dtype, lengths)


def case_interpreter(comm, names, counts, options):
    """Random numbers: the engine's bits are the interpreter's, and so the same on all ranks."""
    from jhetcc import config

    options, algorithms = config.read(options), set()
    for dtype in map(named, names):
        for count in counts:
            short = dtype_name(dtype)
            for op, name in (("sum", "psum"), ("mean", "pmean"), ("max", "pmax"), ("min", "pmin"), ("prod", "pprod")):
                if not can_reduce(short, op):
                    continue
                every = random_contributions(comm, (count,), dtype, count)
                plan, want = interpreted(comm, f"{name}({short}[{count}])", every, options)
                algorithms.add(plan.algorithm)
                equal(comm, comm.all_reduce(mine(comm, every), op), want, f"{plan.algorithm} {op} of {dtype}[{count}]")
            if can_reduce(short, "sum"):
                every = random_contributions(comm, (comm.size, count), dtype, count + 1)
                plan, want = interpreted(comm, f"psum_scatter({short}[{comm.size},{count}])", every, options)
                equal(
                    comm,
                    comm.reduce_scatter(mine(comm, every)),
                    want,
                    f"{plan.algorithm} reduce_scatter of {dtype}[{count}]",
                )
                same = {
                    rank: out.tobytes()
                    for rank, out in interpreted(comm, f"psum({short}[{count}])", [e[0] for e in every], options)[
                        1
                    ].items()
                }
                assert len(set(same.values())) == 1, "the ranks' bits differ"
    return sorted(algorithms)


def case_clusters(comm, where, nics, names, counts, options):
    """The tables and the interpreter's bits on a communicator whose ranks are in clusters without a vendor's library.

    Args:
      where: number of each rank's cluster.
      nics: NICs of every cluster; with none, every rank is a border.
    """
    from jhetcc.planner import ClusterShape, Nic

    child = comm.split(0, name=f"clusters {where} {nics}")
    cards = tuple(Nic(1e9 * (1 + number)) for number in range(nics))
    ranks = [tuple(rank for rank, one in enumerate(where) if one == number) for number in sorted(set(where))]
    shapes = tuple(ClusterShape(members, cards) for members in ranks)
    child.layout = dataclasses.replace(child.layout, clusters=shapes)
    try:
        case_tables(child, names, counts)
        case_lengths(child, names[:1])
        return case_interpreter(child, names, counts, options)
    finally:
        child.close()
