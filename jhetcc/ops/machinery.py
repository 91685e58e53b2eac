# SPDX-License-Identifier: Apache-2.0
"""How an operation becomes a JAX primitive: abstract evaluation, lowering, eager calls, batching, derivatives.

Every primitive has a canonical form (the ranks' dimension leads), so that one small table of rules serves all families.
Called on the threads that trace or, for eager calls, run; the only state is a cache of jitted eager calls.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jhetcc import compat
from jhetcc.errors import BadArgumentError
from jhetcc.ops import wire
from jhetcc.ops.axes import check_placement
from jhetcc.ops.scope import typed_errors
from jhetcc.schedule.operation import Operation
from jhetcc.world import state

__all__ = ["Form", "bind", "define", "eager", "emit", "listening", "same"]


class Form(NamedTuple):
    """Which part of the canonical shape an operation changes.

    Attributes:
      takes: the operand has a leading dimension of the ranks (or of rows, with lengths).
      gives: the result has one.
      shape: from operand shape and parameters to result shape.
    """

    takes: bool
    gives: bool
    shape: Callable[..., tuple[int, ...]]


def same(shape: tuple[int, ...], **_: Any) -> tuple[int, ...]:
    """The result's shape is the operand's."""
    return shape


SAME = Form(False, False, same)
_listeners: contextvars.ContextVar[list[tuple[str, str]] | None] = contextvars.ContextVar("listeners", default=None)


@contextlib.contextmanager
def listening() -> Iterator[list[tuple[str, str]]]:
    """What is lowered inside, on this thread: (communicator, operation text) in order."""
    asked: list[tuple[str, str]] = []
    token = _listeners.set(asked)
    try:
        yield asked
    finally:
        _listeners.reset(token)


def define(
    name: str,
    form: Form = SAME,
    *,
    transpose: Callable[..., Any] | None = None,
    not_differentiable: str | None = None,
    result: Callable[[Any], Any] = lambda aval: aval,
    in_place: bool = False,
) -> Primitive:
    """Makes the primitive of an operation with one operand and one result.

    Args:
      name: the operation's name in messages and, with ``jhetcc_`` before it, in jaxprs.
      form: its canonical shapes.
      transpose: cotangent and parameters to the operand's cotangent; the operation is linear.
      not_differentiable: instead of transpose: why there is no derivative, and what to do.
      result: last change to the result's aval.
      in_place: whether the result may take the operand's memory.

    Returns:
      A primitive with the parameters ``axis`` (communicator), ``size`` (its ranks), and the operation's own.
    """
    primitive = Primitive(f"jhetcc_{name}")

    def abstract(x: Any, **params: Any) -> Any:
        return result(compat.resized(x, form.shape(x.shape, **params))), {compat.EFFECT}

    def batch(args: Any, dims: Any, **params: Any) -> Any:
        (x,), (dim,) = args, dims
        # With lengths the leading dimension counts rows on both sides; keep it leading.
        rows = params.get("lengths") is not None
        takes, gives = form.takes or rows, form.gives or rows
        if takes and dim == 0:
            x, dim = jnp.moveaxis(x, 0, 1), 1
        elif not takes and gives:
            return primitive.bind(x, **params), dim + 1
        out = primitive.bind(x, **params)
        return out, dim - 1 if takes and not gives else dim

    primitive.def_effectful_abstract_eval(abstract)
    primitive.def_impl(functools.partial(eager, primitive))
    compat.register_lowering(primitive, functools.partial(_lower, name, in_place))
    batching.primitive_batchers[primitive] = batch
    if transpose is not None:
        ad.deflinear2(primitive, lambda ct, x, **params: [_transposed(transpose, ct, x, params)])
    elif not_differentiable is not None:
        ad.primitive_jvps[primitive] = _refusing(name, not_differentiable)
    return primitive


def _transposed(transpose: Callable[..., Any], ct: Any, x: Any, params: dict[str, Any]) -> Any:
    if compat.is_symbolic_zero(ct):
        return compat.Zero(x.aval)
    return transpose(ct, **params)


def _refusing(name: str, why: str) -> Callable[..., Any]:
    def rule(primals: Any, tangents: Any, **params: Any) -> Any:
        raise BadArgumentError(
            f"{name} on '{params.get('axis')}' is not differentiable: {why}", code="not_differentiable"
        )

    return rule


def describe(name: str, aval: Any | None, params: dict[str, Any]) -> Operation:
    """The operation as a value, from a primitive's parameters."""
    keys = {
        key: params[key]
        for key in ("op", "root", "perm", "lengths", "to", "from_", "tag", "columns")
        if params.get(key) is not None
    }
    if aval is None:
        return Operation(name, **keys)
    return Operation(name, wire.name_of(aval.dtype), tuple(aval.shape), **keys)


def emit(
    context: Any, name: str, aval: Any | None, params: dict[str, Any], operands: tuple[Any, ...], alias: bool = False
) -> Any:
    """Checks the placement, warms the schedule cache and writes the call."""
    axis = params["axis"]
    check_placement(compat.placement(context), axis, params["size"], name, params.get("columns"))
    text = describe(name, aval, params).text()
    if (asked := _listeners.get()) is not None:
        asked.append((axis, text))
    state.communicator(axis).prepare(text)
    attributes = {"operation": text, "communicator": axis, "size": np.int64(params["size"])}
    return compat.lower_ordered(context, "jhetcc_collective", operands, attributes, alias)


def _lower(name: str, in_place: bool, context: Any, x: Any, **params: Any) -> Any:
    alias = in_place and compat.may_reuse(x)
    wire_name = {"psum_invariant": "psum"}.get(name, name)
    return emit(context, wire_name, context.avals_in[0], params, (x,), alias)


# Eager calls


@functools.lru_cache(maxsize=4096)
def _jitted(primitive: Primitive, params: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    def call(*operands: Any) -> Any:
        return primitive.bind(*operands, **dict(params))

    call.__name__ = primitive.name
    return jax.jit(call)


def eager(primitive: Primitive, *operands: Any, **params: Any) -> Any:
    """Runs one operation outside any trace, waits for it, and raises its typed error."""
    function = _jitted(primitive, tuple(sorted(params.items())))
    with typed_errors():
        return jax.block_until_ready(function(*operands))


def bind(primitive: Primitive, x: Any, **params: Any) -> Any:
    """Binds a primitive to an operand that varies over all local axes."""
    return primitive.bind(compat.make_varying(x), **params)
