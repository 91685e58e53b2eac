# SPDX-License-Identifier: Apache-2.0
"""A job of two ranks, one a host, for bench/faults.py: told what to run, heard with a deadline, and ended whatever state it is in."""

import contextlib
import json
import os
import pathlib
import secrets
import selectors
import signal
import subprocess
import sys
import time

_MEMBER = str(pathlib.Path(__file__).resolve().parent / "faults_member.py")
_END_S, _START_S, _ANSWER_S = 10, 40, 30


class Hung(Exception):
    """A process of the job did not answer in time, or has ended."""


def _shifted(answer, ahead):
    """All moments in an answer, by a clock that is so much behind."""
    if not ahead or not isinstance(answer, dict):
        return answer
    moved = {key: answer[key] - ahead for key in ("begin", "end") if key in answer}
    moved |= {key: [t - ahead for t in answer[key]] for key in ("ended",) if key in answer}
    moved |= {key: [(t - ahead, path) for t, path in answer[key]] for key in ("lost",) if key in answer}
    return answer | moved


class Job:
    """Args:
    site: the two hosts.
    nics: how many of their links it uses.
    port: of its coordinator, at the address of the control plane.
    options: JHETCC_* settings.
    """

    def __init__(self, site, nics, port, options=()):
        addresses = ",".join(site.nic_address(host, k) for host in (0, 1) for k in range(nics))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("JHETCC_")}
        environment |= {
            "JHETCC_SECRET": secrets.token_hex(32), "JHETCC_INTERFACE": addresses, "JHETCC_TRANSPORT": site.transport,
            "JHETCC_PATHS_PER_NIC": "1", "JHETCC_SPIN_US": "2", "OMP_NUM_THREADS": "1",
        } | dict(options)  # fmt: skip
        self._site, self.processes, self._rest, self._selector = site, [], [b"", b""], selectors.DefaultSelector()
        try:
            for host in (0, 1):
                words = [sys.executable, _MEMBER, f"{site.control_address(0)}:{port}", str(host)]
                self.processes.append(site.start(host, words, environment))
            self.hello = self.hear(_START_S)
        except Hung:
            self.close(kill=True)
            raise

    def tell(self, *words, hosts=(0, 1)):
        for host in hosts:
            with contextlib.suppress(BrokenPipeError):
                self.processes[host].stdin.write((json.dumps(words) + "\n").encode())

    def hear_one(self, host, seconds):
        """An answer; its times are by the clock of this process."""
        seconds *= self._site.patience
        end = time.monotonic() + seconds
        pipe = self.processes[host].stdout
        self._selector.register(pipe, selectors.EVENT_READ)
        try:
            while b"\n" not in self._rest[host]:
                if not self._selector.select(max(0.0, end - time.monotonic())):
                    raise Hung(f"rank {host} did not answer within {seconds:g} s: {self.output(host)}")
                data = os.read(pipe.fileno(), 1 << 16)
                if not data:
                    raise Hung(f"rank {host} ended with {self.processes[host].wait()}: {self.output(host)}")
                self._rest[host] += data
        finally:
            self._selector.unregister(pipe)
        line, _, self._rest[host] = self._rest[host].partition(b"\n")
        return _shifted(json.loads(line), self._site.ahead(host))

    def hear(self, seconds=_ANSWER_S, hosts=(0, 1)):
        return [self.hear_one(host, seconds) for host in hosts]

    def is_answered(self):
        """Whether any rank has answered, or ended."""
        for host, process in enumerate(self.processes):
            self._selector.register(process.stdout, selectors.EVENT_READ, host)
        ready = self._selector.select(0)
        for process in self.processes:
            self._selector.unregister(process.stdout)
        return bool(ready)

    def all(self, *words, seconds=_ANSWER_S):
        self.tell(*words)
        return self.hear(seconds)

    def look(self, since):
        """Paths, counters, and losses of paths since then, of each rank."""
        for host in (0, 1):
            self.tell("look", since + self._site.ahead(host) - self._site.blur_s, hosts=[host])
        return self.hear()

    def pid(self, host):
        return self.hello[host]["pid"]

    def signal(self, host, number):
        self.processes[host].send_signal(number)

    def output(self, host):
        return self.processes[host].output()

    def close(self, kill=False):
        for process in self.processes:
            with contextlib.suppress(OSError):
                process.end_input()
        for process in self.processes:
            if kill:
                process.kill()
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.close()
        self._selector.close()
