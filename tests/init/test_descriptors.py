# SPDX-License-Identifier: Apache-2.0
"""init() of a process that may have too few descriptors: whatever it is that cannot be opened, the error is one of ours."""

import errno
import sys

import pytest
from processes import run_scripts

import jhetcc
from jhetcc.world.devices import local_devices
from jhetcc.world.system import typed

FEW = """
import jhetcc, resource
import jhetcc.world.world

if me == 1:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FIRST, 100))
try:
    comm = jhetcc.init(devices=1, timeout=10)
except jhetcc.Error as error:
    print(type(error).__name__, error.code, error, flush=True)
except BaseException as error:
    print("bare", type(error).__name__, error, flush=True)
else:
    comm.barrier()
    comm.close()
    print("joined", flush=True)
"""


def test_too_few_descriptors_are_told_by_their_limit():
    """From hardly any to enough: each further one lets another thing fail, in Python or in the core."""
    seen = set()
    for limit in range(8, 30):
        told = [output for _, output, _ in run_scripts(FEW.replace("FIRST", str(limit)))]
        if told == ["joined\n"] * 2:
            break
        assert told[1].startswith("ResourceError"), (limit, told)
        assert "ulimit -n" in told[1] and f"may have {limit}" in told[1], (limit, told)
        assert told[0].startswith("PeerLostError"), (limit, told)
        seen.add(told[1].split()[1])
    else:
        raise AssertionError("no limit was enough")
    assert seen >= {"eventfd", "no_descriptor"}, seen


@pytest.mark.parametrize(
    ("why", "kind", "code", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files", "/a/b"), jhetcc.ResourceError, "no_descriptor", "cannot open /a/b"),
        (OSError(errno.ENFILE, "Too many"), jhetcc.ResourceError, "no_descriptor", "fs.file-max"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), jhetcc.ResourceError, "resource", "Cannot allocate memory"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), jhetcc.UnavailableError, "unavailable", "/x: Perm"),
        (RuntimeError("can't start new thread"), jhetcc.ResourceError, "thread", "ulimit -u"),
        (jhetcc.PeerLostError("gone", code="peer_lost"), jhetcc.PeerLostError, "peer_lost", "gone"),
        (RuntimeError("another"), RuntimeError, None, "another"),
    ],
)  # fmt: skip
def test_what_the_system_refuses_is_typed(why, kind, code, words):
    with pytest.raises(kind) as raised, typed("init()"):
        raise why
    assert words in str(raised.value)
    assert getattr(raised.value, "code", None) == code


def test_a_coordinator_that_is_no_address_of_this_machine_is_told_at_once():
    """Only an address that another process still has is waited for."""
    source = """
import jhetcc, time
begun = time.monotonic()
try:
    jhetcc.init(devices=1, timeout=30)
except jhetcc.UnavailableError as error:
    print(error.code, "quick" if time.monotonic() - begun < 10 else "slow", error)
"""
    place = {"JHETCC_COORDINATOR": "192.0.2.77:4999", "JHETCC_NUM_PROCESSES": "2", "JHETCC_ALLOW_INSECURE": "yes"}
    ((code, output, _),) = run_scripts(source, (1,), extra=place)
    assert code == 0 and output.startswith("listen quick") and "no interface of this machine" in output, output


def test_jax_that_is_broken_is_not_taken_for_one_that_is_missing(monkeypatch):
    """Without descriptors its libraries do not load: no silent world without devices."""

    class Broken:
        def find_spec(self, name, *_):
            if name == "jax":
                raise ImportError("libjax.so: cannot open shared object file: Too many open files")

    monkeypatch.delitem(sys.modules, "jax", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(jhetcc.UnavailableError, match="cannot be imported: libjax"):
        local_devices(None)
    monkeypatch.setitem(sys.modules, "jax", None)
    assert local_devices(None) == ((), 1, "host")
