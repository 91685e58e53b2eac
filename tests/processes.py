# SPDX-License-Identifier: Apache-2.0
"""Local processes for the tests: started once for a grouping, then used for many cases, watched, and never left behind.

A case is a module-level function ``case(comm, *arguments)``; every process of a pool calls it and sends back what it returned or
raised. Test and case talk by ``say()`` and ``hear()``, so that faults come at a known point and nobody has to sleep.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from jhetcc.launch.port import HeldPort

__all__ = [
    "DEADLINE_S",
    "Failure",
    "Outcome",
    "Pool",
    "Running",
    "Script",
    "import_path",
    "run_scripts",
    "start_scripts",
]

HERE = Path(__file__).resolve().parent
DEADLINE_S = 90.0
LAST_WORDS_S = 5.0
OUTPUT_SHOWN = 6000


def import_path() -> str:
    """Where processes of a test import from: as here, but never from the source tree, which would hide the installed package."""
    return os.pathsep.join(path for path in sys.path if path and Path(path).resolve() != HERE.parent)


def environment(devices: int, extra: Mapping[str, str]) -> dict[str, str]:
    """What a process of a job sees: this process's environment without the settings of other jobs."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JHETCC_") and k != "XLA_FLAGS"}
    ours = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": import_path(),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return kept | ours | dict(extra)


@dataclass
class Outcome:
    """How a case ended in one process: a value, an exception, or the end of the process."""

    index: int
    value: Any = None
    error: Exception | None = None  # the exception, or a Failure that describes it
    code: int | None = None  # exit code where the process ended; -9 after SIGKILL
    begun: float = 0.0  # time.monotonic(), one clock for all processes of a machine
    ended: float = 0.0
    output: str = ""
    said: list[Any] = field(default_factory=list)
    all: list[Outcome] = field(default_factory=list, repr=False)

    @property
    def seconds(self) -> float:
        return self.ended - self.begun

    def get(self) -> Any:
        if self.error is not None:
            for other in self.all:
                if other is not self:
                    self.error.add_note(
                        f"meanwhile in process {other.index}: {other.error or other.value!r}, code {other.code}"
                    )
            raise self.error
        if self.code is not None:
            raise Failure(f"process {self.index} ended with code {self.code}", self.output)
        return self.value


class Failure(Exception):
    """Something in another process that has no exception of its own here."""

    def __init__(self, text: str, details: str = ""):
        super().__init__(f"{text}\n{details[-OUTPUT_SHOWN:]}" if details else text)


class Worker:
    """One process, ready to run cases."""

    def __init__(self, index: int, devices: int, extra: Mapping[str, str], folder: str, prefix: Sequence[str] = ()):
        self.index = index
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        self.log = Path(folder) / f"{index}-{secrets.token_hex(4)}.log"
        with open(self.log, "wb") as log:
            self.popen = subprocess.Popen(
                [*prefix, sys.executable, str(HERE / "process_worker.py"), str(theirs.fileno())],
                env=environment(devices, extra),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        theirs.close()
        self.heard = 0

    @property
    def pid(self) -> int:
        return self.popen.pid

    def alive(self) -> bool:
        return self.popen.poll() is None

    def new_output(self) -> str:
        data = self.log.read_bytes()
        text, self.heard = data[self.heard :].decode(errors="replace"), len(data)
        return text

    def stacks(self) -> str:
        """Where its threads are, for the report of a hang."""
        if self.alive():
            self.popen.send_signal(signal.SIGCONT)
            self.popen.send_signal(signal.SIGUSR1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(0.5)
        return self.new_output()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait()
        self.connection.close()


class Running:
    """A case under way in all processes of a pool."""

    def __init__(self, pool: Pool, deadline: float):
        self.pool = pool
        self.deadline = time.monotonic() + deadline
        self.outcomes = [Outcome(worker.index) for worker in pool.workers]
        for outcome in self.outcomes:
            outcome.all = self.outcomes
        self._open = set(range(len(pool.workers)))
        self._begun = time.monotonic()

    def pid(self, index: int) -> int:
        return self.pool.workers[index].pid

    def signal(self, index: int, number: int) -> None:
        """Injects a fault: SIGKILL, SIGSTOP, SIGCONT, SIGINT."""
        self.pool.workers[index].popen.send_signal(number)

    def tell(self, index: int, word: Any = None) -> None:
        """Answers the case's ``hear()``."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pool.workers[index].connection.send(("word", word))

    def expect(self, *indexes: int, word: Any) -> None:
        """Waits until each of these processes has said the word."""
        while any(word not in self.outcomes[i].said for i in indexes):
            for i in indexes:
                if i not in self._open and word not in self.outcomes[i].said:
                    self._fail(f"process {i} ended before it said {word!r}")
            self._step()

    def word(self, index: int, number: int = 0) -> Any:
        """The last thing a process said, once it has said something, or more than this number of things."""
        while len(self.outcomes[index].said) <= number:
            if index not in self._open:
                self._fail(f"process {index} ended without a word")
            self._step()
        return self.outcomes[index].said[-1]

    def see(self, index: int, text: str) -> None:
        """Waits until a process has printed this since the case began; its log comes by a thread of its own."""
        worker, outcome = self.pool.workers[index], self.outcomes[index]
        while text not in outcome.output:
            if time.monotonic() > self.deadline or not worker.alive():
                self._fail(f"process {index} did not print {text!r}")
            time.sleep(0.01)
            outcome.output += worker.new_output()

    def finish(self, *indexes: int) -> list[Outcome]:
        """Waits until these (default: all) processes are done."""
        wanted = set(indexes or range(len(self.outcomes)))
        while self._open & wanted:
            self._step()
        return [self.outcomes[i] for i in sorted(wanted)]

    def linger(self, seconds: float, *indexes: int) -> None:
        """Lets the processes go on for this long, or until all of these are done: a rank that is late on purpose."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and (not indexes or self._open & set(indexes)):
            self._step(end - time.monotonic())

    def _step(self, at_most: float = 1.0) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            self._fail("the deadline passed")
        ready = wait([self.pool.workers[i].connection for i in self._open], max(min(left, at_most), 0))
        for i in [i for i in self._open if self.pool.workers[i].connection in ready]:
            self._take(i)

    def _take(self, index: int) -> None:
        worker, outcome = self.pool.workers[index], self.outcomes[index]
        try:
            kind, *rest = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            try:
                outcome.code = worker.popen.wait(max(self.deadline - time.monotonic(), LAST_WORDS_S))
            except subprocess.TimeoutExpired:
                self._fail(f"process {index} closed its connection and does not end")
            outcome.begun, outcome.ended = self._begun, time.monotonic()
            outcome.output += worker.new_output()
            self._open.discard(index)
            return
        if kind == "word":
            outcome.said.append(rest[0])
            return
        outcome.value, outcome.error, outcome.begun, outcome.ended = rest
        outcome.output += worker.new_output()
        self._open.discard(index)

    def _fail(self, why: str) -> None:
        report = [f"{why}; under way in processes {sorted(self._open)}"]
        for outcome, worker in zip(self.outcomes, self.pool.workers, strict=True):
            state = "under way" if outcome.index in self._open else outcome.error or f"done: {outcome.value!r:.200}"
            report.append(
                f"--- process {outcome.index} (pid {worker.pid}): {state}\n{outcome.output}{worker.stacks()}"[
                    -OUTPUT_SHOWN:
                ]
            )
        self.pool.kill()
        raise Failure("\n".join(report))


class Pool:
    """Processes of one grouping.

    Args:
      grouping: devices (ranks) of each process, e.g. ``(2, 1, 1)``.
      jax: whether ranks are JAX's virtual CPU devices; else plain ranks for raw calls, and JAX is never imported.
      extra: environment of the processes.
      own: ``JHETCC_*`` settings of each process, besides those of a case.
      prefixes: in front of the command of each, to run it elsewhere; the process stays the same.
    """

    def __init__(
        self,
        grouping: Sequence[int],
        *,
        jax: bool = False,
        extra: Mapping[str, str] | None = None,
        own: Sequence[Mapping[str, str]] = (),
        prefixes: Sequence[Sequence[str]] = (),
    ):
        self.grouping = tuple(grouping)
        self.prefixes = [tuple(one) for one in prefixes] or [()] * len(self.grouping)
        self.own = [dict(one) for one in own] or [{} for _ in grouping]
        self.jax = jax
        self.extra = dict(extra or {})
        self.workers: list[Worker] = []
        self.pids: set[int] = set()  # of all processes so far
        self.folder = tempfile.TemporaryDirectory(prefix="jhetcc-test-")
        self._world: tuple | None = None
        self._port: HeldPort | None = None  # of the world: no other session of tests may get it

    def start(
        self,
        case: Callable[..., Any],
        *arguments: Any,
        options: Mapping[str, str] | None = None,
        world: bool = True,
        deadline: float = DEADLINE_S,
    ) -> Running:
        """Lets every process call the case.

        Args:
          case: a function of a module both sides can import.
          *arguments: after the communicator (or first, where ``world`` is false).
          options: ``JHETCC_*`` settings; another world is made where they differ from those of the last case.
          world: whether the processes are a job already; else the case calls ``init()`` itself, with ``coordinator`` and process
            number from the environment.
          deadline: seconds until everything is killed and reported.
        """
        self._fill()
        wanted = tuple(sorted((options or {}).items())) if world else None
        running = Running(self, deadline)
        renewed = False
        if not world or wanted != self._world:
            self._give_back_port()
            self._port = HeldPort()
            renewed = True
        self._world = wanted
        for worker in self.workers:
            renew = None
            if renewed and self._port is not None:
                settings = self.own[worker.index] | dict(options or {})
                renew = {"coordinator": self._port.address, "options": settings, "join": world}
            devices = None if self.jax else self.grouping[worker.index]
            place = {"process_id": worker.index, "num_processes": len(self.workers), "devices": devices}
            task = (case.__module__, case.__qualname__, arguments, place, renew)
            worker.connection.send(("task", pickle.dumps(task)))
        return running

    def attempt(self, case: Callable[..., Any], *arguments: Any, **how: Any) -> list[Outcome]:
        """Runs a case that may end in any way in any process; the world is not used again."""
        running = self.start(case, *arguments, **how)
        try:
            return running.finish()
        finally:
            self.renew()

    def run(self, case: Callable[..., Any], *arguments: Any, **how: Any) -> list[Any]:
        """Runs a case that succeeds; returns its values, by process."""
        outcomes = self.start(case, *arguments, **how).finish()
        if any(outcome.error is not None or outcome.code is not None for outcome in outcomes):
            self.renew()
        return [outcome.get() for outcome in outcomes]

    def renew(self) -> None:
        """The next case gets a new world."""
        self._world = None

    def _fill(self) -> None:
        if len(self.workers) == len(self.grouping) and all(worker.alive() for worker in self.workers):
            return
        self._world = None
        old = {worker.index: worker for worker in self.workers}
        self.workers = []
        for index, devices in enumerate(self.grouping):
            worker = old.pop(index, None)
            if worker is None or not worker.alive():
                if worker is not None:
                    worker.end()
                worker = Worker(index, devices, self.extra, self.folder.name, self.prefixes[index])
                self.pids.add(worker.pid)
            self.workers.append(worker)

    def kill(self) -> None:
        """Kills every process; the next case gets new ones."""
        for worker in self.workers:
            worker.end()
        self.workers = []
        self._world = None

    def _give_back_port(self) -> None:
        if self._port is not None:
            self._port.close()
        self._port = None

    def close(self) -> None:
        """Kills every process; nothing is left."""
        self.kill()
        self._give_back_port()
        self.folder.cleanup()


@dataclass
class Script:
    """A process of its own that ran some source text."""

    index: int
    popen: subprocess.Popen[bytes]
    log: Path
    begun: float
    code: int | None = None
    seconds: float = 0.0

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")


@contextlib.contextmanager
def start_scripts(
    source: str,
    grouping: Sequence[int] = (1, 1),
    *,
    extra: Mapping[str, str] | None = None,
    own: Sequence[Mapping[str, str]] = (),
):
    """Starts the text once a process, as a job of its own; yields the scripts; kills what is left.

    Args:
      source: Python; ``me`` is the number of the process, and ``jhetcc.init()`` finds the job.
      grouping: devices of each process.
      extra: environment of all.
      own: environment of each.
    """
    scripts: list[Script] = []
    with contextlib.closing(HeldPort()) as port, tempfile.TemporaryDirectory(prefix="jhetcc-test-") as folder:
        path = Path(folder) / "script.py"
        path.write_text("import os\nme = int(os.environ['JHETCC_PROCESS_ID'])\n" + source)
        try:
            for index, devices in enumerate(grouping):
                place = {
                    "JHETCC_PROCESS_ID": str(index),
                    "JHETCC_NUM_PROCESSES": str(len(grouping)),
                    "JHETCC_COORDINATOR": port.address,
                }
                ours = place | dict(extra or {}) | (dict(own[index]) if own else {})
                log = Path(folder) / f"{index}.log"
                with open(log, "wb") as out:
                    popen = subprocess.Popen(
                        [sys.executable, str(path)], env=environment(devices, ours), stdin=subprocess.DEVNULL,
                        stdout=out, stderr=out, start_new_session=True,
                    )  # fmt: skip
                scripts.append(Script(index, popen, log, time.monotonic()))
            yield scripts
        finally:
            for script in scripts:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(script.popen.pid, signal.SIGKILL)
                script.popen.wait()


def wait_scripts(scripts: Sequence[Script], deadline: float = DEADLINE_S) -> None:
    """Waits for all to end; a hang is a failure that shows what each printed."""
    end = time.monotonic() + deadline
    while any(script.code is None for script in scripts):
        for script in scripts:
            if script.code is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    script.code = script.popen.wait(0.01)
                    script.seconds = time.monotonic() - script.begun
        if time.monotonic() > end:
            shown = "\n".join(f"--- process {s.index}: code {s.code}\n{s.output[-OUTPUT_SHOWN:]}" for s in scripts)
            raise Failure(f"the deadline passed\n{shown}")


def run_scripts(
    source: str, grouping: Sequence[int] = (1, 1), *, deadline: float = DEADLINE_S, **how: Any
) -> list[tuple[int, str, float]]:
    """Runs the text once a process; returns (exit code, output, seconds) of each."""
    with start_scripts(source, grouping, **how) as scripts:
        wait_scripts(scripts, deadline)
        return [(int(script.code or 0), script.output, script.seconds) for script in scripts]
