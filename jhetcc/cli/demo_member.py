# SPDX-License-Identifier: Apache-2.0
"""One process of ``jhetcc demo failover``: trains a small MLP with the other one, and says how each step went, a JSON line each.

    python -m jhetcc.cli.demo_member SEED STEPS

It reads JSON lines, too: an address, whose connections it ends; so an address of loopback is a NIC that can be lost without any right.
Threads: the main one, and one that reads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sys
import threading
import time
from typing import Any

WIDTH, LAYERS, ROWS = 640, 4, 64  # 1.6 million parameters: 6.6 MB of gradients a step
RATE, MOMENTUM = 0.02, 0.9


def read_and_close() -> None:
    """A thread: for each address that it is told, ends the connections of this process from and to it, as if the NIC were gone."""
    for line in sys.stdin:
        address = json.loads(line)
        for number in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                close_if_of(address, number)


def close_if_of(address: str, number: int) -> None:
    if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
        return
    with socket.socket(fileno=os.dup(number)) as one:
        if one.family == socket.AF_INET and address in (one.getsockname()[0], one.getpeername()[0]):
            one.shutdown(socket.SHUT_RDWR)


def make_step(jhetcc: Any) -> tuple[Any, Any]:
    """The first weights' maker, and a compiled step: its own rows, and the mean of both processes' gradients."""
    import jax
    import jax.numpy as jnp

    def initial(seed: int) -> dict:
        keys = jax.random.split(jax.random.key(seed), LAYERS)
        weights = {
            "matrix": jnp.stack([jax.random.normal(key, (WIDTH, WIDTH)) * (1.2 / WIDTH) ** 0.5 for key in keys]),
            "shift": jnp.zeros((LAYERS, WIDTH)),
        }
        return {"weights": weights, "speed": jax.tree.map(jnp.zeros_like, weights)}

    def rows(seed: int, number: Any, rank: int) -> tuple[Any, Any]:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed + 1), number), rank)
        x = jax.random.normal(key, (ROWS, WIDTH))
        return x, jnp.sin(x + jnp.roll(x, 1, axis=1))

    def loss_of(weights: dict, x: Any, y: Any) -> Any:
        for k in range(LAYERS - 1):
            x = x + jnp.tanh(x @ weights["matrix"][k] + weights["shift"][k]) / LAYERS
        return jnp.mean((x @ weights["matrix"][-1] + weights["shift"][-1] - y) ** 2)

    def step(state: dict, seed: int, number: Any, rank: int) -> tuple[dict, Any]:
        loss, gradients = jax.value_and_grad(loss_of)(state["weights"], *rows(seed, number, rank))
        gradients, loss = jhetcc.pmean(gradients), jhetcc.pmean(loss)
        speed = jax.tree.map(lambda v, g: MOMENTUM * v - RATE * g, state["speed"], gradients)
        weights = jax.tree.map(jnp.add, state["weights"], speed)
        return {"weights": weights, "speed": speed}, loss

    return initial, jhetcc.jit(step, static_argnums=(1, 3))


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no answer
    seed, steps = map(int, sys.argv[1:])
    threading.Thread(target=read_and_close, name="demo-read", daemon=True).start()

    import jax
    import numpy as np

    import jhetcc

    comm = jhetcc.init()
    initial, step = make_step(jhetcc)
    state = initial(seed)
    rank = comm.rank

    def say(word: dict) -> None:
        print(json.dumps(word), file=answers, flush=True)

    def paths() -> list[dict]:
        found = comm.status()["ranks"][0]["rails"][1 - rank]
        return [
            {
                "state": path["state"],
                "bytes": path["sent_bytes"] + path["received_bytes"],
                "losses": path["losses"],
                "event": path["last_event"],
            }
            for path in found
            if path["tier"] == 0 and path["sent_bytes"] is not None
        ]

    for number in range(steps):
        begun = time.perf_counter()
        state, loss = jax.block_until_ready(step(state, seed, np.int32(number), rank))
        now = time.perf_counter()
        say({"step": number, "time": now, "seconds": now - begun, "loss": float(loss), "paths": paths()})
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        digest.update(np.asarray(leaf).tobytes())
    say({"digest": digest.hexdigest(), "aborts": comm.status()["counters"]["aborts"]})
    comm.close()


if __name__ == "__main__":
    main()
