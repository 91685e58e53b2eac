# SPDX-License-Identifier: Apache-2.0
"""C129: processes whose JAX is set up otherwise, as that of another platform would be: other x64, devices and flags."""

from processes import run_scripts

# Process 0 has 64-bit types and one device, process 1 neither, and compiles with other flags.
UNLIKE = (
    {"JAX_ENABLE_X64": "1"},
    {
        "JAX_ENABLE_X64": "0",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=3 --xla_cpu_enable_fast_math=true",
        "JAX_DEFAULT_MATMUL_PRECISION": "bfloat16",
    },
)
SET_UP = """
import jax, jax.numpy as jnp, jhetcc, numpy as np
assert jax.config.jax_enable_x64 == (me == 0) and len(jax.devices()) == (1, 3)[me]
comm = jhetcc.init(devices=jax.devices()[:1], timeout=60)
"""

ALIKE = (
    SET_UP
    + """
x = jnp.float32(1.5) * (jnp.arange(4) + 10 * me).astype(jnp.float32)
def step(x):
    return jhetcc.psum(x), jhetcc.pmax(x), jhetcc.all_gather(x), jhetcc.psum(jnp.int32(me + 1)), jhetcc.psum(x.astype(jnp.bfloat16))
every = [1.5 * (np.arange(4) + 10 * r) for r in range(2)]
for way in (jax.jit, jhetcc.jit):
    total, most, gathered, whole, low = way(step)(x)
    np.testing.assert_array_equal(total, every[0] + every[1])
    np.testing.assert_array_equal(most, every[1])
    np.testing.assert_array_equal(gathered, np.stack(every))
    np.testing.assert_array_equal(low.astype(np.float32), every[0] + every[1])
    assert total.dtype == most.dtype == np.float32 and whole == 3 and whole.dtype == np.int32
    slope = way(jax.grad(lambda x: jhetcc.psum((x * x).sum())))(x)
    np.testing.assert_array_equal(slope, 4 * every[me])  # psum transposes to psum: twice 2x
comm.close()
print("alike")
"""
)

DIFFER = (
    SET_UP
    + """
x = jnp.array([1.0, 1e300 if me == 0 else 1e30])  # float64 here, float32 there
try:
    print("RESULT", jhetcc.jit(lambda x: jhetcc.psum(x))(x).block_until_ready())
except jhetcc.MismatchError as error:
    text = str(error)
    assert "f64[2]" in text and "f32[2]" in text and "rank 0" in text and "rank 1" in text, text
    print("told")
comm.close()
"""
)


def test_one_sum_of_programs_that_are_set_up_otherwise():
    for code, output, _ in run_scripts(ALIKE, own=UNLIKE):
        assert code == 0 and output.strip().endswith("alike"), output


def test_dtypes_that_x64_makes_differ_are_told_and_not_truncated():
    for code, output, _ in run_scripts(DIFFER, own=UNLIKE):
        assert code == 0 and "told" in output and "RESULT" not in output, output
