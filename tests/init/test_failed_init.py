# SPDX-License-Identifier: Apache-2.0
"""What is left of an ``init()`` that failed late, and of a process that leaves as soon as it could."""

import json
import types

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
