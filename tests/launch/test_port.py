# SPDX-License-Identifier: Apache-2.0
"""Ports that are held for a listener to come: nobody else gets them, and the listener does."""

import contextlib
import socket

import pytest

from jhetcc.errors import ResourceError
from jhetcc.launch.port import HeldPort


def place(held):
    host, _, port = held.address.rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def listener(where):
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen()
        yield


def test_a_held_port_is_nobody_elses():
    with contextlib.closing(HeldPort()) as held:
        with pytest.raises(ResourceError, match=r"no port on 127\.0\.0\.1: Address already in use"):
            HeldPort(*place(held))
        with socket.socket() as other, pytest.raises(OSError):
            other.bind(place(held))


def test_the_listener_gets_it_again_and_again():
    with contextlib.closing(HeldPort()) as held:
        for _ in range(2):
            with listener(place(held)), socket.create_connection(place(held)):
                # Held or not, a second listener is refused.
                with pytest.raises(OSError), listener(place(held)):
                    pass
                with pytest.raises(ResourceError):
                    HeldPort(*place(held))


def test_a_port_is_given_back():
    held = HeldPort()
    held.close()
    again = HeldPort(*place(held))
    again.close()
    assert again.address == held.address
