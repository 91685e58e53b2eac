# SPDX-License-Identifier: Apache-2.0
"""Collectives between JAX programs on accelerators of different vendors.

``comm = jhetcc.init()`` joins the job; ``jhetcc.psum`` and its siblings are JAX operations over the axis ``"world"``;
``comm.all_reduce`` and its siblings take plain buffers. JAX is loaded with the first use of an operation, not before.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jhetcc.config import VERSION as __version__
from jhetcc.errors import AbortedError as AbortedError
from jhetcc.errors import BadArgumentError as BadArgumentError
from jhetcc.errors import Error as Error
from jhetcc.errors import InternalError as InternalError
from jhetcc.errors import MismatchError as MismatchError
from jhetcc.errors import NotInitializedError as NotInitializedError
from jhetcc.errors import OperationTimeoutError as OperationTimeoutError
from jhetcc.errors import PeerLostError as PeerLostError
from jhetcc.errors import ResourceError as ResourceError
from jhetcc.errors import UnavailableError as UnavailableError
from jhetcc.errors import error_of as error_of

if TYPE_CHECKING:
    from jhetcc.ops import all_gather as all_gather
    from jhetcc.ops import all_to_all as all_to_all
    from jhetcc.ops import axis_index as axis_index
    from jhetcc.ops import axis_size as axis_size
    from jhetcc.ops import barrier as barrier
    from jhetcc.ops import broadcast as broadcast
    from jhetcc.ops import explain as explain
    from jhetcc.ops import export_checks as export_checks
    from jhetcc.ops import gather as gather
    from jhetcc.ops import jit as jit
    from jhetcc.ops import pbroadcast as pbroadcast
    from jhetcc.ops import pmax as pmax
    from jhetcc.ops import pmean as pmean
    from jhetcc.ops import pmin as pmin
    from jhetcc.ops import ppermute as ppermute
    from jhetcc.ops import pprod as pprod
    from jhetcc.ops import psum as psum
    from jhetcc.ops import psum_invariant as psum_invariant
    from jhetcc.ops import psum_scatter as psum_scatter
    from jhetcc.ops import ragged_all_to_all as ragged_all_to_all
    from jhetcc.ops import recv as recv
    from jhetcc.ops import reduce as reduce
    from jhetcc.ops import scatter as scatter
    from jhetcc.ops import scope as scope
    from jhetcc.ops import send as send
    from jhetcc.ops import sendrecv as sendrecv
    from jhetcc.world import Communicator as Communicator
    from jhetcc.world import init as init
    from jhetcc.world import status as status

_OPS: tuple[str, ...] = (
    "all_gather", "all_to_all", "axis_index", "axis_size", "barrier", "broadcast", "explain", "export_checks", "gather", "jit",
    "pbroadcast", "pmax", "pmean", "pmin", "ppermute", "pprod", "psum", "psum_invariant", "psum_scatter", "ragged_all_to_all", "recv",
    "reduce", "scatter", "scope", "send", "sendrecv",
)  # fmt: skip
_HOME = {name: "jhetcc.ops" for name in _OPS} | {name: "jhetcc.world" for name in ("Communicator", "init", "status")}

__all__ = [
    "AbortedError", "BadArgumentError", "Error", "InternalError", "MismatchError", "NotInitializedError", "OperationTimeoutError",
    "PeerLostError", "ResourceError", "UnavailableError", "__version__", "error_of", *_HOME,
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "_core":  # asked for by `from jhetcc import _core`, before Python looks for the file
        try:
            return importlib.import_module("jhetcc._core")
        except ModuleNotFoundError:
            raise ImportError(
                f"{__path__[0]} has no compiled core (jhetcc._core). Where this is the source tree, it hides the installed package: "
                "run from another folder, or with python -P. Else install it with pip"
            ) from None
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'jhetcc' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
