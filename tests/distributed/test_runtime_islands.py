# SPDX-License-Identifier: Apache-2.0
"""Islands of several processes that share a JAX runtime (``jax.distributed``, XLA's collectives over Gloo)."""

import contextlib

import pytest
from processes import run_scripts

from jhetcc.launch.port import HeldPort

JOIN = """
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(os.environ["RUNTIME"], int(os.environ["RUNTIME_SIZE"]), int(os.environ["RUNTIME_PLACE"]))
import jax.numpy as jnp
import jhetcc
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
"""

REDUCTIONS = """
comm = jhetcc.init()
local, count = len(comm.devices), len(comm.island_devices)
island = comm.local_ranks[0] // count
assert comm.island_sizes == (count,) * (comm.size // count) and comm.devices == tuple(jax.local_devices()), comm
assert [d.process_index for d in comm.island_devices] == [k // local for k in range(count)]
islands = jhetcc.world.state.communicator("islands")
assert islands.world_ranks == tuple(range(0, comm.size, count))
mesh = Mesh(np.array(comm.island_devices), ("d",))
spread = NamedSharding(mesh, P("d"))

def value(rank):
    return np.arange(1000, dtype=np.float32) % 61 + 100 * rank

rows = np.stack([value(island * count + k) for k in range(count)])
x = jax.make_array_from_callback(rows.shape, spread, lambda index: rows[index])

def shown(function, of=x):
    out = jhetcc.jit(jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))(of)
    comm.check()
    return [np.asarray(shard.data) for shard in out.addressable_shards]

everybody = [value(rank) for rank in range(comm.size)]
for axes in (("d", "islands"), "world"):
    for name, wanted in (("psum", sum(everybody)), ("pmean", sum(everybody) / comm.size), ("pmax", everybody[-1]), ("pmin", everybody[0])):
        for got in shown(lambda y: getattr(jhetcc, name)(y, axes)):
            np.testing.assert_array_equal(got[0], wanted.astype(np.float32), err_msg=f"{name} over {axes}")

indexes = shown(lambda y: jhetcc.axis_index(("d", "islands")).reshape(1))
assert [int(i[0]) for i in indexes] == [k % count * (comm.size // count) + island for k in comm.local_ranks], indexes

def loss(weight, y):
    return jhetcc.pmean(jnp.sum(weight * y), ("d", "islands"))

for k, got in enumerate(shown(lambda y: jax.grad(loss)(jnp.float32(1), y[0]).reshape(1))):
    np.testing.assert_allclose(got[0], value(comm.local_ranks[k]).sum(), rtol=1e-6)

before = dict(comm.status()["counters"])["bytes_moved"]
for _ in range(3):
    shown(lambda y: jhetcc.psum(y, ("d", "islands")))
print("done", flush=True)
comm.close()
jax.distributed.shutdown()
"""


def run(source, runtimes, places, devices):
    """Runs the text in processes of the given runtimes: the number of each one's runtime, and its place there."""
    with contextlib.ExitStack() as stack:
        held = {runtime: stack.enter_context(contextlib.closing(HeldPort())) for runtime in set(runtimes)}
        own = [
            {"RUNTIME": held[r].address, "RUNTIME_SIZE": str(runtimes.count(r)), "RUNTIME_PLACE": str(place)}
            for r, place in zip(runtimes, places, strict=True)
        ]
        return run_scripts(JOIN + source, (devices,) * len(runtimes), own=own)


@pytest.mark.parametrize("devices", [1, 2])
def test_two_islands_of_two_processes(devices):
    for code, output, _ in run(REDUCTIONS, (0, 0, 1, 1), (0, 1, 0, 1), devices):
        assert code == 0 and "done" in output, output


def test_processes_numbered_in_another_order_are_refused_by_name():
    source = """
try:
    jhetcc.init(timeout=20)
except jhetcc.BadArgumentError as error:
    assert error.code == "island_order" and "one after the other" in str(error), error
    print("refused", flush=True)
"""
    for code, output, _ in run(source, (0, 1, 0, 1), (0, 0, 1, 1), 1):
        assert code == 0 and "refused" in output, output


def test_islands_of_unequal_size_are_refused_by_name():
    source = """
comm = jhetcc.init()
mesh = Mesh(np.array(comm.island_devices), ("d",))
x = jax.make_array_from_callback((len(comm.island_devices), 4), NamedSharding(mesh, P("d")), lambda i: np.zeros((1, 4), np.float32))
try:
    jhetcc.jit(jax.shard_map(lambda y: jhetcc.psum(y, ("d", "islands")), mesh=mesh, in_specs=P("d"), out_specs=P("d")))(x)
except jhetcc.BadArgumentError as error:
    assert error.code == "unequal_islands" and "2, 1 ranks" in str(error), error
    print("refused", flush=True)
comm.close()
jax.distributed.shutdown()
"""
    for code, output, _ in run(source, (0, 0, 1), (0, 1, 0), 1):
        assert code == 0 and "refused" in output, output


def test_a_lost_process_of_the_island_is_a_typed_error():
    """What XLA's own collectives raise then is a text of Gloo's; the survivor ends by itself, before JAX's own service ends it."""
    source = """
comm = jhetcc.init()
mesh = Mesh(np.array(comm.island_devices), ("d",))
x = jax.make_array_from_callback((2, 1000), NamedSharding(mesh, P("d")), lambda i: np.ones((1, 1000), np.float32))
total = jax.jit(jax.shard_map(lambda y: jax.lax.psum(y, "d"), mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
jax.block_until_ready(total(x))
if me == 1:
    os.kill(os.getpid(), 9)
try:
    while True:
        jax.block_until_ready(total(x))
except jax.errors.JaxRuntimeError as error:
    typed = jhetcc.error_of(error)
    print(type(typed).__name__, typed and typed.code, str(error)[:200], flush=True)
os._exit(0)
"""
    (code, output, _), (killed, *_) = run(source, (0, 0), (0, 1), 1)
    assert killed == -9
    assert code == 0 and "PeerLostError island_lost" in output, output
