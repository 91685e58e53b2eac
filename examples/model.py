# SPDX-License-Identifier: Apache-2.0
"""A byte-level decoder-only transformer in plain JAX, and the text it reads: the sources of Python's standard library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

WIDTH, LAYERS, HEADS, CONTEXT, BYTES = 160, 4, 4, 64, 256


def read_text(size: int = 2_000_000) -> np.ndarray:
    """The first ``size`` bytes of the standard library's top-level modules, the same on every host with the same Python."""
    text = b""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= size:
            break
    return np.frombuffer(text[:size], np.uint8)


def batch(text: np.ndarray, step: int, rows: int) -> np.ndarray:
    """The global batch of a step, int32[rows, CONTEXT + 1]; every process can compute all of it."""
    starts = np.random.default_rng([7, step]).integers(0, len(text) - CONTEXT - 1, rows)
    return np.stack([text[start : start + CONTEXT + 1] for start in starts]).astype(np.int32)


def initial_weights(seed: int = 0) -> dict:
    """About 1.3 million parameters; the layers are stacked, so that they are compiled once."""
    keys = iter(jax.random.split(jax.random.key(seed), 8))

    def normal(*shape: int, scale: float) -> jax.Array:
        return scale * jax.random.normal(next(keys), shape, jnp.float32)

    inner = WIDTH**-0.5
    return {
        "embedding": normal(BYTES, WIDTH, scale=0.02),
        "position": normal(CONTEXT, WIDTH, scale=0.02),
        "layers": {
            "attention_gain": jnp.ones((LAYERS, WIDTH)),
            "query_key_value": normal(LAYERS, WIDTH, 3 * WIDTH, scale=inner),
            "mix": normal(LAYERS, WIDTH, WIDTH, scale=inner / (2 * LAYERS) ** 0.5),
            "mlp_gain": jnp.ones((LAYERS, WIDTH)),
            "up": normal(LAYERS, WIDTH, 4 * WIDTH, scale=inner),
            "down": normal(LAYERS, 4 * WIDTH, WIDTH, scale=inner / 2 / (2 * LAYERS) ** 0.5),
        },
        "final_gain": jnp.ones((WIDTH,)),
        "output": normal(WIDTH, BYTES, scale=inner),
    }


def _normalized(x: jax.Array, gain: jax.Array) -> jax.Array:
    return x * gain * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)


def _layer(x: jax.Array, weights: dict) -> tuple[jax.Array, None]:
    rows, length, _ = x.shape
    projected = _normalized(x, weights["attention_gain"]) @ weights["query_key_value"]
    query, key, value = jnp.moveaxis(projected.reshape(rows, length, 3, HEADS, WIDTH // HEADS), 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (WIDTH // HEADS) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value).reshape(x.shape)
    x = x + mixed @ weights["mix"]
    return x + jax.nn.gelu(_normalized(x, weights["mlp_gain"]) @ weights["up"]) @ weights["down"], None


def loss(weights: dict, tokens: jax.Array) -> jax.Array:
    """Mean cross entropy of the next byte, in nats; tokens: int32[rows, CONTEXT + 1]."""
    x = weights["embedding"][tokens[:, :-1]] + weights["position"]
    x, _ = jax.lax.scan(_layer, x, weights["layers"])
    logits = jax.nn.log_softmax(_normalized(x, weights["final_gain"]) @ weights["output"])
    return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1))
