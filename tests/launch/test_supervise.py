# SPDX-License-Identifier: Apache-2.0
"""The launcher with tiny scripts that do not need the core: output, failures, signals, nothing left behind."""

import math
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

import pytest

from jhetcc.errors import BadArgumentError
from jhetcc.launch import Island, Job, run

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("JHETCC_")}
DEADLINE_S = 30


class Outcome:
    def __init__(self, code, out, err, seconds, logs):
        self.code, self.out, self.err, self.seconds, self.logs = code, out, err, seconds, logs


@pytest.fixture
def launch(tmp_path):
    def start(body, *arguments, islands=(1, 1), timeout=DEADLINE_S, grace=3.0, environment=None):
        script = tmp_path / "script.py"
        script.write_text(
            "import os, sys, time, signal\nme = int(os.environ['JHETCC_PROCESS_ID'])\n" + textwrap.dedent(body)
        )
        job = Job(
            tuple(each if isinstance(each, Island) else Island("cpu", each) for each in islands),
            (str(script), *arguments),
            str(tmp_path / "logs"),
            timeout,
            grace,
        )
        begun = time.monotonic()
        with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
            code = run(job, ENVIRONMENT | (environment or {}), out=out.fileno(), err=err.fileno())
        seconds = time.monotonic() - begun
        return Outcome(
            code, (tmp_path / "out").read_bytes().decode(), (tmp_path / "err").read_text(), seconds, tmp_path / "logs"
        )

    return start


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "not within the deadline"
        select.select([], [], [], 0.01)


def test_an_island_may_name_its_library(launch):
    """The others have the one of the environment."""
    islands = (Island("cpu", 1), Island("cpu", 1, "oneccl"), Island("cpu", 1, "none"))
    outcome = launch(
        "print(os.environ['JHETCC_LIBRARY'])\nsys.exit(me == 1)", islands=islands, environment={"JHETCC_LIBRARY": "mpi"}
    )
    assert sorted(outcome.out.splitlines()) == ["[0] mpi", "[1] oneccl", "[2] none"]
    assert "process 1 (cpu:1@oneccl, pid " in outcome.err


def test_environment_and_prefixed_output(launch):
    outcome = launch(
        """
        names = ["COORDINATOR", "NUM_PROCESSES", "SECRET_FD", "JOB"]
        print(*[os.environ["JHETCC_" + name] for name in names], os.environ["JAX_NUM_CPU_DEVICES"], os.environ["JAX_PLATFORMS"])
        print(os.pread(int(os.environ["JHETCC_SECRET_FD"]), 99, 0).decode())
        print(sys.argv[1:], __name__, file=sys.stderr)
        """,
        "-n",
        "7",
        islands=(2, 1, 1),
        environment={"XLA_FLAGS": "--xla_force_host_platform_device_count=9 --xla_cpu_enable_fast_math=false"},
    )
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    firsts = [next(line for line in lines if line.startswith(f"[{number}] 127.0.0.1:")) for number in range(3)]
    assert len({line.split(maxsplit=1)[1].rsplit(maxsplit=2)[0] for line in firsts}) == 1, (
        "one coordinator, size, secret, job"
    )
    assert [line.split()[-2:] for line in firsts] == [["2", "cpu"], ["1", "cpu"], ["1", "cpu"]]
    secrets = {line[4:] for line in lines if line not in firsts}
    assert len(secrets) == 1 and len(secrets.pop()) >= 43
    assert outcome.err.count("['-n', '7'] __main__") == 3
    assert (outcome.logs / "process-0.out").read_text().splitlines()[0] == firsts[0][4:]


def test_where_the_logs_of_a_good_run_are_is_told(launch):
    outcome = launch("print('some')", islands=(1, 1))
    assert outcome.code == 0
    assert (
        outcome.err == f"jhetcc launch: all processes ended with exit code 0; their output is kept in {outcome.logs}\n"
    )
    assert (outcome.logs / "process-1.out").read_text() == "some\n"


def test_a_run_that_says_nothing_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = tmp_path / "script.py"
    script.write_text("")
    assert run(Job((Island("cpu", 1),), (str(script),)), ENVIRONMENT) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_first_failure_is_shown_with_its_traceback_and_the_rest_ended(launch):
    outcome = launch(
        """
        if me == 1:
            def deep(): raise ValueError("the reason")
            deep()
        print("waiting", flush=True)
        time.sleep(600)
        """,
        islands=(1, 1, 1),
    )
    assert outcome.code == 1
    assert re.search(
        r"first failure: process 1 \(cpu:1, pid \d+\) ended with exit code 1; the end of its stderr:", outcome.err
    )
    report = outcome.err[outcome.err.index("first failure") :]
    assert "  | ValueError: the reason" in report and "in deep" in report
    assert "runpy" not in report and "child.py" not in report
    assert f"logs of all processes: {outcome.logs}" in report
    assert outcome.seconds < 20


def test_a_consequence_is_not_reported_as_the_cause(launch):
    outcome = launch(
        """
        import pathlib
        flag = pathlib.Path(__file__).with_name("flag")
        if me == 1:
            flag.touch()
            time.sleep(1)  # still in teardown while the other has noticed
            raise ValueError("the reason")
        while not flag.exists(): pass
        raise RuntimeError("PeerLostError: process 1 is gone")
        """
    )
    assert outcome.code == 1 and "first failure: process 1" in outcome.err


def test_exit_codes_and_signals(launch):
    assert launch("sys.exit(7 if me else 0)").code == 7
    outcome = launch("os.kill(os.getpid(), signal.SIGKILL) if me == 0 else None")
    assert (
        outcome.code == 137 and "was ended by SIGKILL" in outcome.err and "(it wrote nothing to stderr)" in outcome.err
    )


def test_others_get_time_to_raise_their_own_error(launch):
    outcome = launch(
        """
        if me == 0: sys.exit(3)
        time.sleep(1.0)
        print("own words", file=sys.stderr)
        sys.exit(4)
        """
    )
    assert outcome.code == 3 and "[1] own words" in outcome.err


SURVIVORS = """
import jhetcc, numpy
comm = jhetcc.init(devices=1)
try:
    comm.barrier()
    if comm.rank == {lost}: os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()
except jhetcc.PeerLostError:
    comm = comm.shrink()
time.sleep({rest})  # longer than they would have if they were not let go on
print("sum", int(comm.all_reduce(numpy.array(1))), flush=True)
comm.close()
"""


@pytest.mark.parametrize("lost", [0, 2])
def test_survivors_may_go_on(launch, lost):
    """They shrink and end well; the launcher says who failed, when it happened and at the end, and fails."""
    outcome = launch(SURVIVORS.format(lost=lost, rest=3.5 if lost else 0), islands=(1, 1, 1), grace=math.inf)
    assert outcome.code == 137
    survivors = [number for number in range(3) if number != lost]
    assert sorted(line for line in outcome.out.splitlines()) == [f"[{number}] sum 2" for number in survivors], (
        outcome.err
    )
    assert re.search(rf"process {lost} \(cpu:1, pid \d+\) was ended by SIGKILL; the others go on\n", outcome.err)
    assert outcome.err.count("was ended by") == 2 and "ended with exit code" not in outcome.err
    assert outcome.err.index("; the others go on") < outcome.err.index(f"first failure: process {lost} ")


def test_survivors_that_hang_are_ended_by_the_timeout(launch):
    outcome = launch("sys.exit(3) if me == 0 else time.sleep(600)", timeout=1.5, grace=math.inf)
    assert outcome.code == 124 and "first failure: process 0" in outcome.err
    assert "process 0 (cpu:1" in outcome.err and "still running: 1;" in outcome.err


def test_stubborn_process_and_its_children_are_killed(launch, tmp_path, monkeypatch):
    monkeypatch.setattr("jhetcc.launch.supervise._TERM_S", 0.5)
    outcome = launch(
        """
        import subprocess, pathlib
        if me == 0:
            while not pathlib.Path(__file__).with_name("pids").exists(): pass
            sys.exit(5)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time, signal; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
        path = pathlib.Path(__file__).with_name("new")
        path.write_text(f"{os.getpid()} {child.pid}")
        path.rename(path.with_name("pids"))
        time.sleep(600)
        """,
        grace=0.2,
    )
    assert outcome.code == 5
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2
    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_children_of_a_process_that_ended_well_do_not_outlive_it(launch, tmp_path):
    outcome = launch(
        """
        import subprocess, pathlib
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        pathlib.Path(__file__).with_name(f"pid{me}").write_text(str(child.pid))
        os._exit(0)
        """
    )
    assert outcome.code == 0
    pids = [(tmp_path / f"pid{number}").read_text() for number in range(2)]
    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_timeout_shows_where_processes_hang(launch):
    outcome = launch("def stuck(): time.sleep(600)\nif me: stuck()", timeout=1.5)
    assert outcome.code == 124
    assert "not done after 1.5 s; still running: 1;" in outcome.err and "in stuck" in outcome.err


def test_carriage_returns_and_unfinished_lines(launch):
    outcome = launch(
        r"""
        if me == 0:
            os.write(1, b"10%\r20%\rdone\r\nwindows\r\nlast words")
        """
    )
    assert outcome.code == 0
    assert outcome.out == "[0] 10%\r[0] 20%\r[0] done\r\n[0] windows\r\n[0] last words\n"
    assert (outcome.logs / "process-0.out").read_bytes() == b"10%\r20%\rdone\r\nwindows\r\nlast words"


def test_much_output_of_both_streams(launch):
    outcome = launch("for k in range(20000): print(me, k); print(me, k, file=sys.stderr)")
    assert outcome.code == 0
    for text in (outcome.out, outcome.err):
        for number in range(2):
            lines = [line for line in text.splitlines() if line.startswith(f"[{number}]")]
            assert lines == [f"[{number}] {number} {k}" for k in range(20000)]


def test_unknown_variable_is_refused_before_anything_starts(launch):
    with pytest.raises(BadArgumentError, match="did you mean JHETCC_LOG"):
        launch("print('started')", environment={"JHETCC_LOGG": "debug"})


def test_no_descriptor_is_left(launch):
    launch("pass")
    before = len(os.listdir("/proc/self/fd"))
    launch("sys.exit(me)")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def command(tmp_path):
    script = tmp_path / "script.py"
    started = []

    def start(body):
        script.write_text(
            "import os, sys, time, signal, pathlib\nhere = pathlib.Path(__file__).parent\n" + textwrap.dedent(body)
        )
        words = [
            sys.executable,
            "-P",
            "-m",
            "jhetcc",
            "launch",
            "-n",
            "2",
            "--log-dir",
            str(tmp_path / "logs"),
            str(script),
        ]
        started.append(
            subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


ANNOUNCE = """
path = here / f"new{os.getpid()}"
path.write_text(str(os.getpid()))
path.rename(here / f"pid{os.environ['JHETCC_PROCESS_ID']}")
"""


def pids_of(tmp_path):
    wait_until(lambda: all((tmp_path / f"pid{number}").exists() for number in range(2)))
    return [(tmp_path / f"pid{number}").read_text() for number in range(2)]


def test_ctrl_c_reaches_all_and_ends_with_130(command, tmp_path):
    body = "try:" + textwrap.indent(ANNOUNCE + "time.sleep(600)\n", "    ") + "finally: print('cleaned up', flush=True)"
    process = command(body)
    pids = pids_of(tmp_path)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err
    assert out.count("cleaned up") == 2
    assert not any(alive(pid) for pid in pids)


def test_second_ctrl_c_kills(command, tmp_path):
    process = command(
        "signal.signal(signal.SIGINT, lambda *_: print('no', flush=True))\n" + ANNOUNCE + "while True: time.sleep(600)"
    )
    pids = pids_of(tmp_path)
    process.send_signal(signal.SIGINT)
    assert "no" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130 and not any(alive(pid) for pid in pids)


def test_killed_launcher_takes_its_processes_along(command, tmp_path):
    process = command(ANNOUNCE + "time.sleep(600)")
    pids = pids_of(tmp_path)
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_reader_that_goes_away_ends_the_job(command, tmp_path):
    process = command(ANNOUNCE + "while True: print('x' * 100)")
    pids = pids_of(tmp_path)
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 141
    wait_until(lambda: not any(alive(pid) for pid in pids))
