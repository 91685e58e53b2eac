# SPDX-License-Identifier: Apache-2.0
"""The job's secret: how it is made, the ways it comes in, and the error that names them. Never logged, never on a command line.

Called once, by ``init()``; no thread of its own.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from jhetcc.config import Options
from jhetcc.errors import BadArgumentError
from jhetcc.world.detect import is_loopback, split_address

__all__ = ["find", "generate", "write"]

_CHARACTERS_MIN = 16
_BYTES_MAX = 4096


def generate() -> str:
    """A fresh secret of 256 random bits as text."""
    return secrets.token_urlsafe(32)


def write(path: str | os.PathLike[str]) -> None:
    """Writes a fresh secret to a new file that only its owner can read; raises FileExistsError where the file is there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(generate() + "\n")


def find(options: Options, coordinator: str | None, argument: str | None = None) -> bytes | None:
    """The job's secret, from the first way that was used: argument, descriptor, file, environment.

    Args:
      options: the process's options.
      coordinator: ``host:port``; None for a lone process.
      argument: the secret as given to ``init()``.

    Returns:
      The secret, or None where none is needed: a lone process, a coordinator on loopback, or ``JHETCC_ALLOW_INSECURE``.

    Raises:
      BadArgumentError: a way was used but does not give a secret, or none was used and one is needed, also where ``JHETCC_TLS=all``.
    """
    if argument is not None:
        return _checked(argument.encode(), "argument secret")
    if options.secret_fd is not None:
        return _checked(_from_descriptor(options.secret_fd), f"descriptor {options.secret_fd} (JHETCC_SECRET_FD)")
    if options.secret_file is not None:
        return _checked(_from_file(options.secret_file), f"file {options.secret_file} (JHETCC_SECRET_FILE)")
    if options.secret is not None:
        return _checked(options.secret.encode(), "JHETCC_SECRET")
    if coordinator is None or options.allow_insecure or is_loopback(split_address(coordinator)[0]):
        if coordinator is not None and options.tls == "all":
            raise _refusal(
                "JHETCC_TLS=all encrypts by a key that is made from the job's secret, and the job has none. Make one with "
                "`jhetcc secret --output FILE` and set JHETCC_SECRET_FILE=FILE in every process, or unset JHETCC_TLS.",
                "no_secret",
            )
        return None
    raise _refusal(
        f"the job has no secret, and its coordinator {coordinator} is not loopback: anybody who reaches it could join. Make one with "
        "`jhetcc secret --output FILE`, give every process the same one, and say where it is: JHETCC_SECRET_FILE=FILE (mode 0600), "
        "JHETCC_SECRET_FD=number of an inherited descriptor, or JHETCC_SECRET=text (others on the host may see it). In a closed network, "
        "JHETCC_ALLOW_INSECURE=yes runs without.",
        "no_secret",
    )


def _refusal(message: str, code: str = "bad_secret") -> BadArgumentError:
    return BadArgumentError(message, code=code, scope="process")


def _checked(data: bytes, origin: str) -> bytes:
    secret = data.strip()
    if len(secret) < _CHARACTERS_MIN:
        raise _refusal(
            f"the secret from {origin} has {len(secret)} characters, fewer than {_CHARACTERS_MIN}: make one with `jhetcc secret`"
        )
    if len(data) > _BYTES_MAX:
        raise _refusal(
            f"the secret from {origin} is longer than {_BYTES_MAX} bytes: that is no secret of `jhetcc secret`"
        )
    return secret


def _from_file(name: str) -> bytes:
    path = Path(name).expanduser()
    try:
        # The descriptor is checked, not the name: what was checked is what is read.
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise _refusal(
                    f"secret file {path} has mode {stat.S_IMODE(status.st_mode):04o}: others may read it. Run: chmod 600 {path}"
                )
            if status.st_uid not in (os.geteuid(), 0):
                raise _refusal(
                    f"secret file {path} belongs to user {status.st_uid}, not to user {os.geteuid()}: use a file of your own"
                )
            return file.read(_BYTES_MAX + 1)
    except OSError as why:
        raise _refusal(
            f"cannot read secret file {path}: {why.strerror}. Make one with `jhetcc secret --output {path}`"
        ) from why


def _from_descriptor(descriptor: int) -> bytes:
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            # Every init() of the process, and its children, must find it: the offset is left alone.
            return os.pread(descriptor, _BYTES_MAX + 1, 0)
        data = b""
        while len(data) <= _BYTES_MAX and (part := os.read(descriptor, _BYTES_MAX + 1 - len(data))):
            data += part
        return data
    except OSError as why:
        raise _refusal(
            f"cannot read the secret from descriptor {descriptor} (JHETCC_SECRET_FD): {why.strerror}. The descriptor must be inherited: "
            "for example `JHETCC_SECRET_FD=9 python train.py 9<secret.txt`"
        ) from why
