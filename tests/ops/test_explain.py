# SPDX-License-Identifier: Apache-2.0
"""``jhetcc.explain``: every operation of a function, nested ones too, in order, and nothing is run."""

import jax
import jax.numpy as jnp
import pytest

import jhetcc


@pytest.fixture
def comm():
    made = jhetcc.init(num_processes=1, devices=jax.local_devices(backend="cpu")[:1])
    yield made
    made.close()


def test_operations_in_order(comm):
    def step(weights, x):
        loss, gradients = jax.value_and_grad(lambda w: jnp.sum(w["a"] * x) + w["b"])(weights)
        gradients = jhetcc.pmean(gradients)
        return jax.lax.cond(loss > 0, lambda: jhetcc.pmax(loss), lambda: jhetcc.pmax(loss)), gradients

    weights = {"a": jnp.ones(1000), "b": jnp.float32(0)}
    before = dict(comm.status()["counters"])["operations_started"]
    for _ in range(2):  # what was lowered before is told again
        text = jhetcc.explain(step, weights, jax.ShapeDtypeStruct((1000,), "float32"))
        heads = [line for line in text.splitlines() if " on 'world' (" in line]
        assert [head.split(" on ")[0] for head in heads] == ["pmean(f32[1001])", "pmax(f32[])"]
        assert "predicted" in text and "bounced through host memory: 0 bytes" in text
    assert dict(comm.status()["counters"])["operations_started"] == before


def test_a_function_without_operations(comm):
    assert jhetcc.explain(lambda x: x + 1, jnp.ones(2)) == "no operation of this library"


def test_what_tracing_raises_comes_out(comm):
    with pytest.raises(jhetcc.BadArgumentError, match="root"):
        jhetcc.explain(lambda x: jhetcc.broadcast(x, root=7), jnp.ones(2))
