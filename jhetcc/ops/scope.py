# SPDX-License-Identifier: Apache-2.0
"""Programs: the order of operations within one (see ``compat.install_program_order``), typed errors, export.

Called on the threads that trace or run JAX programs; importing it changes how JAX lowers programs with collectives.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jhetcc import compat
from jhetcc.errors import UnavailableError, error_of
from jhetcc.world import state

__all__ = ["export_checks", "jit", "scope", "typed_errors"]

TARGETS = ("jhetcc_collective", "jhetcc_rank")

compat.install_program_order()


def raise_typed(error: BaseException) -> None:
    """Raises the typed error an exception carries; returns if it carries none, or is it."""
    typed = error_of(error)
    if typed is not None and typed is not error:
        raise typed from error


@contextlib.contextmanager
def typed_errors() -> Iterator[None]:
    """Turns failures of programs inside into the typed errors they carry."""
    try:
        yield
    except compat.FAILURES as error:
        raise_typed(error)
        raise


def _batched_cond() -> Exception:
    return UnavailableError(
        "vmap of jax.lax.cond (or switch) with a mapped predicate around an operation of this library: vmap turns it into a "
        "select that runs both branches, so ranks would run operations their predicate did not choose. Take the operation out "
        "of the branches (select its operand or its result with jnp.where), or loop over the batch with jax.lax.map",
        code="batched_predicate",
    )


compat.guard_batched_cond(_batched_cond)


def scope(f: Callable[..., Any]) -> Callable[..., Any]:
    """Runs ``f`` as one program, so that its operations keep their order and overlap with computation.

    Inside ``jit`` or another transformation the enclosing program is the scope already, and ``f`` is simply part of it: all
    operations of one program have one order, that of the Python code, through ``grad``, ``scan``, ``cond`` and ``shard_map``.
    Called outside, ``f`` is compiled, once for each structure of its arguments.

    Args:
      f: a function of trees of arrays; other leaves (Python numbers, strings) are passed through unchanged.

    Returns:
      A function with the signature of ``f``.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> float(jhetcc.scope(lambda x: jhetcc.psum(x) + 1)(jnp.float32(2)))
      3.0
      >>> comm.close()
    """
    programs: dict[Any, Callable[..., Any]] = {}

    @functools.wraps(f)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        if not compat.trace_is_clean():
            return f(*args, **kwargs)
        leaves, structure = jax.tree.flatten((args, kwargs))
        places = tuple(k for k, leaf in enumerate(leaves) if isinstance(leaf, (jax.Array, np.ndarray)))
        fixed = tuple(None if k in places else (type(leaf), leaf) for k, leaf in enumerate(leaves))
        program = programs.get((structure, fixed))
        if program is None:

            def body(*operands: Any) -> Any:
                filled = [None if pair is None else pair[1] for pair in fixed]
                for k, operand in zip(places, operands, strict=True):
                    filled[k] = operand
                inner_args, inner_kwargs = jax.tree.unflatten(structure, filled)
                return f(*inner_args, **inner_kwargs)

            program = programs[structure, fixed] = jit(body)
        return program(*(leaves[k] for k in places))

    return scoped


def jit(f: Callable[..., Any] | None = None, **jax_jit_arguments: Any) -> Callable[..., Any]:
    """``jax.jit``, and failed operations raise their typed errors.

    The program is that of ``jax.jit``, and so is the cost of a call but for a tenth of a microsecond.

    Args:
      f: the function; without it a decorator is returned.
      **jax_jit_arguments: as for ``jax.jit``: ``donate_argnums``, ``static_argnames``, ``in_shardings``, ...

    Returns:
      The compiled function, with ``lower``, ``trace``, ``eval_shape`` and ``clear_cache`` of ``jax.jit``.

    Raises:
      Error: the typed error of a failed operation, where the call itself reports it, or where an earlier call's failure ended a
        communicator that this program uses. Otherwise it surfaces when a result is read, as ``jax.errors.JaxRuntimeError``,
        and ``jhetcc.error_of`` gives its typed form.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> step = jhetcc.jit(lambda x: jhetcc.pmean(x * 2.0), donate_argnums=0)
      >>> step(jnp.ones(2)).tolist()
      [2.0, 2.0]
      >>> comm.close()
    """
    if f is None:
        return functools.partial(jit, **jax_jit_arguments)
    jitted = jax.jit(f, **jax_jit_arguments)
    failures = compat.FAILURES
    failed_seen = 0

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal failed_seen
        world = state.current()
        if world is not None and (failed := world.process.operations_failed) != failed_seen:
            _refuse_ended(jitted, args, kwargs)
            failed_seen = failed
        try:
            return jitted(*args, **kwargs)
        except failures as error:
            raise_typed(error)
            raise

    for name in ("lower", "trace", "eval_shape", "clear_cache"):
        setattr(call, name, getattr(jitted, name))
    return call


def _refuse_ended(program: Any, args: Any, kwargs: Any) -> None:
    """Raises the error of an ended communicator that a program uses.

    On several devices a call only dispatches; without this a loop that never reads a result would not learn of the end.
    """
    ended = state.ended()
    if not ended or not compat.trace_is_clean():
        return
    jaxpr = program.trace(*args, **kwargs).jaxpr.jaxpr
    used = {parameters.get("axis") for parameters in compat.parameters_of(jaxpr, "jhetcc_")}
    for communicator in ended:
        if communicator.name in used:
            communicator.check()


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """What ``jax.export.export`` needs to be told to accept the custom calls of this library.

    Returns:
      A list for its argument ``disabled_checks``. The calls keep their meaning between releases of one minor version.

    Example:
      >>> import jhetcc
      >>> len(jhetcc.export_checks())
      2
    """
    return [jax.export.DisabledSafetyCheck.custom_call(target) for target in TARGETS]
