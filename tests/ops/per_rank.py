# SPDX-License-Identifier: Apache-2.0
"""Runs one function on every rank of a job, however its ranks are grouped into processes; the vocabulary of the cases.

A case is a function ``case_*(comm)`` that every process of a job calls. It makes the contributions of all ranks from their
numbers, runs an operation on those of this process, and compares with numpy over all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jhetcc.ops as jh

__all__ = ["cases_of", "eagerly", "everyone", "here", "iota", "only", "per_rank", "processes", "same_everywhere"]


def only(fits: Callable[[Any], bool], why: str) -> Callable[[Any], Any]:
    """Marks a case that makes sense on some jobs only; ``case.fits(comm)`` asks it, with one answer for all processes."""

    def mark(case: Any) -> Any:
        case.fits, case.why = fits, why
        return case

    return mark


def cases_of(module: Any, comm: Any) -> dict[str, Callable[[Any], None]]:
    """The cases of a module that fit a job, by name."""
    found = {name: f for name, f in vars(module).items() if name.startswith("case_")}
    return {name: f for name, f in found.items() if getattr(f, "fits", lambda _: True)(comm)}


def iota(comm: Any, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    """All ranks' contributions, ranks first: 1000 * rank + index, never a constant."""
    size = int(np.prod(shape))
    parts = [(1000 * rank + np.arange(size)).reshape(shape) for rank in range(comm.size)]
    return np.stack(parts).astype(dtype)


def processes(comm: Any) -> int:
    """Number of processes of the job: the same everywhere, unlike what this one owns."""
    return getattr(comm, "processes", None) or jh.axis_size("islands")


def eagerly(comm: Any) -> Any:
    """How to call without jit where that says which rank is meant, else with it; the operations are the same."""
    return None if len(comm.devices) == 1 else jax.jit


def here(comm: Any, everything: Any) -> Any:
    """The part of this process's ranks of something that leads with the ranks' dimension."""
    return jax.tree.map(lambda a: a[np.array(comm.local_ranks)], everything)


@functools.lru_cache(maxsize=512)
def _program(f: Callable[..., Any], devices: tuple[Any, ...], compile_with: Any, vma: bool) -> Callable[..., Any]:
    if len(devices) == 1:
        return compile_with(f) if compile_with is not None else f

    def body(*local: Any) -> Any:
        outs = f(*(jax.tree.map(lambda x: x[0], one) for one in local))
        return jax.tree.map(lambda y: y[None], outs)

    mesh = Mesh(np.array(devices), ("d",))
    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=vma)
    return (compile_with or jax.jit)(mapped)


def per_rank(comm: Any, f: Callable[..., Any], *everything: Any, compile_with: Any = jax.jit, vma: bool = False) -> Any:
    """Runs ``f`` once on each rank of this process and stacks the results.

    Args:
      comm: the communicator; ``f`` uses its name, or the default axis for the world.
      f: from one rank's contributions to its results, trees of arrays.
      *everything: contributions of all ranks, ranks first, as numpy arrays or trees of them.
      compile_with: ``jax.jit``, ``jhetcc.jit``, or None for eager calls (where the process owns one rank).
      vma: whether ``shard_map`` checks varying axes.

    Returns:
      numpy arrays that lead with this process's ranks.
    """
    program = _program(f, tuple(comm.devices), compile_with, vma)
    local = here(comm, everything)
    if len(comm.devices) == 1:
        outs = program(*jax.tree.map(lambda a: a[0], local))
        return jax.tree.map(lambda y: np.asarray(y)[None], outs)
    sharding = NamedSharding(Mesh(np.array(comm.devices), ("d",)), P("d"))
    outs = program(*jax.device_put(local, sharding))
    return jax.tree.map(np.asarray, outs)


def everyone(comm: Any, want: np.ndarray) -> np.ndarray:
    """What ``per_rank`` gives when every rank has the same result."""
    return np.stack([want] * len(comm.local_ranks))


def same_everywhere(comm: Any, values: np.ndarray) -> None:
    """Checks that all ranks hold the same bits."""
    raw = np.ascontiguousarray(values)
    bits = raw.reshape(len(comm.local_ranks), -1).view(np.uint8)
    gathered = per_rank(comm, lambda b: jh.all_gather(b, comm.name), _spread(comm, bits))
    for other in gathered.reshape(-1, bits.shape[1]):
        np.testing.assert_array_equal(other, bits[0])


def _spread(comm: Any, local: np.ndarray) -> np.ndarray:
    """Local rows at their places in an array for all ranks (the other rows are never read here)."""
    out = np.zeros((comm.size, *local.shape[1:]), local.dtype)
    out[np.array(comm.local_ranks)] = local
    return out
