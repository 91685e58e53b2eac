# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, fork, threads and the end of the interpreter, each in processes of their own or in pooled ones."""

import os
import signal
import time

import numpy as np
import pytest
from failing import SHORT, SLACK_S, failed, value
from process_worker import hear, here, say
from processes import run_scripts

import jhetcc
from jhetcc.errors import AbortedError, PeerLostError

INTERRUPT = signal.SIGINT


# Ctrl-C


def case_blocked(comm, call):
    step = jhetcc.jit(lambda x: jhetcc.psum(x) + 1) if call == "jit psum" else jhetcc.psum
    if "psum" in call:
        step(value(comm)).block_until_ready()  # so that no compiler is interrupted
    if comm.rank == 1:
        hear()
        comm.check()
        return
    say("ready")
    begun = time.monotonic()
    try:
        if call == "recv":
            comm.recv((3,), np.float32, 1)
        elif call == "barrier":
            comm.barrier()
        elif "psum" in call:
            step(value(comm)).block_until_ready()
        else:
            comm.all_reduce(value(comm))
    except KeyboardInterrupt:
        return time.monotonic() - begun


@pytest.mark.parametrize("call", ["all_reduce", "recv", "barrier", "eager psum", "jit psum"])
def test_interrupt_of_a_blocked_call(pools, call):
    """C072: KeyboardInterrupt in the main thread, soon; the peer learns that it was interrupted; the process lives."""
    running = pools(1, 1, jax="psum" in call).start(case_blocked, call)
    running.expect(0, word="ready")
    running.linger(0.3)
    running.signal(0, INTERRUPT)
    sent = time.monotonic()
    (outcome,) = running.finish(0)
    assert outcome.get() is not None and outcome.ended - sent < 2 + SLACK_S
    running.tell(1)
    failed(running.finish(1)[0], AbortedError, "interrupted", "rank 0", within=60)
    running.pool.renew()


def case_interrupted_init():
    say("ready")
    try:
        jhetcc.init(**here() | {"num_processes": 3})
    except KeyboardInterrupt:
        return time.monotonic()


def test_interrupt_of_init(pools):
    running = pools(1, 1).start(case_interrupted_init, world=False)
    running.expect(0, 1, word="ready")
    running.linger(1)
    sent = time.monotonic()
    for index in (0, 1):
        running.signal(index, INTERRUPT)
    for outcome in running.finish():
        assert outcome.get() - sent < 2 + SLACK_S
    running.pool.renew()


def case_init_of_four():
    say("ready")
    jhetcc.init(**here() | {"num_processes": 4})


def test_others_hear_of_an_interrupted_init_at_once(pools):
    """Not only process 0, and not at the end of init_timeout."""
    running = pools(1, 1, 1).start(case_init_of_four, world=False, options={"JHETCC_INIT_TIMEOUT": "80s"})
    running.expect(0, 1, 2, word="ready")
    running.linger(1)
    sent = time.monotonic()
    running.signal(1, INTERRUPT)
    outcomes = running.finish()
    running.pool.renew()
    for outcome in (outcomes[0], outcomes[2]):
        error = failed(outcome, PeerLostError, "process 1", "KeyboardInterrupt", within=60)
        assert error.code == "init_failed" and outcome.ended - sent < 2 + SLACK_S


# Fork


FORK_FIRST = """
import jhetcc, sys, warnings
warnings.simplefilter("error")
pid = os.fork()
if pid == 0:
    os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
comm = jhetcc.init(devices=1)
print("sum", int(comm.all_reduce(__import__("numpy").array(1))))
"""

FORK_LATER = """
import jhetcc, numpy, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside threads
comm = jhetcc.init(devices=1)
comm.barrier()
pid = os.fork()
if pid == 0:
    try:
        comm.all_reduce(numpy.array(1))
    except jhetcc.Error as error:
        print(error, flush=True)
        os._exit(6 if error.code == "forked" else 7)
    os._exit(8)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6
print("sum", int(comm.all_reduce(numpy.array(1))))
pid = os.fork()
if pid == 0:
    raise SystemExit(9)  # the child's own interpreter exit, atexit functions and all
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
print("sum", int(comm.all_reduce(numpy.array(2))))
"""


def test_fork_before_init():
    for code, output, _ in run_scripts(FORK_FIRST):
        assert code == 0 and output == "sum 2\n", output


def test_fork_after_init():
    """C074: a clear error in the child, no deadlock, and the parent still works."""
    for code, output, _ in run_scripts(FORK_LATER):
        assert code == 0 and "fork" in output and output.endswith("sum 2\nsum 4\n"), output


# The end of the interpreter


ENDS = {
    "end of script": ("", 0),
    "exit in main": ("import sys; sys.exit(4)", 4),
    "exception": ("raise ValueError('mine')", 1),
    "exit in a thread": (
        "import threading, sys; t = threading.Thread(target=lambda: sys.exit(3)); t.start(); t.join()",
        0,
    ),
    "thread in a call": (
        "import threading; threading.Thread(target=lambda: comm.recv((1,), numpy.float32, 1 - me), daemon=True).start()",
        0,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_exit_without_close(end):
    """C071, C060, C138: the exit code is the user's; nothing crashes and nobody complains."""
    last, code = ENDS[end]
    source = (
        f"import jhetcc, numpy\ncomm = jhetcc.init(devices=1)\nassert comm.all_reduce(numpy.array(1)) == 2\n{last}\n"
    )
    for got, output, seconds in run_scripts(source, extra=SHORT):
        assert seconds < 20, output
        # Who leaves in the middle of a call ends the sum of a rank that has not returned from it yet.
        if end == "thread in a call" and got == 1 and "the communicator has ended" in output:
            continue
        assert got == code, (got, output)
        words = output.lower()
        assert not any(
            word in words for word in ("fatal", "abort", "core dumped", "segmentation", "terminate called")
        ), output
        assert output.strip() == "" or end in ("exception", "thread in a call"), output


FINALLY = """
import jhetcc, numpy, pathlib, sys
comm = jhetcc.init(devices=1)
try:
    comm.barrier()
    if me == 0:
        {action}
        comm.all_reduce(numpy.ones(3))
    else:
        {other}
except jhetcc.Error as error:
    print(type(error).__name__)
finally:
    print("cleaned up", flush=True)
sys.exit(11)
"""


@pytest.mark.parametrize(
    ("action", "other", "names"),
    [
        ("pass", "import time; time.sleep(5)", ("OperationTimeoutError",)),
        ("comm.abort('stop')", "comm.all_reduce(numpy.ones(3))", ("AbortedError",)),
        ("pass", "comm.close()", ("PeerLostError",)),
    ],
    ids=["timeout", "abort", "close"],
)
def test_nothing_kills_the_process(action, other, names):
    """C060: an exception each time, finally blocks run, the exit code is the user's."""
    for index, (code, output, _) in enumerate(run_scripts(FINALLY.format(action=action, other=other), extra=SHORT)):
        assert code == 11 and "cleaned up" in output, output
        assert index == 1 or any(name in output for name in names), output


def test_close_after_the_peer_died():
    """C066: rank 1 dies of an exception, rank 0 closes."""
    source = """
import jhetcc, time
comm = jhetcc.init(devices=1)
comm.barrier()
if me == 1:
    raise ValueError("mine")
begun = time.monotonic()
comm.close()
assert time.monotonic() - begun < 5
"""
    (first, *_), (second, output, _) = run_scripts(source, extra=SHORT)
    assert first == 0 and second == 1 and "mine" in output


def test_process_0_finishes_first():
    """C067: the store goes with process 0; the others go on among themselves and end well."""
    source = """
import jhetcc, numpy, sys
comm = jhetcc.init(devices=1)
part = comm.split(0 if me else -1, name="rest")
comm.barrier()
if me == 0:
    sys.exit(0)
for k in range(2000):
    assert part.all_reduce(numpy.array(k)) == 2 * k
"""
    for code, output, _ in run_scripts(source, (1, 1, 1), extra=SHORT):
        assert code == 0 and not output, output


def test_the_first_failure_ends_all():
    """C073: rank 1 raises before a gather; it exits at once, the others are told and exit."""
    source = """
import jhetcc, numpy
comm = jhetcc.init(devices=1)
comm.barrier()
if me == 1:
    raise ValueError("mine")
comm.all_gather(numpy.ones(3))
"""
    results = run_scripts(source, (1, 1, 1), extra=SHORT | {"JHETCC_OPERATION_TIMEOUT": "60s"})
    assert all(code == 1 and seconds < 30 for code, _, seconds in results)
    assert "mine" in results[1][1] and all("rank 1" in results[k][1] and "PeerLost" in results[k][1] for k in (0, 2))


KILLED = """
import signal
import jhetcc, numpy
from jhetcc.launch.port import HeldPort
init, data = jhetcc.init, numpy.ones(100_000)

def member(number, address, ready):
    comm = init(address, process_id=number, num_processes=2, devices=1)
    comm.all_reduce(data)
    os.write(ready, b"x")
    try:
        while True:
            comm.all_reduce(data)
    except jhetcc.PeerLostError:
        signal.pause()  # the other one was killed a moment earlier

def names(pid):
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        return {line[line.index("/dev/shm/"):].removesuffix("\\n").removesuffix(" (deleted)") for line in file if "/dev/shm/" in line}

mapped = set()
for k in range(30):
    os.environ["JHETCC_CMA"] = ("auto", "off")[k % 2]
    port, (heard, ready), pids = HeldPort(), os.pipe(), []
    for number in range(2):
        pids.append(os.fork())
        if pids[-1] == 0:
            try:
                member(number, port.address, ready)
            finally:
                os._exit(3)
    os.close(ready)
    assert os.read(heard, 1) and os.read(heard, 1), "a member ended before its first sum"
    for pid in pids:
        mapped |= names(pid)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [signal.SIGKILL] * 2
    os.close(heard)
    port.close()
print([name for name in mapped if os.path.exists(name)])
"""


def test_nothing_is_left_by_a_killed_job():
    """C114: both of two killed in a sum, thirty times; names in shared memory are gone as soon as they are mapped, whatever happens."""
    before = set(os.listdir("/dev/shm"))
    ((code, output, _),) = run_scripts(KILLED, (1,))
    assert code == 0 and output == "[]\n", output
    left = {name for name in set(os.listdir("/dev/shm")) - before if "jhetcc" in name}
    assert not left, left
