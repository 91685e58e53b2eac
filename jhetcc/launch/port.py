# SPDX-License-Identifier: Apache-2.0
"""A port for a listener that comes later, in another process, kept from everybody else meanwhile. Callable from any thread."""

from __future__ import annotations

import socket

from jhetcc.errors import ResourceError

__all__ = ["HeldPort"]


class HeldPort:
    """A TCP port of this host that belongs to who holds it, until ``close()``.

    It is bound and does not listen. So the system gives it to nobody who asks for any port or connects somewhere, and refuses it to
    whoever asks for it by number, except a listener with ``SO_REUSEADDR``, as ours has: that one must have been told.

    Args:
      host: an IPv4 address of this host.
      port: which; 0 takes one that is free.

    Attributes:
      address: ``host:port``.

    Raises:
      ResourceError: somebody has the port, or all are taken.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0):
        self._socket = socket.socket()
        try:
            self._socket.bind((host, port))
        except OSError as why:
            self._socket.close()
            raise ResourceError(f"no port on {host}: {why.strerror}", code="no_port", scope="process") from why
        # After bind(): before it, the port could be shared with another holder.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.address = f"{host}:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        """Gives the port back; who listens on it keeps it."""
        self._socket.close()
