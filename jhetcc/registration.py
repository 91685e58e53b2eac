# SPDX-License-Identifier: Apache-2.0
"""Registers the FFI handlers with JAX, once, after checking that its runtime takes them."""

from __future__ import annotations

import os
import re

from jhetcc import _core
from jhetcc.errors import UnavailableError

__all__ = ["api_fit", "register"]

_registered = False


def api_fit() -> str | None:
    """Why the installed JAX cannot serve this build's handlers, or None where it can.

    The handlers were compiled against an old FFI API on purpose: newer runtimes take older handlers, not the reverse.
    """
    import jax

    built = _core.ffi_api_version()
    path = os.path.join(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as why:
        return f"jax {jax.__version__} has no FFI header to read its API version from: {why}"
    found = {word: re.search(rf"#define XLA_FFI_API_{word} (\d+)", text) for word in ("MAJOR", "MINOR")}
    if not all(found.values()):
        return f"the FFI API version of jax {jax.__version__} is not written in {path}"
    runtime = tuple(int(found[word].group(1)) for word in ("MAJOR", "MINOR"))  # type: ignore[union-attr]
    if runtime[0] != built[0] or runtime < built:
        return (
            f"these FFI handlers need API {built[0]}.{built[1]}, jax {jax.__version__} has {runtime[0]}.{runtime[1]}: install a JAX "
            "between 0.10 and 0.12, or build this package against the older one"
        )
    return None


def register() -> None:
    """Registers the handlers for platform cpu; again is harmless.

    Raises:
      UnavailableError: the runtime does not take them.
    """
    global _registered
    if _registered:
        return
    why = api_fit()
    if why is not None:
        raise UnavailableError(why, code="jax_version", scope="process")
    import jax

    for name, handler in _core.ffi_handlers().items():
        jax.ffi.register_ffi_target(name, handler, platform="cpu", api_version=1)
    _registered = True
