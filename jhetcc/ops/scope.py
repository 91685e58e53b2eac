# SPDX-License-Identifier: Apache-2.0
"""The scope: keeps the order of operations inside one compiled program; jit is jax.jit of a scope.

JAX keeps ordered effects in order between programs too, which costs every call. A scope turns the effect into a token that
begins and ends inside the program. Called on the threads that trace or run JAX programs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jhetcc import compat
from jhetcc.errors import UnavailableError
from jhetcc.ops.machinery import typed_errors

__all__ = ["export_checks", "jit", "scope"]

TARGETS = ("jhetcc_collective", "jhetcc_rank")

# True while the body of a scope is traced; part of JAX's trace cache key, so a function jitted within a scope and the same
# function jitted alone are traced apart.
_within = jax.make_user_context(default_value=False)

scope_p = Primitive("jhetcc_scope")
scope_p.multiple_results = True


def _abstract(*avals: Any, jaxpr: Any) -> Any:
    return list(jaxpr.out_avals), {effect for effect in jaxpr.effects if effect != compat.EFFECT}


def _jvp(primals: Any, tangents: Any, *, jaxpr: Any) -> Any:
    """Runs the body inline: its operations join the order of the enclosing scope or program."""
    active = [k for k, tangent in enumerate(tangents) if not compat.is_symbolic_zero(tangent)]

    def body(*values: Any) -> Any:
        operands = list(primals)
        for k, value in zip(active, values, strict=True):
            operands[k] = value
        return compat.run(jaxpr)(*operands)

    outs, out_tangents = jax.jvp(body, [primals[k] for k in active], [tangents[k] for k in active])
    cleaned = [
        compat.tangent_zero(out) if getattr(tangent, "dtype", None) == jax.dtypes.float0 else tangent
        for out, tangent in zip(outs, out_tangents, strict=True)
    ]
    return outs, cleaned


def _batch(args: Any, dims: Any, *, jaxpr: Any) -> Any:
    outs = jax.vmap(compat.run(jaxpr), in_axes=tuple(dims))(*args)
    return outs, [0] * len(outs)


def _lower(context: Any, *operands: Any, jaxpr: Any) -> Any:
    return compat.lower_body(context, operands, jaxpr, "jhetcc_scope")


@functools.lru_cache(maxsize=1024)
def _compiled(jaxpr: Any) -> Callable[..., Any]:
    return jax.jit(functools.partial(scope_p.bind, jaxpr=jaxpr))


scope_p.def_effectful_abstract_eval(_abstract)
scope_p.def_impl(lambda *operands, jaxpr: _compiled(jaxpr)(*operands))
mlir.register_lowering(scope_p, _lower)
ad.primitive_jvps[scope_p] = _jvp
batching.primitive_batchers[scope_p] = _batch
compat.keep_when_unused(scope_p)


def _batched_cond() -> Exception:
    return UnavailableError(
        "vmap of jax.lax.cond (or switch) with a mapped predicate around an operation of this library: vmap turns it into a "
        "select that runs both branches, so ranks would run operations their predicate did not choose. Take the operation out "
        "of the branches (select its operand or its result with jnp.where), or loop over the batch with jax.lax.map",
        code="batched_predicate",
    )


compat.guard_batched_cond(_batched_cond)


def _is_operand(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray))


def scope(f: Callable[..., Any]) -> Callable[..., Any]:
    """Orders the operations inside ``f`` within the compiled program, at no cost between programs.

    Use one outermost scope for a step: the operations of scopes next to each other in one program have no order between them.
    A scope within a scope is simply part of it. Differentiating or vmapping a scope from outside runs its operations in the
    order of the enclosing scope or, without one, on the slower road of plain ``jax.jit``: write ``scope(grad(f))``.

    Args:
      f: a function of trees of arrays; other leaves (Python numbers, strings) are passed through unchanged.

    Returns:
      A function with the signature of ``f``.

    Example:
      >>> import jax, jax.numpy as jnp, jhetcc
      >>> _ = jhetcc.init()
      >>> step = jax.jit(jhetcc.scope(lambda x: jhetcc.psum(x) + 1))
      >>> float(step(jnp.float32(2)))
      3.0
    """

    @functools.wraps(f)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        if _within.value:
            return f(*args, **kwargs)
        leaves, structure = jax.tree.flatten((args, kwargs))
        places = [k for k, leaf in enumerate(leaves) if _is_operand(leaf)]
        out_structure: list[Any] = []

        def body(*operands: Any) -> list[Any]:
            filled = list(leaves)
            for k, operand in zip(places, operands, strict=True):
                filled[k] = operand
            inner_args, inner_kwargs = jax.tree.unflatten(structure, filled)
            outs, tree = jax.tree.flatten(f(*inner_args, **inner_kwargs))
            out_structure.append(tree)
            return outs

        operands = [leaves[k] for k in places]
        with _within(True):
            jaxpr, captured = compat.close(body, operands)
        outs = scope_p.bind(*captured, *operands, jaxpr=jaxpr)
        return jax.tree.unflatten(out_structure[-1], outs)

    return scoped


def jit(f: Callable[..., Any] | None = None, **jax_jit_arguments: Any) -> Callable[..., Any]:
    """``jax.jit`` for functions with operations of this library: ordered, fast to call, and with typed errors.

    A call costs what a call of ``jax.jit`` costs. Inside another ``jit``, ``scope`` or transformation the function is part of
    what encloses it.

    Args:
      f: the function; without it a decorator is returned.
      **jax_jit_arguments: as for ``jax.jit``: ``donate_argnums``, ``static_argnames``, ``in_shardings``, ...

    Returns:
      The compiled function, with ``lower``, ``trace``, ``eval_shape`` and ``clear_cache`` of ``jax.jit``.

    Raises:
      Error: the typed error of a failed operation, where the call itself reports it; otherwise it surfaces when a result is
        read, as ``jax.errors.JaxRuntimeError``, and ``jhetcc.error_of`` gives its typed form.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> _ = jhetcc.init()
      >>> step = jhetcc.jit(lambda x: jhetcc.pmean(x * 2.0), donate_argnums=0)
      >>> step(jnp.ones(2)).tolist()
      [2.0, 2.0]
    """
    if f is None:
        return functools.partial(jit, **jax_jit_arguments)
    alone = jax.jit(scope(f), **jax_jit_arguments)
    enclosed = jax.jit(f, **jax_jit_arguments)
    clean = compat.trace_is_clean
    failed = compat.JaxRuntimeError

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not clean():
            return enclosed(*args, **kwargs)
        try:
            return alone(*args, **kwargs)
        except failed as error:
            typed_errors(error)
            raise

    def clear_cache() -> None:
        alone.clear_cache()
        enclosed.clear_cache()

    call.lower = alone.lower  # type: ignore[attr-defined]
    call.trace = alone.trace  # type: ignore[attr-defined]
    call.eval_shape = alone.eval_shape  # type: ignore[attr-defined]
    call.clear_cache = clear_cache  # type: ignore[attr-defined]
    return call


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
