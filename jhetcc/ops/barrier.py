# SPDX-License-Identifier: Apache-2.0
"""Meeting and counting: barrier, axis_index, axis_size.

Called on the threads that trace or run JAX programs.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive

from jhetcc import compat
from jhetcc.ops.axes import WORLD, AxisName, check_placement, resolve
from jhetcc.ops.machinery import eager, emit

__all__ = ["axis_index", "axis_size", "barrier"]


def _define_barrier() -> Primitive:
    primitive = Primitive("jhetcc_barrier")
    primitive.multiple_results = True
    primitive.def_effectful_abstract_eval(lambda **_: ([], {compat.EFFECT}))
    primitive.def_impl(functools.partial(eager, primitive))
    compat.register_lowering(primitive, lambda context, **params: emit(context, "barrier", None, params, ()))
    return primitive


def _define_rank_index() -> Primitive:
    primitive = Primitive("jhetcc_axis_index")
    primitive.def_abstract_eval(lambda **_: compat.array((), jnp.int32))
    primitive.def_impl(functools.partial(eager, primitive))

    def lower(context: Any, *, axis: str, size: int) -> Any:
        check_placement(compat.placement(context), axis, size, "axis_index")
        return compat.lower_pure(context, "jhetcc_rank", {"communicator": axis})

    compat.register_lowering(primitive, lower)
    return primitive


barrier_p = _define_barrier()
rank_index_p = _define_rank_index()


def barrier(axis_name: AxisName = WORLD) -> None:
    """Returns, or lets the program's later operations begin, when all ranks have come here.

    Inside ``jit`` it is ordered among the operations of this library; computations that depend on none may run before it.

    Args:
      axis_name: a communicator's name.

    Raises:
      BadArgumentError: axis name and placement as for ``psum``.
      NotInitializedError: before ``jhetcc.init()``.

    Example:
      >>> import jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.barrier()
      >>> comm.close()
    """
    axes = resolve(axis_name, "barrier")
    barrier_p.bind(axis=axes.name, size=axes.size)


def axis_index(axis_name: AxisName = WORLD) -> jax.Array:
    """This rank's index within a communicator, known at run time: one compiled program serves all ranks.

    Args:
      axis_name: a communicator's name, or a tuple of local mesh axes and ``"islands"`` (the first name counts slowest).

    Returns:
      int32 scalar, 0 to ``axis_size(axis_name) - 1``.

    Raises:
      BadArgumentError: axis name and placement as for ``psum``.
      NotInitializedError: before ``jhetcc.init()``.

    Example:
      >>> import jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> int(jhetcc.axis_index())
      0
      >>> comm.close()
    """
    axes = resolve(axis_name, "axis_index", hierarchical=True)
    index = rank_index_p.bind(axis=axes.name, size=axes.size)
    if not axes.local:
        return index
    columns = axes.columns or 1
    return jax.lax.axis_index(axes.local) * (axes.size // columns) + index // columns


def axis_size(axis_name: AxisName = WORLD) -> int:
    """Number of ranks of a communicator, a Python int: usable in shapes.

    Args:
      axis_name: a communicator's name, or a tuple of local mesh axes and ``"islands"``.

    Returns:
      The size; for a tuple the product.

    Raises:
      BadArgumentError: unknown or mixed axis names.
      NotInitializedError: before ``jhetcc.init()``.

    Example:
      >>> import jhetcc
      >>> comm = jhetcc.init(num_processes=1)
      >>> jhetcc.axis_size()
      1
      >>> comm.close()
    """
    return resolve(axis_name, "axis_size", hierarchical=True).contributors
