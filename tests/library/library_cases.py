# SPDX-License-Identifier: Apache-2.0
"""What the processes of jobs with vendors' libraries do: values, bits, parts. The tables are those of the raw calls."""

import hashlib
import json
import time
from pathlib import Path

import cluster_cases
import numpy as np
import raw_cases
from raw_cases import REDUCE, named, random_contributions, reduced

from jhetcc.schedule import KIND_NAMES, can_reduce
from jhetcc.world.raw import dtype_name

OPS = ("sum", "prod", "max", "min", "mean")
PSUM = {"sum": "psum", "prod": "pprod", "max": "pmax", "min": "pmin", "mean": "pmean"}


def case_tables(comm, names, counts):
    raw_cases.case_tables(comm, names, counts)
    return case_explain(comm, "psum(f32[5001])")


def case_explain(comm, *texts):
    found = [comm.explain(text) for text in texts]
    return found if len(found) > 1 else found[0]


def case_every_root(comm, counts):
    """Everything with a root, for every root; returns what explain says of a reduction to one."""
    for count in counts:
        cluster_cases.check_every_root(comm, np.dtype(np.float32), count)
    return case_explain(comm, "reduce(f32[5003], op=sum, root=0)")


def case_bits(comm, names, counts):
    """Random numbers: a digest of every rank's bits, and that they are near what they should be."""
    digest = hashlib.sha256()
    for dtype in map(named, names):
        for op in OPS:
            if not can_reduce(dtype_name(dtype), op):
                continue
            for count in counts:
                every = random_contributions(comm, (count,), dtype, count)
                got = comm.all_reduce(every[comm.rank], op)
                digest.update(got.tobytes())
                if op in ("max", "min") or dtype.kind in "iub":
                    continue
                wide = np.complex128 if dtype.kind == "c" else np.float64
                with np.errstate(all="ignore"):
                    want = reduced([one.astype(wide) for one in every], op)
                    scale = reduced([np.abs(one.astype(wide)) for one in every], op).real
                    precision = {2: 0.02, 4: 1e-5, 8: 1e-5 if dtype.kind == "c" else 1e-13, 16: 1e-13}[dtype.itemsize]
                    wrong = np.abs(got.astype(wide) - want) > precision * scale + 1e-30
                wrong &= np.isfinite(scale.astype(np.float32)) & (dtype != np.float16)
                assert not wrong.any(), (op, dtype, count, got[wrong][:3], want[wrong][:3])
    return digest.hexdigest()


def case_nans(comm):
    """The bits of sums with a NaN: of infinity minus infinity, and of a negative one with a payload."""
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    infinities = np.full(1003, np.inf if first else -np.inf if last else 1.0, np.float32)
    sources = np.full(1003, 0xFFC00005 if first else 0, np.uint32).view(np.float32)
    return [sorted({f"{bits:08x}" for bits in comm.all_reduce(x).view(np.uint32)}) for x in (infinities, sources)]


def case_scattered_bits(comm, names, count):
    """reduce_scatter, reduce and all_reduce of the same numbers: each rank's part, joined by those who have it."""
    digests = []
    for dtype in map(named, names):
        every = random_contributions(comm, (comm.size, count), dtype, count)
        whole = comm.all_reduce(every[comm.rank])
        digests.append(hashlib.sha256(whole.tobytes()).hexdigest())
        part = comm.reduce_scatter(every[comm.rank])
        joined = comm.all_gather(part)
        digests.append(hashlib.sha256(joined.tobytes()).hexdigest())
    return digests


def case_parts(comm, colors, keys=None):
    """Operations on parts of the job, and on the whole again from two threads."""
    mine = colors[comm.rank]
    part = comm.split(mine, None if keys is None else keys[comm.rank])
    text = None
    if part is not None:
        raw_cases.case_tables(part, ("float32",), (1, 5001))
        text = part.explain("psum(f32[5001])")
        half = part.split(part.rank % 2)
        raw_cases.case_tables(half, ("float64",), (7,))
        half.close()
        raw_cases.check_reductions(part, np.dtype(np.int32), (33,))
        part.close()
    raw_cases.case_tables(comm, ("float32",), (3,))
    return text


def case_training(comm):
    """psum in jit against numpy, and some steps of descent on a pytree whose gradients are averaged."""
    import jax
    import jax.numpy as jnp

    import jhetcc.ops as jh

    x = np.arange(3001, dtype=np.float32) + comm.rank
    want = sum(np.arange(3001, dtype=np.float32) + rank for rank in range(comm.size))
    assert (np.asarray(jax.jit(jh.psum)(x)) == want).all()

    def loss(weights, inputs):
        return jnp.mean((jnp.tanh(inputs @ weights["a"]) @ weights["b"] - 1) ** 2)

    @jax.jit
    def step(weights, inputs):
        value, gradient = jax.value_and_grad(lambda w: jh.pmean(loss(w, inputs)))(weights)
        gradient = jh.pmean(gradient)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient)

    rng = np.random.default_rng(1)
    weights = {"a": rng.normal(size=(40, 30)).astype(np.float32), "b": rng.normal(size=(30, 1)).astype(np.float32)}
    inputs = np.random.default_rng(comm.rank).normal(size=(16, 40)).astype(np.float32)
    values = []
    for _ in range(10):
        value, weights = step(weights, inputs)
        values.append(float(value))
    assert values[-1] < values[0], values
    return hashlib.sha256(b"".join(np.asarray(weights[name]).tobytes() for name in sorted(weights))).hexdigest()


def case_calls_in_jit(comm, folder):
    """The kinds of native steps that a compiled psum of several chunks made, as they were recorded."""
    import jax

    import jhetcc.ops as jh

    x = np.arange(30_000, dtype=np.float32) + comm.rank
    program = jax.jit(jh.psum)
    begun = time.monotonic_ns()
    assert (np.asarray(program(x)) == np.arange(30_000) * comm.size + sum(range(comm.size))).all()
    comm.barrier()
    events = json.loads(Path(comm.record(folder)).read_text(encoding="utf-8"))["events"]
    steps = [e["argument"] for e in events if e["event"] == "step finished" and e["time_ns"] >= begun]
    assert steps, "nothing was recorded"
    return sorted({KIND_NAMES[kind] for kind in steps if KIND_NAMES[kind].startswith("native")})


def case_recorded(comm, folder):
    """Four all-reduces of 2 MB; returns the file of what was recorded."""
    for _ in range(4):
        comm.all_reduce(np.ones(500_000, np.float32))
    return comm.record(folder)


ALL = [dtype.name for dtype in REDUCE]
FLOATS = [dtype.name for dtype in REDUCE if dtype.kind not in "iub"]
