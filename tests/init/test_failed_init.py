# SPDX-License-Identifier: Apache-2.0
"""What is left of an ``init()`` that failed late, and of a process that leaves as soon as it could."""

import json
import types

import pytest
from processes import run_scripts

from jhetcc import config
from jhetcc.world.rendezvous import Rendezvous

FAILS_LATE = """
import jhetcc, numpy, os
from jhetcc.world.rendezvous import Rendezvous

def fail(self):
    raise jhetcc.PeerLostError("on purpose", code="store_gone", scope="process")

finish = Rendezvous.finish
if me == 1:
    Rendezvous.finish = fail
try:
    jhetcc.init(devices=1)
except jhetcc.PeerLostError as error:
    assert "on purpose" in str(error)
    print("failed", flush=True)
Rendezvous.finish = finish
"""
AGAIN = """
for name in ("JHETCC_COORDINATOR", "JHETCC_PROCESS_ID", "JHETCC_NUM_PROCESSES"):
    os.environ.pop(name)
comm = jhetcc.init(num_processes=1, devices=1)
print(int(comm.all_reduce(numpy.array(5))), flush=True)
"""


def test_a_process_whose_init_failed_ends_quietly():
    for code, output, _ in run_scripts(FAILS_LATE):
        assert code == 0 and output == "failed\n", output


def test_init_after_one_that_failed_late():
    for code, output, _ in run_scripts(FAILS_LATE + AGAIN):
        assert code == 0 and output == "failed\n5\n", output


def test_process_0_leaves_as_soon_as_it_is_in():
    """The others may read a moment later that the job is complete: their init() does not fail for that."""
    source = """
import jhetcc, time
from jhetcc.world.rendezvous import Rendezvous

if me == 1:
    wait_for = Rendezvous._wait_for
    def late(self, what, failure):
        time.sleep(0.5 if what == "ready" else 0)
        wait_for(self, what, failure)
    Rendezvous._wait_for = late
jhetcc.init(devices=1)
"""
    for code, output, _ in run_scripts(source):
        assert code == 0 and not output, output


def test_a_failure_told_as_the_last_one_comes():
    """Who came last found that settings differ and failed at once: the others find the same, in their own words."""

    class Client:
        came, failed = [0], None

        def list(self, prefix, timeout):
            names = [f"{prefix}{k}" for k in self.came]
            self.came, self.failed = [0, 1], json.dumps({"code": "settings_differ", "text": "process 1"})
            return names

        def try_get(self, key, timeout):
            return self.failed if key == "failed" else None

    launch = types.SimpleNamespace(process_id=0, num_processes=2, coordinator="127.0.0.1:1", job=None, source="a test")
    meeting = Rendezvous(config.read({}), launch, None, 10.0)  # type: ignore[arg-type]
    meeting._client = Client()
    meeting._wait_for("process", "never connected")


KILLED = """
import jhetcc, os, signal
from jhetcc.world.rendezvous import Rendezvous

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if me == VICTIM:
    Rendezvous.PHASE = killed
try:
    jhetcc.init(devices=1, timeout=60)
except jhetcc.PeerLostError as error:
    print(error.code, error.ranks, error, flush=True)
"""


@pytest.mark.parametrize(("victim", "phase"), [(0, "finish"), (1, "_check"), (1, "connect"), (1, "finish")])
def test_a_process_that_is_killed_in_init_is_noticed_at_once(victim, phase):
    """By its connection to the store, long before init_timeout; where it holds the store, by that.

    While they still gather, the others wait for a process 0 that ended: it may be started anew.
    """
    results = run_scripts(KILLED.replace("PHASE", phase).replace("VICTIM", str(victim)), (1, 1, 1))
    for process, (code, output, seconds) in enumerate(results):
        assert seconds < 30, results
        if process == victim:
            assert code == -9 and not output, results
            continue
        assert code == 0 and output.startswith(f"init_failed ({victim},) init() failed in another process"), results
        assert ("holds the coordinator" if victim == 0 else "process 1 on ") in output, results
        assert victim == 0 or "(rank 1) ended before its init() had" in output, results


SLOW = """
import jhetcc
from jhetcc.world.rendezvous import Rendezvous

if me == 1:
    Rendezvous.connect = lambda self, *_: self._wait_for("nothing", "did not end")
try:
    jhetcc.init(devices=1, timeout=2 if me == 0 else 30)
except jhetcc.Error as error:
    print(type(error).__name__, error.code, error, flush=True)
"""


def test_a_limit_that_passes_while_others_connect_is_one_for_all():
    for process, (code, output, seconds) in enumerate(run_scripts(SLOW, (1, 1, 1))):
        assert code == 0 and seconds < 20, (process, output, seconds)
        assert output.startswith("OperationTimeoutError init_timeout"), (process, output)


LATE = """
import jhetcc, threading
from jhetcc import _core
from jhetcc.world.rendezvous import Rendezvous

if me == 1:
    kept = Rendezvous._describe
    def late(self, own):
        told = kept(self, own)
        while True:  # until the store is gone
            self._client.list("", 1.0)
    Rendezvous._describe = late
try:
    jhetcc.init(devices=1, timeout=1 if me == 0 else 3)
except jhetcc.Error as error:
    print(type(error).__name__, error.code, error, flush=True)
"""


def test_who_comes_when_process_0_has_given_up_hears_that():
    zero, one = run_scripts(LATE)
    assert zero[1].startswith("OperationTimeoutError init_timeout process 1 of 2 never connected"), zero
    assert one[1].startswith(("PeerLostError init_failed", "OperationTimeoutError init_timeout")), one
    assert "process 0" in one[1] and "store_gone" not in one[1], one


def test_exit_without_close_waits_for_no_thread():
    source = """
import atexit, jhetcc, time
def tell():
    print("quick" if time.monotonic() - ended < 1 else "slow")
atexit.register(tell)
comm = jhetcc.init(devices=1)
comm.barrier()
ended = time.monotonic()
"""
    for code, output, _ in run_scripts(source):
        assert code == 0 and output == "quick\n", output
