# SPDX-License-Identifier: Apache-2.0
"""What strangers do to the addresses of a job: where it listens, who knocks there, and a tap that hears a connection's bytes."""

from __future__ import annotations

import contextlib
import hmac
import os
import selectors
import socket
import ssl
import struct
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from processes import environment

SECONDS = 5.0
TLS_RECORD_BEGIN = b"\x16\x03\x01"


@dataclass(frozen=True)
class Place:
    """Somewhere a process listens: (host, port), or the name of a unix socket."""

    family: int
    address: tuple[str, int] | str

    def connect(self) -> socket.socket:
        caller = socket.socket(self.family)
        caller.settimeout(SECONDS)
        caller.connect(self.address)
        return caller


def listeners(pid: int) -> list[Place]:
    """Where a process of this user listens for the job, by IPv4 and by unix names; not where it tells its own user of its status."""
    inodes = set()
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(one).removeprefix("socket:[").removesuffix("]"))
    places = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            host, port = fields[1].split(":")
            places.append(Place(socket.AF_INET, (socket.inet_ntoa(struct.pack("<I", int(host, 16))), int(port, 16))))
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if not fields[7:] or not fields[7].startswith("@jhetcc-") or fields[7].startswith("@jhetcc-status-"):
            continue
        if int(fields[3], 16) & 0x10000 and fields[6] in inodes:
            places.append(Place(socket.AF_UNIX, "\0" + fields[7][1:]))
    return places


def _scan(caller: socket.socket) -> None:
    """Connects and closes."""


def _reset(caller: socket.socket) -> None:
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _half(caller: socket.socket) -> None:
    caller.shutdown(socket.SHUT_WR)


def _web(caller: socket.socket) -> None:
    caller.sendall(b"GET / HTTP/1.1\r\nHost: you\r\n\r\n")


def _noise(caller: socket.socket) -> None:
    caller.sendall(os.urandom(600))


def _endless_length(caller: socket.socket) -> None:
    """4 GiB, if one believes it: of a message, of a handshake's frame, of a TLS record."""
    caller.sendall(b"\xff\xff\xff\xff" + bytes(100))


def _endless_frame(caller: socket.socket) -> None:
    caller.sendall(b"JHN1\x01\x00\xff\xff" + bytes(100))


def _endless_record(caller: socket.socket) -> None:
    caller.sendall(TLS_RECORD_BEGIN + b"\xff\xff" + bytes(9000))


def _browser(caller: socket.socket) -> None:
    """A real TLS client that has no key of the job."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with context.wrap_socket(caller, do_handshake_on_connect=False) as client:
        client.do_handshake()


QUICK = [_scan, _reset, _half, _web, _noise, _endless_length, _endless_frame, _endless_record, _browser]


def knock(place: Place, rounds: int) -> int:
    """Every sort of stranger so many times; how many there were. That they are thrown out is no error."""
    for _ in range(rounds):
        for attack in QUICK:
            with contextlib.suppress(OSError), place.connect() as caller:
                attack(caller)
    return rounds * len(QUICK)


class Slow:
    """Callers that say a byte now and then, and stay until closed; a thread of theirs."""

    def __init__(self, places: list[Place], each: int):
        self._callers = [place.connect() for place in places for _ in range(each)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        begin = TLS_RECORD_BEGIN + b"\x01\x00\x01\x00\x00\xfc\x03\x03" + bytes(1000)
        for byte in begin:
            for caller in self._callers:
                with contextlib.suppress(OSError):
                    caller.send(bytes([byte]))
            if self._stop.wait(0.1):
                return

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for caller in self._callers:
            caller.close()


class Tap:
    """Stands between one caller and a server, and keeps what the callers said; a thread of its own."""

    def __init__(self, server: tuple[str, int]):
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.said: list[bytearray] = []  # by connection
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with selectors.DefaultSelector() as ready, contextlib.ExitStack() as sockets:
            ready.register(self._listener, selectors.EVENT_READ)
            while not self._stop.is_set():
                for key, _ in ready.select(0.05):
                    if key.fileobj is self._listener:
                        self._accept(ready, sockets)
                        continue
                    speaker, other, said = key.data
                    with contextlib.suppress(OSError):
                        if data := speaker.recv(65536):
                            other.sendall(data)
                            if said is not None:
                                said += data
                            continue
                    ready.unregister(key.fileobj)
                    with contextlib.suppress(OSError):
                        other.shutdown(socket.SHUT_WR)

    def _accept(self, ready: selectors.BaseSelector, sockets: contextlib.ExitStack) -> None:
        caller = sockets.enter_context(self._listener.accept()[0])
        try:
            server = sockets.enter_context(socket.create_connection(self._server))
        except OSError:  # not there yet: the caller tries again
            caller.close()
            return
        self.said.append(bytearray())
        ready.register(caller, selectors.EVENT_READ, (caller, server, self.said[-1]))
        ready.register(server, selectors.EVENT_READ, (server, caller, None))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._listener.close()


def replay(place: Place, data: bytes) -> bytes:
    """Says what somebody else said; what is answered until the connection is closed, which it must be."""
    answer = b""
    with place.connect() as caller, contextlib.suppress(ConnectionError):
        caller.sendall(data)
        while piece := caller.recv(65536):
            answer += piece
    return answer


@dataclass(frozen=True)
class Claim:
    """What a caller who knows the secret says of himself on a data port."""

    job: str = "job"
    rank: int = 1
    incarnation: int = 12345
    path: int = 0
    generation: int = 1000


def claim(place: Place, secret: str, who: Claim) -> tuple[int, str]:
    """Goes through the handshake by hand, without TLS; the verdict's code and text, once the connection is closed behind it."""
    job = who.job.encode()
    hello = struct.pack("<HB32s", _version(), 1, os.urandom(32))
    hello += struct.pack("<BiQIHHHI", 1, who.rank, who.incarnation, 0, who.path, 0, 0, who.generation)
    hello += struct.pack("<B", len(job)) + job + struct.pack("<i", -1)
    with place.connect() as caller:
        caller.sendall(_frame(1, hello))
        challenge = _read_frame(caller)[:-32]
        transcript = _text(hello) + _text(challenge)
        covered = _text(b"jhetcc handshake") + _text(b"client") + _text(transcript) + _text(b"")
        caller.sendall(_frame(3, hmac.digest(secret.encode(), covered, "sha256")))
        verdict = _read_frame(caller)
        with contextlib.suppress(ConnectionError):
            while caller.recv(65536):
                pass
    return verdict[0], verdict[5:-32].decode()


def _version() -> int:
    """As the source of the handshake has it, so that this test need not be changed with it."""
    source = Path(__file__).resolve().parents[2] / "cc/net/handshake.h"
    return int(source.read_text().split("kHandshakeVersion = ")[1].split(";")[0])


def _text(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def _frame(kind: int, body: bytes) -> bytes:
    return b"JHN1" + struct.pack("<BBH", kind, 0, len(body)) + body


def _read_frame(caller: socket.socket) -> bytes:
    data = b""
    while len(data) < 8 or len(data) < 8 + struct.unpack("<H", data[6:8])[0]:
        piece = caller.recv(8 - len(data) if len(data) < 8 else 8 + struct.unpack("<H", data[6:8])[0] - len(data))
        assert piece, data
        data += piece
    return data[8:]


_CALLER = """
import jhetcc
try:
    jhetcc.init(devices=1, timeout=3)
except jhetcc.Error as error:
    print(type(error).__name__, error.code, error)
    raise SystemExit(5)
"""


def intrude(coordinator: str, process_id: int, **settings: str) -> tuple[int, str]:
    """A whole process that calls ``init()`` as this one of a job of two; how it ended and what it printed."""
    place = {
        "JHETCC_COORDINATOR": coordinator,
        "JHETCC_PROCESS_ID": str(process_id),
        "JHETCC_NUM_PROCESSES": "2",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CALLER],
        env=environment(1, place | settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
