# SPDX-License-Identifier: Apache-2.0
"""How processes find each other: late, missing, doubled, disagreeing and foreign ones; and again after close."""

import contextlib
import itertools
import os
import re
import socket
import subprocess
import sys
import time
import types

import numpy as np
import pytest
from process_worker import hear, here, say
from processes import Pool, import_path, run_scripts, start_scripts, wait_scripts

import jhetcc
from jhetcc.errors import BadArgumentError, Error, NotInitializedError, OperationTimeoutError
from jhetcc.world.rendezvous import Rendezvous

SUM = """
import jhetcc, numpy
comm = jhetcc.init(devices=1)
print(comm.all_reduce(numpy.array(1 << me)))
comm.close()
"""


def joined(**changes):
    """init() with this process's place, changed; the error or the communicator."""
    try:
        return jhetcc.init(**here() | changes)
    except Error as error:
        return error


def test_other_keys_of_the_store_are_nobody():
    """A quick cluster's library may meet below the same name while a slow one still loads."""
    seen = [["library/0", "library/2/2.14495950504768288388"], ["library/1", "library/0", "library/2/1.5"]]
    store = types.SimpleNamespace(try_get=lambda *_: None, list=lambda *_: seen.pop(0))
    launch = types.SimpleNamespace(num_processes=2, process_id=0, job=None, coordinator="127.0.0.1:1")
    meeting = Rendezvous(jhetcc.config.Options(), launch, None, 10.0)
    meeting._client = store
    meeting._wait_for("library", "did not load it")
    assert not seen


# Late and missing


def case_late(seconds, limit):
    place = here()
    if place["process_id"] == 2:
        say("ready")
        hear()
    got = joined(timeout=limit)
    return got if isinstance(got, Error) else int(got.all_reduce(np.array(1)))


def attempt_late(pools, seconds, limit):
    running = pools(1, 1, 1).start(case_late, seconds, limit, world=False)
    running.expect(2, word="ready")
    running.linger(seconds, 0, 1)
    running.tell(2)
    outcomes = running.finish()
    running.pool.renew()
    return outcomes


def test_a_late_process_is_waited_for(pools):
    """C055: within the limit it works, and a countdown names who is missing meanwhile."""
    outcomes = attempt_late(pools, 6, 60)
    assert [outcome.get() for outcome in outcomes] == [3, 3, 3]
    assert "2 of 3 processes here, missing: 2" in outcomes[0].output


def test_a_missing_process_is_named(pools):
    """C055: beyond the limit everybody is told who never connected, and the name of the setting."""
    outcomes = attempt_late(pools, 30, 2)
    for outcome in outcomes[:2]:
        error = outcome.get()
        assert isinstance(error, OperationTimeoutError) and error.code == "init_timeout", error
        assert "process 2 of 3 never connected" in str(error) and "JHETCC_INIT_TIMEOUT" in str(error)
        assert outcome.seconds < 15


def case_no_coordinator():
    return joined(process_id=1, num_processes=2, timeout=1.0)


def test_nobody_at_the_coordinator(pools):
    """C103: the error has the address, how often it was tried and for how long."""
    for outcome in pools(1, 1).attempt(case_no_coordinator, world=False):
        error = outcome.get()
        assert isinstance(error, OperationTimeoutError), error
        assert "found no coordinator at 127.0.0.1:" in str(error) and "process 0" in str(error)
        assert "Connection refused" in str(error)
        elapsed, attempts = re.search(r"gave up after ([0-9.]+) s and (\d+) attempts", str(error)).groups()
        assert 1.0 <= float(elapsed) < 12 and int(attempts) >= 2, error
        assert outcome.seconds < 12


def case_rank_0_comes_last():
    if here()["process_id"] == 0:
        hear()
    say("begins")
    return int(joined(timeout=60.0).all_reduce(np.array(1)))


def test_process_0_comes_last(pools):
    running = pools(1, 1, 1).start(case_rank_0_comes_last, world=False)
    running.expect(1, 2, word="begins")
    running.linger(0.5)
    running.tell(0)
    assert [outcome.get() for outcome in running.finish()] == [3, 3, 3]
    running.pool.renew()


def case_order(order):
    """C128: any order of arrival."""
    me = here()["process_id"]
    for turn in order:
        if turn == me:
            say(f"turn {order}")
            break
        hear()
    return int(joined(timeout=60.0).all_reduce(np.array(1)))


def test_any_order_of_arrival(pools):
    for order in itertools.permutations(range(3)):
        running = pools(1, 1, 1).start(case_order, order, world=False)
        for place, turn in enumerate(order):
            running.expect(turn, word=f"turn {order}")
            running.linger(0.2)
            for later in order[place + 1 :]:
                running.tell(later)
        assert [outcome.get() for outcome in running.finish()] == [3, 3, 3]
    pools(1, 1, 1).renew()


# Doubled, disagreeing, foreign


def case_twice():
    """Processes 1 and 2 both say that they are 1, of 3."""
    number = here()["process_id"]
    return joined(process_id=min(number, 1), timeout=5.0)


def test_a_number_taken_twice(pools):
    """C128: the second is refused by name and soon."""
    outcomes = pools(1, 1, 1).attempt(case_twice, world=False)
    errors = [outcome.get() for outcome in outcomes]
    refused = [error for error in errors if error.code == "duplicate_process"]
    assert len(refused) == 1 and isinstance(refused[0], BadArgumentError)
    assert "process number 1 is taken by" in str(refused[0])
    others = [error for error in errors if error is not refused[0]]
    assert all(error.code in ("init_timeout", "init_failed", "duplicate_process") for error in others), others


def case_settings(name, values):
    os.environ[name] = values[here()["process_id"]]
    try:
        return joined(timeout=20.0)
    finally:
        del os.environ[name]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("JHETCC_CHUNK_BYTES", ("8kb", "16kb")),
        ("JHETCC_ALGORITHM", ("ring", "direct")),
        ("JHETCC_OPERATION_TIMEOUT", ("10s", "20s")),
    ],
)
def test_settings_that_differ(pools, name, values):
    """C026: refused at init, with the setting and both values."""
    for outcome in pools(1, 1).attempt(case_settings, name, values, world=False):
        error = outcome.get()
        assert isinstance(error, BadArgumentError) and error.code == "settings_differ", error
        assert name[7:].lower() in str(error) and "process" in str(error)


def case_version():
    from jhetcc import config

    if here()["process_id"] == 1:
        config.VERSION = "9.9.9"
    try:
        return joined(timeout=20.0)
    finally:
        config.VERSION = "0.1.0"


def test_versions_that_differ(pools):
    for outcome in pools(1, 1).attempt(case_version, world=False):
        assert "9.9.9" in str(outcome.get()) and "library" in str(outcome.get())


def case_secrets(secrets):
    return joined(secret=secrets[here()["process_id"]], timeout=3.0)


def test_another_secret(pools):
    first, second = "ab" * 32, "cd" * 32
    outcomes = pools(1, 1).attempt(case_secrets, (first, second), world=False)
    for outcome in outcomes:
        error = outcome.get()
        assert isinstance(error, Error) and outcome.seconds < 15, error
        assert first not in str(error) + outcome.output and second not in str(error) + outcome.output
    assert "secret" in str(outcomes[1].get())
    outcomes = pools(1, 1).attempt(case_secrets_work, first, world=False)
    assert [outcome.get() for outcome in outcomes] == [2, 2]


def case_secrets_work(secret):
    comm = joined(secret=secret, timeout=30.0)
    return int(comm.all_reduce(np.array(1)))


INTRUDER = """
import jhetcc
try:
    jhetcc.init(devices=1, timeout=3)
except jhetcc.Error as error:
    print(type(error).__name__, error)
    raise SystemExit(5)
"""


def case_first_job(comm):
    say(here()["coordinator"])
    hear()
    return int(comm.all_reduce(np.array(1)))


def test_two_jobs_on_one_port(pools):
    """C077, C101: both processes of the second job hear whose address it is, and the first job does not notice."""
    running = pools(1, 1).start(case_first_job, options={"JHETCC_JOB": "first"})
    address = running.word(0)
    listening, calling = run_scripts(INTRUDER, extra={"JHETCC_COORDINATOR": address, "JHETCC_JOB": "second"})
    for code, output, seconds in (listening, calling):
        assert code == 5 and address in output and seconds < 20, output
        assert "this is job 'first', the caller belongs to job 'second'" in output, output
    assert "Address already in use" in listening[1] and "ResourceError" in listening[1], listening
    running.tell(0)
    running.tell(1)
    assert [outcome.get() for outcome in running.finish()] == [2, 2]


def test_an_occupied_port():
    """C101: the message has the address; an owner that says nothing is none of ours."""
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        address = f"127.0.0.1:{owner.getsockname()[1]}"
        source = "import jhetcc\njhetcc.init(devices=1, timeout=2)\n"
        (code, output, _), *_ = run_scripts(source, extra={"JHETCC_COORDINATOR": address})
        assert code == 1 and f"{address}: Address already in use" in output and "answers" not in output, output


def test_two_jobs_that_are_started_at_once():
    """C110: new processes, each job on its own port."""
    with start_scripts(SUM) as one, start_scripts(SUM) as other:
        wait_scripts([*one, *other])
        assert all(script.code == 0 and script.output == "3\n" for script in [*one, *other])


def case_at_once():
    say("ready")
    hear()
    comm = joined(timeout=30.0)
    total = int(comm.all_reduce(np.array(1 << comm.rank)))
    comm.close()
    return total


def test_two_jobs_at_the_same_moment(pools):
    """C110: twenty times; all four processes are told to begin within a moment."""
    with contextlib.closing(Pool((1, 1))) as other:
        for _ in range(20):
            jobs = [pool.start(case_at_once, world=False) for pool in (pools(1, 1), other)]
            for job in jobs:
                job.expect(0, 1, word="ready")
            for job, process in itertools.product(jobs, range(2)):
                job.tell(process)
            for job in jobs:
                for outcome in job.finish():
                    assert outcome.get() == 3 and outcome.seconds < 30


# Again


def case_cycles(rounds):
    """C075: init, sum, close in one process and on one port; no cycle takes longer than the first ones did."""
    times = []
    for k in range(rounds):
        begun = time.monotonic()
        comm = jhetcc.init(**here())
        assert comm.all_reduce(np.array(k)) == 2 * k
        comm.close()
        times.append(time.monotonic() - begun)
    return times


def test_init_again_after_close(pools):
    for times in (outcome.get() for outcome in pools(1, 1).attempt(case_cycles, 20, world=False)):
        assert sorted(times[10:])[5] < 5 * sorted(times[:10])[5] + 0.5, times


def case_twice_in_a_row():
    comm = jhetcc.init(**here())
    again = joined()
    assert isinstance(again, BadArgumentError) and again.code == "already_initialized"
    comm.barrier()
    comm.close()
    comm.close()
    for call in (comm.barrier, comm.check, comm.status):
        try:
            call()
        except Error as error:
            assert "closed" in str(error)
        else:
            raise AssertionError("a call on a closed world went through")
    from jhetcc.world import state

    try:
        state.communicator("world")
    except NotInitializedError as error:
        assert "jhetcc.init()" in str(error)
    else:
        raise AssertionError("there is a world after close()")


def test_states(pools):
    for outcome in pools(1, 1).attempt(case_twice_in_a_row, world=False):
        outcome.get()


def test_the_secret_file_is_removed(tmp_path):
    """C076: sums and close do not miss it."""
    path = tmp_path / "secret"
    path.write_text("ef" * 32)
    path.chmod(0o600)
    source = """
import jhetcc, numpy, time
comm = jhetcc.init(devices=1)
comm.barrier()
if me == 0:
    os.unlink(os.environ["JHETCC_SECRET_FILE"])
comm.barrier()
assert comm.all_reduce(numpy.array(1)) == 2
begun = time.monotonic()
comm.close()
assert time.monotonic() - begun < 5
"""
    for code, output, _ in run_scripts(source, extra={"JHETCC_SECRET_FILE": str(path)}):
        assert code == 0, output


# Alone, and settings


def python(source, **extra):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JHETCC_")}
    kept |= {"PYTHONPATH": import_path()} | extra
    done = subprocess.run(
        [sys.executable, "-P", "-c", source], env=kept, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_lone_process_needs_no_network():
    source = """
import jhetcc, numpy, os
comm = jhetcc.init(devices=3)
assert comm.size == 3 and comm.local_ranks == (0, 1, 2)
assert [int(v) for v in comm.all_reduce([numpy.array(k) for k in (1, 2, 4)])] == [7, 7, 7]
kinds = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
assert not [kind for kind in kinds if kind.startswith("socket:")], kinds
comm.close()
"""
    assert python(source) == (0, "")


def test_an_unknown_variable():
    code, output = python("import jhetcc; jhetcc.init(devices=1)", JHETCC_TRANSPROT="tcp")
    assert code == 1 and "JHETCC_TRANSPROT" in output and "did you mean JHETCC_TRANSPORT" in output


def test_limits_that_contradict_each_other():
    """C056: refused with an explanation."""
    code, output = python(
        "import jhetcc; jhetcc.init(devices=1)", JHETCC_OPERATION_TIMEOUT="5s", JHETCC_WARN_AFTER="6s"
    )
    assert (
        code == 1
        and "JHETCC_WARN_AFTER" in output
        and "JHETCC_OPERATION_TIMEOUT" in output
        and "docs/options.md" in output
    )
