# SPDX-License-Identifier: Apache-2.0
"""Compiled programs that outlive the process that made them, and failures between XLA's own collectives."""

import pathlib

import pytest
from processes import run_scripts

CACHE = """
import jax, jax.numpy as jnp, numpy
jax.config.update("jax_compilation_cache_dir", os.environ["CACHE"] + f"/{me}")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
import jhetcc
comm = jhetcc.init()
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)

def step(x):
    total = jhetcc.psum(jnp.sin(x) * (1 + jhetcc.axis_index()))
    return total, jhetcc.all_gather(x), jhetcc.psum(x.sum())

x = jnp.arange(6.0) + me
for way in (jax.jit, jhetcc.jit):
    total, gathered, scalar = way(step)(x)
    want = sum(numpy.sin(numpy.arange(6.0) + r) * (1 + r) for r in range(2))
    numpy.testing.assert_allclose(total, want, rtol=1e-5)
    numpy.testing.assert_array_equal(gathered, numpy.stack([numpy.arange(6.0) + r for r in range(2)]))
    assert scalar == 36
print("hits", len(hits))
comm.close()
"""


def test_the_persistent_compilation_cache(tmp_path):
    """The second job, in fresh processes, takes its programs from the cache, and they are right."""
    first = run_scripts(CACHE, extra={"CACHE": str(tmp_path)})
    assert all(code == 0 for code, _, _ in first), first
    second = run_scripts(CACHE, extra={"CACHE": str(tmp_path)})
    for (code, output, _), (_, before, _) in zip(second, first, strict=True):
        assert code == 0, output
        hits, cold = (int(text.split("hits ")[1].split()[0]) for text in (output, before))
        assert hits >= cold + 2, (before, output)


def test_a_cached_program_in_a_job_of_another_size(tmp_path):
    """What was compiled for two ranks never runs on three: it is another program there."""
    assert all(code == 0 for code, _, _ in run_scripts(CACHE, extra={"CACHE": str(tmp_path)}))
    source = CACHE.replace("range(2)", "range(3)").replace("== 36", "== 63")
    for code, output, _ in run_scripts(source, (1, 1, 1), extra={"CACHE": str(tmp_path)}):
        assert code == 0, output


EXPORT = """
import jax, jax.numpy as jnp, jhetcc, pathlib
comm = jhetcc.init()
def step(x):
    y = jhetcc.psum(x * 2)
    jhetcc.barrier()
    return y, jhetcc.pmean(x), jhetcc.ppermute(x, "world", [(0, 1), (1, 0)])
shape = jax.ShapeDtypeStruct((5,), jnp.float32)
for way, name in ((jax.jit, "plain"), (jhetcc.jit, "scoped")):
    exported = jax.export.export(way(step), disabled_checks=jhetcc.export_checks())(shape)
    if me == 0:
        (pathlib.Path(os.environ["FOLDER"]) / name).write_bytes(exported.serialize())
comm.close()
"""

LOAD = """
import jax, jax.numpy as jnp, numpy, pathlib
import jhetcc
comm = jhetcc.init()
for name in ("plain", "scoped"):
    again = jax.export.deserialize((pathlib.Path(os.environ["FOLDER"]) / name).read_bytes())
    program = jax.jit(again.call)
    for k in range(3):
        total, mean, other = program(jnp.arange(5.0) * (me + 1) + k)
        numpy.testing.assert_array_equal(total, 6 * numpy.arange(5.0) + 4 * k)
        numpy.testing.assert_array_equal(mean, 1.5 * numpy.arange(5.0) + k)
        numpy.testing.assert_array_equal(other, numpy.arange(5.0) * (2 - me) + k)
print("right")
comm.close()
"""


def test_an_exported_program(tmp_path):
    """Exported by one job, loaded and run by fresh processes of another, whose planner has never seen it."""
    extra = {"FOLDER": str(tmp_path)}
    for code, output, _ in run_scripts(EXPORT, extra=extra):
        assert code == 0, output
    assert {path.name for path in pathlib.Path(tmp_path).iterdir()} == {"plain", "scoped"}
    for code, output, _ in run_scripts(LOAD, extra=extra):
        assert code == 0 and output.endswith("right\n"), output


def test_an_exported_program_in_a_job_of_another_size(tmp_path):
    """Refused by name, on all ranks, in bounded time."""
    extra = {"FOLDER": str(tmp_path)}
    assert all(code == 0 for code, _, _ in run_scripts(EXPORT, extra=extra))
    for code, output, _ in run_scripts(LOAD, (1, 1, 1), extra=extra):
        assert code == 1 and "right" not in output, output
        assert "retrace" in output or "2 ranks" in output or "size" in output, output


MIXED = """
import jax, jax.numpy as jnp, numpy
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import jhetcc
comm = jhetcc.init()
mesh = Mesh(numpy.array(jax.local_devices()), ("d",))
n = len(jax.local_devices())

def body(x):
    y = lax.psum(x, "d")
    y = y + jhetcc.psum(x * 2)
    z = lax.psum(y * x, "d")
    return z + jhetcc.pmax(z)

program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
x = jax.device_put(jnp.arange(float(n * 3)).reshape(n, 3) + 10 * me, NamedSharding(mesh, P("d")))
program(x)[0].block_until_ready()
if me == 1:
    {fault}
for attempt in range(3):
    try:
        jax.block_until_ready(program(x))
    except Exception as why:
        error = jhetcc.error_of(why)
        assert error is not None, why
        print(type(error).__name__, attempt, flush=True)
    else:
        print("no error", attempt, flush=True)
local = jax.jit(jax.shard_map(lambda x: lax.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
numpy.testing.assert_array_equal(numpy.asarray(local(x))[0], numpy.asarray(x).sum(0))
comm = comm.shrink(timeout=30)
program = jax.jit(jax.shard_map(lambda x: jhetcc.psum(x), mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
got = numpy.asarray(program(x))[0]
print("size", comm.size, "alive", flush=True)
"""

FAULTS = {
    "killed": ("os.kill(os.getpid(), 9)", "PeerLostError", 4),
    "another program": (
        "program = jax.jit(jax.shard_map(lambda x: jhetcc.pmin(x), mesh=mesh, in_specs=P('d'), out_specs=P('d'), check_vma=False))",
        "MismatchError",
        5,
    ),
    "abort": ("comm.abort('enough')", "AbortedError", 5),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_failures_between_collectives_of_xla(fault):
    """Errors reach all four local devices at once, so that none waits for another in XLA's own collective; the process lives."""
    action, name, size = FAULTS[fault]
    limits = {"JHETCC_OPERATION_TIMEOUT": "10s", "JHETCC_ABORT_GATHER": "500ms", "JHETCC_ABORT_CONFIRM": "1s"}
    results = run_scripts(MIXED.replace("{fault}", action), (4, 1), extra=limits)
    code, output, seconds = results[0]
    assert code == 0 and f"size {size} alive" in output, output
    assert [f"{name} {attempt}" in output for attempt in range(3)] == [True] * 3, output
    assert "terminat" not in output and seconds < 80, output
    if fault != "killed":
        assert results[1][0] == 0 and f"size {size} alive" in results[1][1], results[1][1]


UNREAD = """
import time
import jax, jax.numpy as jnp, numpy
from jax.sharding import Mesh, PartitionSpec as P
import jhetcc
comm = jhetcc.init()
mesh = Mesh(numpy.array(jax.local_devices()), ("d",))
shard = lambda f: jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
program, other = jhetcc.jit(shard(lambda x: jhetcc.psum(x) / 3)), jhetcc.jit(shard(lambda x: x + 1))
x = jax.block_until_ready(program(jnp.ones(6 * len(jax.local_devices()))))
if me == 1:
    import os
    os.kill(os.getpid(), 9)
deadline = time.monotonic() + 60
try:
    while time.monotonic() < deadline:
        x = program(x)
        time.sleep(0.001)
except jhetcc.PeerLostError as error:
    print("raised", type(error.__cause__).__name__, flush=True)
for _ in range(3):
    try:
        program(jnp.ones(6 * len(jax.local_devices())))
    except jhetcc.PeerLostError as error:
        print("again", flush=True)
print("others", float(other(jnp.ones(6 * len(jax.local_devices())))[0]), flush=True)
comm = comm.shrink(timeout=30)
print("sum", float(jhetcc.jit(shard(jhetcc.psum))(jnp.ones(6 * len(jax.local_devices())))[0]), flush=True)
"""


def test_a_loop_that_reads_no_result_learns_of_the_end():
    """On several devices a call only dispatches: ``jhetcc.jit`` looks before it, for the communicators its program uses."""
    limits = {"JHETCC_OPERATION_TIMEOUT": "10s", "JHETCC_ABORT_GATHER": "500ms", "JHETCC_ABORT_CONFIRM": "1s"}
    code, output, seconds = run_scripts(UNREAD, (2, 1), extra=limits)[0]
    assert code == 0 and "raised" in output and output.count("again") == 3, output
    assert "others 2.0" in output and "sum 2.0" in output and seconds < 60, output


def test_a_slow_compile():
    """C033, C032: one rank traces and compiles for seconds, or again for another shape; nothing is sent at trace time."""
    source = """
import jax, jax.numpy as jnp, jhetcc, time
comm = jhetcc.init()
def f(x):
    if me == 1:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            pass
    return jhetcc.psum(x)
g = jax.jit(f)
assert g(jnp.ones(1))[0] == 2
try:
    g(jnp.ones(1 + me)).block_until_ready()
except Exception as why:
    error = jhetcc.error_of(why)
    assert isinstance(error, jhetcc.MismatchError), error
    assert "f32[1]" in str(error) and "f32[2]" in str(error), error
    print("mismatch")
"""
    for code, output, _ in run_scripts(source, extra={"JHETCC_OPERATION_TIMEOUT": "60s"}):
        assert code == 0 and output.endswith("mismatch\n"), output


def test_the_end_of_a_script_with_work_under_way():
    """C070: the last line is a sum nobody waits for; or a message to nobody: the script ends soon, with its own code."""
    source = """
import jax.numpy as jnp, jax, jhetcc
comm = jhetcc.init()
f = jax.jit(jhetcc.psum)
f(jnp.ones(3)).block_until_ready()
f(jnp.ones(3))
"""
    for code, output, seconds in run_scripts(source):
        assert code == 0 and seconds < 60, output
    source = """
import jax.numpy as jnp, jax, jhetcc
comm = jhetcc.init()
if me == 0:
    jax.jit(lambda x: jhetcc.send(x, 1))(jnp.ones(3))
"""
    for code, output, seconds in run_scripts(source, extra={"JHETCC_OPERATION_TIMEOUT": "5s"}):
        assert "Fatal" not in output and "terminate" not in output and seconds < 60, output
        assert code in (0, 1), output
