# SPDX-License-Identifier: Apache-2.0
"""A world without a core: operations of a few local devices are lowered to XLA's own collectives.

Tracing, batching, derivatives, packing and lowering are the real ones; only the last step, the FFI call, is replaced, so the
values can be compared with ``jax.lax`` in one process.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir

from jhetcc import compat
from jhetcc.errors import BadArgumentError, NotInitializedError
from jhetcc.schedule.operation import Operation
from jhetcc.world import state

_REDUCE = {"psum": jnp.sum, "pmax": jnp.max, "pmin": jnp.min, "pprod": jnp.prod, "pmean": jnp.mean}
_OPS = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min, "prod": jnp.prod, "mean": jnp.mean}


class FakeCommunicator:
    """What ``jhetcc.world.state.communicator`` gives, for ranks that are all local or partly imagined."""

    def __init__(self, name: str, size: int, devices: tuple, local_ranks: tuple[int, ...], islands: tuple[int, ...]):
        self.name = name
        self.size = size
        self.devices = self.island_devices = devices
        self.local_ranks = local_ranks
        self.island_sizes = islands
        self.epoch = 0
        self.prepared: list[str] = []

    def prepare(self, text: str) -> None:
        Operation.parse(text).check(self.size)
        self.prepared.append(text)


class FakeWorld(dict):
    """Communicators by name, and the operations that were lowered."""

    def add(
        self, name: str, size: int, local: int | None = None, islands: tuple[int, ...] | None = None
    ) -> FakeCommunicator:
        local = size if local is None else local
        found = islands or tuple(min(local or 1, size - begin) for begin in range(0, size, local or 1))
        self[name] = FakeCommunicator(name, size, tuple(jax.devices()[:local]), tuple(range(local)), found)
        return self[name]

    @property
    def texts(self) -> list[str]:
        return [text for communicator in self.values() for text in communicator.prepared]


def _oracle(operation: Operation, size: int, index, gathered):
    """Result on one rank from everyone's contributions, stacked by rank."""
    name = operation.name
    if operation.columns is not None:
        rows = gathered.reshape(size // operation.columns, operation.columns, *gathered.shape[1:])
        gathered = rows[:, index % operation.columns]
    if name == "pmean" and operation.columns is not None:
        return (gathered.sum(axis=0) / size).astype(gathered.dtype)
    if name in _REDUCE:
        return _REDUCE[name](gathered, axis=0).astype(gathered.dtype)
    at_root = index == operation.root
    if name == "reduce":
        return jnp.where(at_root, _OPS[operation.op](gathered, axis=0).astype(gathered.dtype), 0).astype(gathered.dtype)
    if name in ("all_gather", "gather"):
        out = gathered
        if operation.lengths is not None:
            out = jnp.concatenate([gathered[r, :rows] for r, rows in enumerate(operation.lengths)])
        return out if name == "all_gather" else jnp.where(at_root, out, jnp.zeros_like(out))
    if name == "psum_scatter":
        return gathered.sum(axis=0).astype(gathered.dtype)[index]
    if name == "all_to_all":
        return gathered[:, index]
    if name == "broadcast":
        return gathered[operation.root]
    if name == "scatter" and operation.lengths is None:
        return gathered[operation.root][index]
    if name == "scatter":
        begins = np.cumsum([0, *operation.lengths[:-1]])
        rows = max(operation.lengths)
        padded = jnp.pad(gathered[operation.root], [(0, rows)] + [(0, 0)] * (gathered.ndim - 2))
        part = jax.lax.dynamic_slice_in_dim(padded, jnp.array(begins)[index], rows)
        keep = jnp.arange(rows) < jnp.array(operation.lengths)[index]
        return jnp.where(keep.reshape(-1, *(1,) * (part.ndim - 1)), part, jnp.zeros_like(part))
    if name == "ppermute":
        source = np.full(size, -1)
        for a, b in operation.perm:
            source[b] = a
        mine = jnp.array(source)[index]
        return jnp.where(mine >= 0, gathered[mine], jnp.zeros_like(gathered[0]))
    assert name == "sendrecv", name
    return gathered[operation.from_]


@pytest.fixture
def world(monkeypatch):
    """A table of communicators whose operations run on the local devices; starts with none."""
    table = FakeWorld()

    def communicator(name):
        if not table:
            raise NotInitializedError("no world", code="not_initialized")
        if name not in table:
            raise BadArgumentError(f"no communicator '{name}'", code="axis_name")
        return table[name]

    def lower(context, target, operands, attributes, alias):
        assert target == "jhetcc_collective"
        operation = Operation.parse(attributes["operation"])
        size = table[attributes["communicator"]].size
        mesh = compat.placement(context).mesh
        if operation.name == "barrier":
            context.set_tokens_out(context.tokens_in)
            return []
        assert operation.name not in ("send", "recv"), "messages need the core"

        def run(x):
            if mesh is None:
                return _oracle(operation, size, 0, x[None])
            axes = tuple(mesh.axis_names)
            return _oracle(operation, size, jax.lax.axis_index(axes), jax.lax.all_gather(x, axes))

        results = emit(context, mesh, run, *operands)
        context.set_tokens_out(context.tokens_in)
        return results

    def emit(context, mesh, run, *operands):
        sizes = [] if mesh is None else list(mesh.shape.items())
        inner = context.replace(tokens_in=mlir.TokenSet(), tokens_out=None)
        with compat.core.extend_axis_env_nd(sizes), compat.config._check_vma(False):
            return mlir.lower_fun(run, multiple_results=False)(inner, *operands)

    def lower_pure(context, target, attributes):
        assert target == "jhetcc_rank"
        mesh = compat.placement(context).mesh
        run = (lambda: jnp.int32(0)) if mesh is None else (lambda: jax.lax.axis_index(tuple(mesh.axis_names)))
        return emit(context, mesh, run)

    monkeypatch.setattr(compat, "lower_pure", lower_pure)
    monkeypatch.setattr(state, "communicator", communicator)
    monkeypatch.setattr(compat, "lower_ordered", lower)
    jax.clear_caches()
    yield table
    jax.clear_caches()


@pytest.fixture
def wire(monkeypatch, world):
    """The same table, with the real FFI calls in the lowered text (nothing can run)."""
    monkeypatch.undo()
    table = world

    def communicator(name):
        return table[name]

    monkeypatch.setattr(state, "communicator", communicator)
    return table


def over(n: int, axis: str = "d"):
    """A mesh of the first n local devices."""
    return jax.sharding.Mesh(np.array(jax.devices()[:n]), (axis,))
