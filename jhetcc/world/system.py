# SPDX-License-Identifier: Apache-2.0
"""What the system refused while Python code of ours asked it for something, as an error of this library."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

from jhetcc.errors import Error, ResourceError, UnavailableError

__all__ = ["typed"]

_RUN_OUT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EAGAIN, errno.EDQUOT}
_NO_THREAD = "can't start new thread"


@contextlib.contextmanager
def typed(doing: str) -> Iterator[None]:
    """Raises an ``OSError`` of its body as the typed error, which names what could not be had, the limit, and how to raise it.

    Args:
      doing: what its body does, e.g. ``"init()"``.

    Raises:
      ResourceError: descriptors, threads, memory or room ran out.
      UnavailableError: the system refused something else.
    """
    try:
        yield
    except Error:  # some are OSErrors, too
        raise
    except OSError as why:
        raise _error(doing, why) from why
    except RuntimeError as why:
        if str(why) != _NO_THREAD:
            raise
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        text = (
            f"{doing}: the system gives no thread: {why}. This user may have {_number(limit)}: ulimit -u N raises that"
        )
        raise ResourceError(text, code="thread", scope="process") from why


def _error(doing: str, why: OSError) -> Error:
    what = f"cannot open {os.fsdecode(why.filename)}" if why.filename is not None else "the system refuses a call"
    text = f"{doing}: {what}: {why.strerror or why}"
    if why.errno == errno.EMFILE:
        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        text += f". This process may have {_number(now)} descriptors, and up to {_number(most)} after ulimit -n N: raise that limit"
        return ResourceError(text, code="no_descriptor", scope="process")
    if why.errno == errno.ENFILE:
        text += ". The whole system has no descriptors left: raise fs.file-max (sysctl)"
        return ResourceError(text, code="no_descriptor", scope="process")
    kind = ResourceError if why.errno in _RUN_OUT else UnavailableError
    return kind(text, code="resource" if kind is ResourceError else "unavailable", scope="process")


def _number(limit: int) -> str:
    return "any number of" if limit == resource.RLIM_INFINITY else str(limit)
