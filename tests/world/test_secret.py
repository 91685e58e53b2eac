# SPDX-License-Identifier: Apache-2.0
"""The ways a job's secret comes in, and what is said when it does not."""

import os

import pytest

from jhetcc import config
from jhetcc.errors import BadArgumentError
from jhetcc.world import secret

REMOTE = "10.0.0.1:5000"
TEXT = "a-secret-of-the-test-suite"


def options(**environment):
    return config.read({"JHETCC_" + name: value for name, value in environment.items()})


def test_generated_secrets_differ_and_pass():
    first, second = secret.generate(), secret.generate()
    assert first != second and len(first) >= 43
    assert secret.find(options(), REMOTE, first) == first.encode()


def test_file(tmp_path):
    path = tmp_path / "secret"
    secret.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret.find(options(SECRET_FILE=str(path)), REMOTE) == path.read_bytes().strip()
    with pytest.raises(FileExistsError):
        secret.write(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_file_that_others_can_read_is_refused(tmp_path, mode):
    path = tmp_path / "secret"
    path.write_text(TEXT)
    path.chmod(mode)
    with pytest.raises(BadArgumentError) as caught:
        secret.find(options(SECRET_FILE=str(path)), REMOTE)
    assert f"{mode:04o}" in str(caught.value) and f"chmod 600 {path}" in str(caught.value)
    assert TEXT not in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(BadArgumentError, match="No such file"):
        secret.find(options(SECRET_FILE=str(tmp_path / "none")), REMOTE)


def test_environment():
    assert secret.find(options(SECRET=TEXT), REMOTE) == TEXT.encode()


def test_descriptor_of_a_file_can_be_read_twice(tmp_path):
    path = tmp_path / "secret"
    path.write_text(TEXT + "\n")
    with open(path, "rb") as file:
        for _ in range(2):
            assert secret.find(options(SECRET_FD=str(file.fileno())), REMOTE) == TEXT.encode()


def test_descriptor_of_a_pipe():
    reading, writing = os.pipe()
    os.write(writing, TEXT.encode())
    os.close(writing)
    try:
        assert secret.find(options(SECRET_FD=str(reading)), REMOTE) == TEXT.encode()
    finally:
        os.close(reading)


def test_descriptor_that_is_not_there():
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    with pytest.raises(BadArgumentError, match="Bad file descriptor"):
        secret.find(options(SECRET_FD=str(reading)), REMOTE)


def test_short_and_endless_secrets_are_refused():
    for text in ("short", "x" * 5000):
        with pytest.raises(BadArgumentError) as caught:
            secret.find(options(), REMOTE, text)
        assert caught.value.code == "bad_secret" and text not in str(caught.value)


def test_argument_wins(tmp_path):
    assert secret.find(options(SECRET=TEXT), REMOTE, TEXT[::-1]) == TEXT[::-1].encode()


def test_none_is_needed_alone_on_loopback_or_by_override():
    assert secret.find(options(), None) is None
    assert secret.find(options(), "127.0.0.1:5000") is None
    assert secret.find(options(ALLOW_INSECURE="yes"), REMOTE) is None


def test_missing_secret_names_the_ways():
    with pytest.raises(BadArgumentError) as caught:
        secret.find(options(), REMOTE)
    for needle in (
        "jhetcc secret",
        "JHETCC_SECRET_FILE",
        "JHETCC_SECRET_FD",
        "JHETCC_SECRET=",
        "JHETCC_ALLOW_INSECURE",
        REMOTE,
    ):
        assert needle in str(caught.value)
    assert caught.value.code == "no_secret"


def test_encryption_of_everything_needs_a_secret():
    local = "127.0.0.1:5000"
    assert secret.find(options(TLS="control"), local) is None
    assert secret.find(options(TLS="all"), None) is None
    assert secret.find(options(TLS="all", SECRET=TEXT), local) == TEXT.encode()
    with pytest.raises(BadArgumentError, match="JHETCC_TLS=all") as caught:
        secret.find(options(TLS="all"), local)
    assert caught.value.code == "no_secret"
