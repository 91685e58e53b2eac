# SPDX-License-Identifier: Apache-2.0
"""The error family: one class per remedy, the same fields everywhere.

Every message says what failed, where (rank, peer, operation), why, and what to do. ``docs/errors.md`` lists the codes.
"""

from __future__ import annotations

import re

__all__ = [
    "AbortedError",
    "BadArgumentError",
    "Error",
    "InternalError",
    "MismatchError",
    "NotInitializedError",
    "OperationTimeoutError",
    "PeerLostError",
    "ResourceError",
    "UnavailableError",
    "error_of",
    "make",
]


class Error(RuntimeError):
    """Base of all errors of this library.

    Attributes:
      code: stable name of the case, e.g. ``"peer_lost"``; see ``docs/errors.md``.
      scope: the largest thing that broke: call, path, endpoint, rank, communicator or process.
      ranks: world ranks the error is about, ascending; empty where it names none.
      retryable: whether the same call may succeed later without changing anything.
    """

    kind = "internal"
    retryable = False

    def __init__(self, message: str, *, code: str = "error", scope: str = "call", ranks: tuple[int, ...] = ()):
        super().__init__(message)
        self.code = code
        self.scope = scope
        self.ranks = tuple(ranks)


class BadArgumentError(Error, ValueError):
    """The call is wrong: fix it."""

    kind = "bad argument"


class NotInitializedError(Error):
    """An operation before ``jhetcc.init()`` or after ``close()``."""

    kind = "bad argument"


class UnavailableError(Error):
    """This machine, build or JAX version cannot do it."""

    kind = "unavailable"


class OperationTimeoutError(Error, TimeoutError):
    """A deadline passed: a rank is alive but did not come, or the job did not gather in time."""

    kind = "timeout"
    retryable = True


class PeerLostError(Error, ConnectionError):
    """A rank is gone or silent; the communicator has ended. ``shrink()`` goes on without it."""

    kind = "disconnected"


class MismatchError(Error):
    """Ranks asked for different operations at the same place of a communicator's sequence."""

    kind = "mismatch"


class AbortedError(Error):
    """The communicator was ended by ``abort()`` or ``close()``."""

    kind = "aborted"


class ResourceError(Error):
    """Memory, descriptors or room in a queue ran out."""

    kind = "resource"
    retryable = True


class InternalError(Error):
    """A bug of this library; please report it."""

    kind = "internal"


_BY_KIND = {
    cls.kind: cls
    for cls in (
        BadArgumentError,
        UnavailableError,
        OperationTimeoutError,
        PeerLostError,
        MismatchError,
        AbortedError,
        ResourceError,
        InternalError,
    )
}

# Errors cross XLA as text; the core ends every message with this mark. A failed array that goes into further programs gets
# one more of XLA's prefixes from each, so there may be thousands: what looks for them must be linear in the text.
_MARK = re.compile(r" \[jhetcc kind=([a-z ]+); scope=([a-z]+); code=([a-z_]+); ranks=([0-9,]*)\]")
# XLA's own collectives in an island of several processes; a timeout or another text may have another cause.
_GLOO_LOST = re.compile(
    r"Gloo [a-z-]+ failed: \[[^\]]*\bgloo/transport/[^\]]*\] (?:Connection (?:closed|reset) by peer"
    r"|(?:Read error|writev) [^ ]+: (?:Broken pipe|Connection reset by peer))[^\n]*"
)
_STATUS = re.compile(r"[A-Z_]+: ")
_DISPATCHING = "Error dispatching computation: "


def _message(text: str) -> str:
    """What stood before the mark, without XLA's prefixes."""
    status = _STATUS.match(text)
    return text[status.end() if status else 0 :].rpartition(_DISPATCHING)[2]


def make(kind: str, message: str, *, code: str, scope: str, ranks: tuple[int, ...] = ()) -> Error:
    """Builds the error of a kind named as in the C++ core (``"disconnected"``, ``"timeout"``, ...)."""
    return _BY_KIND.get(kind, InternalError)(message, code=code, scope=scope, ranks=ranks)


def error_of(exception: BaseException) -> Error | None:
    """The typed error behind an exception, or None if this library has no part in it.

    Inside plain ``jax.jit`` a failed operation surfaces as ``jax.errors.JaxRuntimeError``; this gives its typed form.

    Args:
      exception: any exception.

    Returns:
      The exception itself if it is an ``Error``, the ``Error`` carried by its text, cause or context, or None. Where XLA's own
      collectives (Gloo) say that they lost a process of this island (``jax.distributed``), that is a ``PeerLostError`` with the
      code ``"island_lost"``; which one it was, they do not say.

    Example:
      >>> import jhetcc
      >>> text = "peer is gone [jhetcc kind=disconnected; scope=rank; code=peer_lost; ranks=2]"
      >>> jhetcc.error_of(RuntimeError(text)).ranks
      (2,)
    """
    seen: set[int] = set()
    current: BaseException | None = exception
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, Error):
            return current
        text = str(current)
        found = _MARK.search(text)
        if found:
            kind, scope, code, ranks = found.groups()
            message = _message(text[: found.start()])
            numbers = tuple(int(rank) for rank in ranks.split(",") if rank)
            return make(kind, message, code=code, scope=scope, ranks=numbers)
        if lost := _GLOO_LOST.search(text):
            return PeerLostError(
                f"a process of this island (jax.distributed) is gone: {lost.group()}; its own output may say why. XLA does not recover "
                "from that: start the processes of the island anew",
                code="island_lost",
                scope="process",
            )
        current = current.__cause__ or current.__context__
    return None
