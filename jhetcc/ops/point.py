# SPDX-License-Identifier: Apache-2.0
"""Point to point: send, recv, sendrecv between two ranks.

Called on the threads that trace or run JAX programs.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jhetcc import compat
from jhetcc.errors import BadArgumentError
from jhetcc.ops import trees, wire
from jhetcc.ops.axes import WORLD, Axes, AxisName, index_of, resolve
from jhetcc.ops.exchange import _moved
from jhetcc.ops.machinery import bind, define, eager, emit
from jhetcc.world import state

__all__ = ["TAG_MAX", "recv", "send", "sendrecv"]

TAG_MAX = (1 << 32) - 1
_REFUSED = (
    "its cotangent would have to flow against a message whose other end is in another program; use sendrecv or ppermute, "
    "whose transposes send backwards, or put jax.lax.stop_gradient around the operand"
)


def _sendrecv_transpose(ct: Any, *, to: int, from_: int, **params: Any) -> Any:
    return sendrecv_p.bind(ct, to=from_, from_=to, **params)


sendrecv_p = define("sendrecv", transpose=_sendrecv_transpose)


def _define_send() -> Primitive:
    primitive = Primitive("jhetcc_send")
    primitive.multiple_results = True
    primitive.def_effectful_abstract_eval(lambda x, **_: ([], {compat.EFFECT}))
    primitive.def_impl(functools.partial(eager, primitive))

    def lower(context: Any, x: Any, **params: Any) -> Any:
        return emit(context, "send", context.avals_in[0], params, (x,))

    def batch(args: Any, dims: Any, **params: Any) -> Any:
        (x,), (dim,) = args, dims
        return primitive.bind(jax.numpy.moveaxis(x, dim, 0), **params), []

    def refuse(primals: Any, tangents: Any, **params: Any) -> Any:
        raise BadArgumentError(
            f"send on '{params['axis']}' is not differentiable: {_REFUSED}", code="not_differentiable"
        )

    compat.register_lowering(primitive, lower)
    batching.primitive_batchers[primitive] = batch
    ad.primitive_jvps[primitive] = refuse
    return primitive


def _define_recv() -> Primitive:
    primitive = Primitive("jhetcc_recv")
    primitive.def_effectful_abstract_eval(lambda *, shape, dtype, **_: (compat.array(shape, dtype), {compat.EFFECT}))
    primitive.def_impl(functools.partial(eager, primitive))

    def lower(context: Any, *, shape: tuple[int, ...], dtype: Any, **params: Any) -> Any:
        return emit(context, "recv", context.avals_out[0], params, ())

    compat.register_lowering(primitive, lower)
    return primitive


send_p = _define_send()
recv_p = _define_recv()


def _tag(tag: Any, function: str) -> int:
    try:
        number = tag.__index__()
    except (AttributeError, TypeError) as error:
        raise BadArgumentError(
            f"{function}: tag must be a Python integer known at trace time, not {tag!r}", code="tag"
        ) from error
    if not 0 <= number <= TAG_MAX:
        raise BadArgumentError(f"{function}: tag {number} is not in 0 to {TAG_MAX} (2^32-1)", code="tag")
    return number


def _peer(peer: Any, axes: Axes, what: str, function: str) -> int:
    index = index_of(peer, axes.size, what, function, axes.name)
    own = state.communicator(axes.name).local_ranks
    if tuple(own) == (index,):
        raise BadArgumentError(
            f"{function}: {what} {index} of '{axes.name}' is this rank itself; a message to oneself alone can never be matched: "
            "use the value, or sendrecv or ppermute, which copy",
            code="self_message",
        )
    return index


def send(x: Any, dest: int, *, tag: int = 0, axis_name: AxisName = WORLD) -> None:
    """Sends to one rank, which must call ``recv`` in its own program.

    A rendezvous: it completes when the receiver takes the message, whatever the size. Two ranks that both send first and
    receive afterwards wait for each other until the deadline: use ``sendrecv``. Under ``jax.shard_map`` every local rank runs
    it; select one with ``jax.lax.cond`` on ``axis_index``.

    Args:
      x: array or tree of arrays; the leaves are messages of their own, in tree order.
      dest: index of the receiver within the communicator.
      tag: 0 to 2^32-1; the receiver must name the same.
      axis_name: a communicator's name.

    Raises:
      BadArgumentError: dest or tag out of range, oneself; differentiating it; axis name and placement as for ``psum``.
      NotInitializedError: before ``jhetcc.init()``.
    """
    axes = resolve(axis_name, "send")
    to = _peer(dest, axes, "dest", "send")
    number = _tag(tag, "send")
    for leaf in jax.tree.leaves(x):
        if wire.is_empty_tangent(leaf):
            continue
        array, _ = wire.for_move(wire.as_array(leaf, "send"))
        send_p.bind(compat.make_varying(array), axis=axes.name, size=axes.size, to=to, tag=number)


def recv(shape_dtype_like: Any, source: int, *, tag: int = 0, axis_name: AxisName = WORLD) -> Any:
    """Receives what one rank sends with ``send``.

    Args:
      shape_dtype_like: array, ``jax.ShapeDtypeStruct`` or a tree of them: shapes and dtypes as sent.
      source: index of the sender within the communicator.
      tag: 0 to 2^32-1; as sent.
      axis_name: a communicator's name.

    Returns:
      The arrays that were sent. Constants to differentiation: use ``sendrecv`` or ``ppermute`` to differentiate across ranks.

    Raises:
      BadArgumentError: source or tag out of range, oneself; axis name and placement as for ``psum``.
      NotInitializedError: before ``jhetcc.init()``.
      MismatchError: shape, dtype or tag differ from what was sent.
    """
    axes = resolve(axis_name, "recv")
    from_ = _peer(source, axes, "source", "recv")
    number = _tag(tag, "recv")

    def one(like: Any) -> Any:
        if not (hasattr(like, "shape") and hasattr(like, "dtype")):
            like = wire.as_array(like, "recv")
        if jax.numpy.issubdtype(like.dtype, jax.dtypes.prng_key):
            raise BadArgumentError(
                "recv: random keys are received as numbers: send jax.random.key_data(key) and wrap what arrives",
                code="dtype",
            )
        sent, back = wire.move_dtype(like.dtype)
        sent = jax.dtypes.canonicalize_dtype(sent)
        return back(
            recv_p.bind(
                axis=axes.name, size=axes.size, from_=from_, tag=number, shape=tuple(like.shape), dtype=np.dtype(sent)
            )
        )

    return trees.each(one, shape_dtype_like)


def sendrecv(x: Any, dest: int, source: int, *, tag: int = 0, axis_name: AxisName = WORLD) -> Any:
    """Sends to one rank and receives from one (often another) at the same time; no order to get wrong.

    Args:
      x: array or tree of arrays; what arrives has the same shapes and dtypes. Leaves are exchanged one by one.
      dest: index of the receiver within the communicator; may be this rank.
      source: index of the sender within the communicator; may be this rank.
      tag: 0 to 2^32-1; the same on both ends.
      axis_name: a communicator's name.

    Returns:
      What ``source`` sent to this rank. The transpose sends the cotangents backwards.

    Raises:
      BadArgumentError: an index or tag out of range; axis name and placement as for ``psum``.
      NotInitializedError: before ``jhetcc.init()``.
      MismatchError: shape, dtype or tag differ from what the source sent.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.sendrecv(jnp.arange(2), 0, 0).tolist()
      [0, 1]
      >>> comm.close()
    """
    axes = resolve(axis_name, "sendrecv")
    to = index_of(dest, axes.size, "dest", "sendrecv", axes.name)
    from_ = index_of(source, axes.size, "source", "sendrecv", axes.name)
    number = _tag(tag, "sendrecv")

    def body(array: Any) -> Any:
        return bind(sendrecv_p, array, axis=axes.name, size=axes.size, to=to, from_=from_, tag=number)

    return trees.each(lambda leaf: _moved(leaf, "sendrecv", body), x)
