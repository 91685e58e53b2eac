# SPDX-License-Identifier: Apache-2.0
"""Why the operations of a function run as they do: asked by lowering it, without running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jhetcc.ops.machinery import listening
from jhetcc.world import state

__all__ = ["explain"]


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """What ``Communicator.explain`` says of every operation in a function, in the order of the program. Nothing is run.

    Args:
      function: traced and lowered with the arguments; a gradient tree that is packed shows as the few operations it is packed into.
      *args: arrays, or ``jax.ShapeDtypeStruct``.
      **kwargs: likewise.

    Raises:
      Error: what tracing the function raises.

    Example:
      >>> import jax.numpy as jnp, jhetcc
      >>> comm = jhetcc.init(num_processes=1, devices=None)
      >>> print(jhetcc.explain(lambda x: jhetcc.psum(x), jnp.ones(1024)).splitlines()[0])
      psum(f32[1024]) on 'world' (1 rank on 1 host)
      >>> comm.close()
    """

    def anew(*args: Any, **kwargs: Any) -> Any:  # what was lowered before would ask nothing
        return function(*args, **kwargs)

    with listening() as asked:
        jax.jit(anew).lower(*args, **kwargs)
    if not asked:
        return "no operation of this library"
    return "\n".join(state.communicator(axis).explain(text) for axis, text in dict.fromkeys(asked))
