# SPDX-License-Identifier: Apache-2.0
"""Runs a job's processes: starts them, watches them, and when one fails, shows the first failure and ends the rest.

One thread, one loop; must be the main thread, since it handles signals. Each process leads its own group and dies with the launcher.
"""

from __future__ import annotations

import math
import os
import random
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jhetcc import config
from jhetcc.launch import child
from jhetcc.launch.arguments import Island, Job
from jhetcc.launch.output import Screen, Stream
from jhetcc.launch.port import HeldPort
from jhetcc.world.secret import generate

__all__ = ["run"]

_TERM_S = 10.0  # between SIGTERM and SIGKILL
_DRAIN_S = 1.0  # for output still in pipes once all processes ended
_TIMEOUT_CODE = 124
_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=\S+\s*")
# These tell of somebody else's failure: another process that failed on its own is the better report.
_CONSEQUENCE = re.compile(r"PeerLostError|AbortedError|jhetcc kind=(?:disconnected|aborted);|KeyboardInterrupt")


@dataclass
class _Process:
    number: int
    island: Island
    popen: subprocess.Popen
    pidfd: int
    streams: dict[str, Stream]
    code: int | None = None  # as a shell counts: 128 + signal where a signal ended it
    asked_to_end: bool = False

    @property
    def name(self) -> str:
        return f"process {self.number} ({self.island}, pid {self.popen.pid})"


def run(job: Job, environment: Mapping[str, str] | None = None, *, out: int = 1, err: int = 2) -> int:
    """Runs a job to its end and returns its exit code: 0, that of the first failure, 124 after a timeout, 130 after Ctrl-C.

    Args:
      job: what to start.
      environment: what the processes inherit; default: this process's.
      out, err: descriptors for their output and errors.

    Raises:
      BadArgumentError: the environment holds an unknown ``JHETCC_*`` variable or a bad value.
    """
    environment = dict(os.environ if environment is None else environment)
    config.read(environment)
    logs = Path(job.log_dir) if job.log_dir else Path(tempfile.mkdtemp(prefix="jhetcc-launch-"))
    logs.mkdir(parents=True, exist_ok=True)
    supervisor = _Supervisor(job, logs, out, err)
    try:
        supervisor.start(environment)
        return supervisor.watch()
    finally:
        supervisor.close()


def _secret_descriptor() -> int:
    # An anonymous file: on no command line, in no directory, gone with the last process that holds it.
    descriptor = os.memfd_create("jhetcc-secret")
    os.write(descriptor, generate().encode())
    return descriptor


def _environment_of(number: int, island: Island, job: Job, common: Mapping[str, str]) -> dict[str, str]:
    environment = dict(common)
    environment["JHETCC_PROCESS_ID"] = str(number)
    environment["JHETCC_NUM_PROCESSES"] = str(len(job.islands))
    environment["JAX_PLATFORMS"] = island.platform
    environment["JAX_NUM_CPU_DEVICES"] = str(island.devices)
    if island.library is not None:
        environment["JHETCC_LIBRARY"] = island.library
    environment["XLA_FLAGS"] = _DEVICE_COUNT.sub("", environment.get("XLA_FLAGS", "")).strip()
    environment["PYTHONUNBUFFERED"] = "1"
    environment.setdefault("PYTHONFAULTHANDLER", "1")
    return environment


class _Supervisor:
    def __init__(self, job: Job, logs: Path, out: int, err: int):
        self._job, self._logs = job, logs
        self._out, self._err = Screen(out), Screen(err)
        self._processes: list[_Process] = []
        self._failures: list[_Process] = []  # in the order in which they were seen
        self._selector = selectors.DefaultSelector()
        self._signals: list[int] = []
        self._code: int | None = None  # decided by a signal or the timeout
        self._begun = time.monotonic()
        self._port = HeldPort()  # where process 0 will listen
        self._stages: list[tuple[float, int]] = []  # what is sent to those that still run, and when
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._old_wakeup = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._old_handlers = {
            number: signal.signal(number, lambda received, frame: self._signals.append(received))
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }

    def start(self, environment: dict[str, str]) -> None:
        secret = _secret_descriptor()
        try:
            for name in ("SECRET", "SECRET_FILE"):
                environment.pop(config.PREFIX + name, None)
            environment["JHETCC_COORDINATOR"] = self._port.address
            environment["JHETCC_SECRET_FD"] = str(secret)
            environment["JHETCC_JOB"] = f"launch-{os.getpid()}-{random.SystemRandom().getrandbits(32):08x}"
            for number, island in enumerate(self._job.islands):
                self._start_one(number, island, environment, secret)
        finally:
            os.close(secret)

    def _start_one(self, number: int, island: Island, common: Mapping[str, str], secret: int) -> None:
        bootstrap = [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), sys.executable, *self._job.command]
        popen = subprocess.Popen(
            bootstrap,
            env=_environment_of(number, island, self._job, common),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(secret,),
            process_group=0,
        )
        assert popen.stdout is not None and popen.stderr is not None
        who = str(number)
        streams = {
            "out": Stream(who, popen.stdout, self._logs / f"process-{who}.out", self._out),
            "err": Stream(who, popen.stderr, self._logs / f"process-{who}.err", self._err),
        }
        process = _Process(number, island, popen, os.pidfd_open(popen.pid), streams)
        self._processes.append(process)
        self._selector.register(process.pidfd, selectors.EVENT_READ, process)
        for stream in streams.values():
            self._selector.register(stream, selectors.EVENT_READ, stream)

    def watch(self) -> int:
        while any(process.code is None for process in self._processes):
            for key, _ in self._selector.select(self._patience()):
                self._on_event(key)
            self._on_signals()
            self._on_time()
        self._drain()
        return self._report()

    def _patience(self) -> float | None:
        moments = [moment for moment, _ in self._stages[:1]]
        if (end := self._timeout_at()) is not None:
            moments.append(end)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _timeout_at(self) -> float | None:
        """When the job's time is up; None where it has no limit or is being ended already."""
        is_ending = self._code is not None or any(process.asked_to_end for process in self._processes)
        if self._job.timeout is None or is_ending:
            return None
        return self._begun + self._job.timeout

    def _on_event(self, key: selectors.SelectorKey) -> None:
        if key.data is None:
            os.read(self._wake_read, 4096)
        elif isinstance(key.data, Stream):
            try:
                ended = not key.data.pump()
            except BrokenPipeError:
                ended = False
                self._end_by(128 + signal.SIGPIPE, signal.SIGTERM)
                self._out = self._err = Screen(os.open(os.devnull, os.O_WRONLY))
                self._selector.unregister(key.fileobj)
            if ended:
                self._selector.unregister(key.fileobj)
        else:
            self._on_exit(key.data)

    def _on_exit(self, process: _Process) -> None:
        self._selector.unregister(process.pidfd)
        # Its children go first, while the unreaped leader still keeps the group's number from being given away.
        _signal_group(process, signal.SIGKILL)
        code = process.popen.wait()
        process.code = code if code >= 0 else 128 - code
        if process.code != 0 and not process.asked_to_end:
            self._failures.append(process)
            if self._code is None:
                self._on_failure(process)

    def _on_failure(self, process: _Process) -> None:
        grace = self._job.grace
        if grace == math.inf:
            what = "the others go on"
        elif len(self._failures) == 1:
            moment = time.monotonic() + grace
            self._stages = [(moment, signal.SIGTERM), (moment + _TERM_S, signal.SIGKILL)]
            what = f"the others have {grace:g} s to end by themselves"
        else:
            return
        if self._others_run():
            self._err.say(f"jhetcc launch: {process.name} {_how(process)}; {what}")

    def _others_run(self) -> bool:
        return any(process.code is None for process in self._processes)

    def _on_signals(self) -> None:
        while self._signals:
            received = self._signals.pop(0)
            again = self._code is not None
            self._end_by(128 + received, signal.SIGKILL if again else received)

    def _end_by(self, code: int, first: int) -> None:
        # Sends `first` now, then what is stronger.
        self._code = code if self._code is None else self._code
        now = time.monotonic()
        self._stages = [(now, first), (now + _TERM_S, signal.SIGKILL)]

    def _on_time(self) -> None:
        now = time.monotonic()
        if (end := self._timeout_at()) is not None and now >= end:
            running = ", ".join(str(process.number) for process in self._processes if process.code is None)
            self._err.say(
                f"jhetcc launch: not done after {self._job.timeout:g} s; still running: {running}; their stacks follow"
            )
            self._end_by(_TIMEOUT_CODE, signal.SIGABRT)
        while self._stages and now >= self._stages[0][0]:
            _, number = self._stages.pop(0)
            for process in self._processes:
                if process.code is None:
                    process.asked_to_end = True
                    _signal_group(process, number)

    def _drain(self) -> None:
        # A process that left its group may hold a pipe for ever: what is there is shown, then it is let go.
        deadline = time.monotonic() + _DRAIN_S
        while time.monotonic() < deadline and any(
            isinstance(key.data, Stream) for key in self._selector.get_map().values()
        ):
            for key, _ in self._selector.select(max(0.0, deadline - time.monotonic())):
                self._on_event(key)

    def _report(self) -> int:
        own = [process for process in self._failures if not _CONSEQUENCE.search(process.streams["err"].tail())]
        first = (own or self._failures or [None])[0]
        if self._code is not None and (first is None or self._code != _TIMEOUT_CODE):
            first = None
        if first is None and not self._code:
            self._tell_logs()
            return 0
        if first is not None:
            tail = first.streams["err"].tail() or "(it wrote nothing to stderr)"
            self._err.say(f"jhetcc launch: first failure: {first.name} {_how(first)}; the end of its stderr:")
            for line in tail.splitlines():
                self._err.say(f"  | {line}")
        self._err.say(f"jhetcc launch: logs of all processes: {self._logs}")
        return self._code or (first.code if first is not None and first.code else 1)

    def _tell_logs(self) -> None:
        """Of a job that went well: where they are; a temporary folder of empty ones goes."""
        if any(stream.has_written for process in self._processes for stream in process.streams.values()):
            self._err.say(f"jhetcc launch: all processes ended with exit code 0; their output is kept in {self._logs}")
        elif not self._job.log_dir:
            shutil.rmtree(self._logs, ignore_errors=True)

    def close(self) -> None:
        for process in self._processes:
            if process.code is None:
                _signal_group(process, signal.SIGKILL)
                process.popen.wait()
            os.close(process.pidfd)
            for stream in process.streams.values():
                stream.close()
        self._port.close()
        self._selector.close()
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        os.close(self._wake_read)
        os.close(self._wake_write)


def _how(process: _Process) -> str:
    code = process.code or 0
    return (
        f"was ended by {signal.Signals(code - 128).name}"
        if process.popen.returncode < 0
        else f"ended with exit code {code}"
    )


def _signal_group(process: _Process, number: int) -> None:
    try:
        os.killpg(process.popen.pid, number)
    except (ProcessLookupError, PermissionError):
        return  # the group is gone
