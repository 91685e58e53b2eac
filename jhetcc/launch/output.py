# SPDX-License-Identifier: Apache-2.0
"""What processes write: kept in one file a stream, shown live with the process's number in front. Called from the launcher's one loop."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import IO

__all__ = ["Screen", "Stream"]

_PARTIAL_BYTES_MAX = 8192
_TAIL_BYTES = 64 * 1024
_TAIL_LINES = 40
_END = re.compile(rb"(.*?)(\r\n|\n|\r)", re.DOTALL)


class Screen:
    """Writes whole lines of several streams to one descriptor, so that no line of one is broken by another."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._open_line: str | None = None  # who left the cursor at the start of a line that is to be overwritten

    def write(self, who: str, line: bytes, end: bytes) -> None:
        before = b"\n" if self._open_line not in (None, who) else b""
        self._open_line = who if end == b"\r" else None
        self._put(before + f"[{who}] ".encode() + line + end)

    def say(self, text: str) -> None:
        """One line of the launcher's own."""
        before = b"\n" if self._open_line is not None else b""
        self._open_line = None
        self._put(before + text.encode(errors="replace") + b"\n")

    def _put(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]


class Stream:
    """One output of one process: reads what is there, keeps it in a file, shows whole lines."""

    def __init__(self, who: str, source: IO[bytes], log: Path, screen: Screen):
        self._who = who
        self._source = source
        self._log = open(log, "wb", buffering=0)  # noqa: SIM115 - lives as long as the stream
        self._path = log
        self._screen = screen
        self._partial = b""
        self.has_written = False
        os.set_blocking(source.fileno(), False)

    def fileno(self) -> int:
        return self._source.fileno()

    def pump(self) -> bool:
        """Takes what is there; False at the end of the stream."""
        try:
            data = os.read(self._source.fileno(), 65536)
        except BlockingIOError:
            return True
        self._log.write(data)
        self.has_written |= bool(data)
        self._partial += data
        place = 0
        for match in _END.finditer(self._partial):
            # A carriage return at the very end may be half of a line end.
            if match.group(2) == b"\r" and match.end() == len(self._partial) and data:
                break
            self._screen.write(self._who, match.group(1), match.group(2))
            place = match.end()
        self._partial = self._partial[place:]
        if self._partial and (not data or len(self._partial) > _PARTIAL_BYTES_MAX):
            self._screen.write(self._who, self._partial, b"\n")
            self._partial = b""
        return bool(data)

    def close(self) -> None:
        self._source.close()
        self._log.close()

    def tail(self) -> str:
        """The last lines written, for the report of a failure."""
        size = self._path.stat().st_size
        with open(self._path, "rb") as file:
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").rstrip().splitlines()
        return "\n".join(lines[-_TAIL_LINES:])
