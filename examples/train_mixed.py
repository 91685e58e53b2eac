# SPDX-License-Identifier: Apache-2.0
"""Trains one model across JAX programs that share no XLA runtime, and checks that they did the same as a single program.

    python -m jhetcc launch --islands cpu:2,cpu:1@oneccl,cpu:1@oneccl,cpu:1@mpi,cpu:1@mpi examples/train_mixed.py

Each process runs this script. One with several devices spreads its step over them with ``jax.shard_map``; one with a single device just
calls it. Both average gradients with every other rank of the job by one ``jhetcc.pmean``. Processes with one collective library form a
cluster, as the devices of one vendor do: here oneCCL and MPICH play two vendors. The command fails if a check does.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import model
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jhetcc

ROWS = 16  # of a global batch, or a few more: every rank has as many
OPTIMIZER = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1.5e-3, 20, 100, 1.5e-4), eps=1e-6),
)
LOSS_MAX = 2.7  # the last steps' mean must be below; a model that knows only how often each byte occurs stays above 3.1
LOSS_DIFFERENCE_MAX = 1e-4  # to a single program on the same batches, at every step


def rows_per_rank(size: int) -> int:
    return -(-ROWS // size)


def fingerprint(tree) -> jax.Array:
    """One number of all bits of a pytree: any changed bit changes it; exact, whatever the order of summation."""
    total = jnp.uint32(0)
    for place, leaf in enumerate(jax.tree.leaves(tree)):
        bits = jax.lax.bitcast_convert_type(leaf, jnp.uint32).ravel()
        total += jnp.sum(bits * (2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1), dtype=jnp.uint32) * jnp.uint32(
            2 * place + 1
        )
    return total


def train_step(weights, state, tokens):
    """One step of one rank: its own rows, and the mean over all ranks of gradients and loss."""
    loss, gradients = jax.value_and_grad(model.loss)(weights, tokens)
    gradients = jhetcc.pmean(gradients)
    loss = jhetcc.pmean(loss)
    updates, state = OPTIMIZER.update(gradients, state, weights)
    weights = optax.apply_updates(weights, updates)
    marks = jnp.stack([fingerprint(gradients), fingerprint(weights)])[None]
    return weights, state, loss, gradients, marks


class Island:
    """The devices of this process, and how a step is run on them: one compiled program, one rank a device."""

    def __init__(self, devices):
        self.devices = devices
        self.mesh = Mesh(np.array(devices), ("d",))
        self.whole, self.rows = NamedSharding(self.mesh, P()), NamedSharding(self.mesh, P("d"))

    def compile(self, function, ins, outs):
        """``ins`` and ``outs`` say of each value whether it is "whole" on every device or in "rows" over them."""
        if len(self.devices) == 1:
            return jhetcc.jit(function)
        specs = {"whole": P(), "rows": P("d")}
        return jhetcc.jit(
            jax.shard_map(
                function,
                mesh=self.mesh,
                in_specs=tuple(specs[each] for each in ins),
                out_specs=tuple(specs[each] for each in outs),
                check_vma=False,  # each device differentiates its own rows; the mean over all ranks is ours
            )
        )

    def place(self, tree, how):
        if len(self.devices) == 1:
            return jax.device_put(tree, self.devices[0])
        return jax.device_put(tree, self.whole if how == "whole" else self.rows)

    def digests(self, tree) -> np.ndarray:
        """SHA-256 of each device's own copy, uint8[devices, 32]."""
        hashes = [hashlib.sha256() for _ in self.devices]
        for leaf in jax.tree.leaves(tree):
            copies = {shard.device: shard.data for shard in leaf.addressable_shards}
            for device, digest in zip(self.devices, hashes, strict=True):
                digest.update(np.asarray(copies[device]).tobytes())
        return np.stack([np.frombuffer(digest.digest(), np.uint8) for digest in hashes])


def timed(comm, step, *arguments):
    """Runs one step to its end; its results, its seconds, and those in which operations of this process's first rank were under way."""

    def in_operations():
        return comm.status()["ranks"][0]["seconds_in_operations"]

    before, begun = in_operations(), time.perf_counter()
    results = jax.block_until_ready(step(*arguments))
    return results, time.perf_counter() - begun, in_operations() - before


def train(comm, island, text, steps):
    """The job. Returns losses, and what all ranks are to agree on bit by bit: marks of every step, digests of the last."""
    first = comm.local_ranks[0]
    ins, outs = ("whole", "whole", "rows"), ("whole", "whole", "whole", "whole", "rows")
    step = island.compile(train_step, ins, outs)
    weights = island.place(model.initial_weights(), "whole")
    state = island.place(OPTIMIZER.init(weights), "whole")
    each = rows_per_rank(comm.size)
    mine = slice(first * each, (first + len(island.devices)) * each)

    def rows(number):
        return island.place(model.batch(text, number, comm.size * each)[mine], "rows")

    losses, marks, gradients, step_s, operations_s = [], [], None, [], []
    for number in range(steps):
        (weights, state, loss, gradients, mark), *seconds = timed(comm, step, weights, state, rows(number))
        losses.append(float(loss))
        marks.append(np.asarray(mark))
        if number > 0:  # the first one is compiled
            step_s.append(seconds[0])
            operations_s.append(seconds[1])
        if first == 0 and number % 10 == 9:
            speed = comm.size * each * model.CONTEXT / np.mean(step_s[-10:])
            share = np.sum(operations_s[-10:]) / np.sum(step_s[-10:])
            words = f"loss {losses[-1]:.4f}  {speed:8.0f} tokens/s  communicating and waiting {share:4.0%}"
            print(f"step {number + 1:4}/{steps}  {words}", flush=True)
    mine_now = np.stack([island.digests(gradients), island.digests(weights)], axis=1)
    return losses, np.stack(marks, axis=1), mine_now


def check_bits(island, marks, digests) -> int:
    """Gathers marks uint32[devices, steps, 2] and digests uint8[devices, 2, 32] of all ranks; returns the number of ranks."""

    def gather(marks, digests):
        return jhetcc.all_gather(marks, tiled=True), jhetcc.all_gather(digests, tiled=True)

    gathered = island.compile(gather, ("rows", "rows"), ("whole", "whole"))
    all_marks, all_digests = gathered(island.place(marks, "rows"), island.place(digests, "rows"))
    for name, place in (("gradients", 0), ("weights", 1)):
        steps = np.asarray(all_marks)[:, :, place]
        different = np.flatnonzero((steps != steps[0]).any(axis=0))
        if different.size:
            sys.exit(
                f"check failed: {name} differ between ranks, first at step {different[0] + 1}: {steps[:, different[0]]}"
            )
        if (np.asarray(all_digests)[:, place] != np.asarray(all_digests)[0, place]).any():
            sys.exit(f"check failed: {name} differ between ranks after the last step")
    return len(np.asarray(all_marks))


def introduce(comm, topology, parameters, text) -> None:
    """Who takes part, by cluster; rank 0 says it."""
    print(f"{parameters:,} parameters, {len(text):,} bytes of text, {comm.size} ranks", flush=True)
    for number, cluster in enumerate(topology.clusters):
        whose = "our own schedules" if cluster.library == "none" else f"{cluster.library} {cluster.version}"
        ranks = ", ".join(map(str, cluster.ranks))
        print(f"cluster {number}, {cluster.name}: ranks {ranks}, joined by {whose}", flush=True)


def how_it_ran(comm, operation) -> None:
    """The gist of ``comm.explain``: the method and its predicted time, and what happens within clusters and between them."""
    told = comm.explain(operation).splitlines()
    rated = [line for line in told if " predicted" in line]  # the fastest first
    name, microseconds = next(line for line in rated if line.startswith("*")).split()[1:3]
    fastest, least = rated[0].lstrip("* ").split()[:2]
    print(f"{operation} ran by {name}, predicted to take {microseconds} us", flush=True)
    if name != fastest and "JHETCC_ALGORITHM" in os.environ:
        among = told[0].rpartition("' (")[2].removesuffix(")")  # ranks and hosts
        print(f"  as JHETCC_ALGORITHM asks; else by {fastest}, {least} us, for {among}", flush=True)
    for line in told:
        if line.startswith("  stage: "):
            print(line, flush=True)
    if between := [int(line.split()[-2]) for line in told if line.startswith("  link cluster ")]:
        print(f"  {sum(between):,} bytes between clusters, by {len(between)} ways", flush=True)


def single_program(text, steps, rows) -> list[float]:
    """The reference: one device, plain JAX, whole batches."""

    @jax.jit
    def step(weights, state, tokens):
        loss, gradients = jax.value_and_grad(model.loss)(weights, tokens)
        updates, state = OPTIMIZER.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    weights = model.initial_weights()
    state = OPTIMIZER.init(weights)
    losses = []
    for number in range(steps):
        weights, state, loss = step(weights, state, model.batch(text, number, rows))
        losses.append(float(loss))
    return losses


def draw(path: Path, losses, reference, ranks) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(7, 5), height_ratios=(3, 1), layout="constrained")
    upper.plot(losses, label=f"{ranks} ranks in several programs")
    upper.plot(reference, "--", label="one program")
    upper.set_ylabel("loss, nats a byte")
    upper.legend()
    lower.semilogy(np.maximum(np.abs(np.subtract(losses, reference)), 1e-9))
    lower.axhline(LOSS_DIFFERENCE_MAX, color="red", linewidth=0.8)
    lower.set_ylabel("difference")
    lower.set_xlabel("step")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--output", type=Path, default=Path("out/loss.png"), help="picture of the loss")
    parser.add_argument("--topology", type=Path, default=Path("out/topology.svg"), help="picture of hosts and clusters")
    arguments = parser.parse_args()

    comm = jhetcc.init()
    island = Island(jax.local_devices())
    text = model.read_text()
    parameters = sum(leaf.size for leaf in jax.tree.leaves(model.initial_weights()))
    chief = comm.local_ranks[0] == 0
    topology = comm.topology()
    if chief:
        introduce(comm, topology, parameters, text)
        arguments.topology.parent.mkdir(parents=True, exist_ok=True)
        arguments.topology.write_text(jhetcc.topology.svg(topology))
    losses, marks, digests = train(comm, island, text, arguments.steps)
    if chief:
        how_it_ran(comm, f"pmean(f32[{parameters}])")
    ranks = check_bits(island, marks, digests)
    comm.close()
    if not chief:
        return
    print(
        f"check passed: gradients and weights bit-identical on {ranks} ranks at all {arguments.steps} steps", flush=True
    )
    reference = single_program(text, arguments.steps, ranks * rows_per_rank(ranks))
    draw(arguments.output, losses, reference, ranks)
    worst = float(np.max(np.abs(np.subtract(losses, reference))))
    if not worst <= LOSS_DIFFERENCE_MAX:
        sys.exit(
            f"check failed: loss differs from a single program's by {worst:.2e}, more than {LOSS_DIFFERENCE_MAX:g}"
        )
    print(f"check passed: loss within {worst:.1e} of a single program's at every step", flush=True)
    final = float(np.mean(losses[-10:]))
    if not final < LOSS_MAX:
        sys.exit(f"check failed: loss of the last steps is {final:.3f}, not below {LOSS_MAX}")
    print(
        f"check passed: loss fell from {losses[0]:.3f} to {final:.3f}, below {LOSS_MAX}; pictures: {arguments.output}, "
        f"{arguments.topology}",
        flush=True,
    )


if __name__ == "__main__":
    main()
