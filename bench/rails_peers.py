# SPDX-License-Identifier: Apache-2.0
"""Part of bench/rails.py: what a job over JAX's own collectives or MPI does when its interface dies, on the same links. One thread."""

import contextlib
import json
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from jhetcc.launch import child

_MEMBER = str(pathlib.Path(__file__).resolve().parent / "rails_peers_member.py")
_START_S, _BEFORE_S = 90, 3
KINDS = ("gloo", "mpich")


class Running:
    """Two processes that sum and say so, a JSON line an operation.

    Args:
      commands: one a host, without what ties it to this process; or one of a launcher that starts both.
    """

    def __init__(self, commands, environment):
        self._log, self._selector, self._rest = tempfile.TemporaryFile(), selectors.DefaultSelector(), {}  # noqa: SIM115
        self.begun, self.first, self.last, self.count = time.perf_counter(), None, None, 0
        tied = [sys.executable, "-I", "-S", child.__file__, str(os.getpid())]
        self._processes = [
            subprocess.Popen(
                [*tied, *command], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log,
                start_new_session=True,
            )
            for command in commands
        ]  # fmt: skip
        for process in self._processes:
            self._selector.register(process.stdout, selectors.EVENT_READ)
            self._rest[process.stdout.fileno()] = b""

    def watch(self, seconds, until=lambda: False):
        """Hears what is said for so long, or until a condition holds or all have ended."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end and not until() and self._selector.get_map():
            for key, _ in self._selector.select(0.05):
                data = os.read(key.fd, 1 << 16)
                if not data:
                    self._selector.unregister(key.fileobj)
                *lines, self._rest[key.fd] = (self._rest[key.fd] + data).split(b"\n")
                for line in lines:
                    with contextlib.suppress(ValueError):  # a launcher's own words
                        self._take(json.loads(line))

    def _take(self, word):
        if not isinstance(word, dict):
            return
        self.first, self.last, self.count = self.first or time.perf_counter(), time.perf_counter(), self.count + 1

    def has_ended(self):
        return any(process.poll() is not None for process in self._processes)

    def said(self):
        """The last line of what they wrote that looks like a reason."""
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        reasons = [line for line in lines if "rror" in line or "ailed" in line or "imed out" in line]
        return (reasons or lines or [""])[-1][:200]

    def close(self):
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
        self._selector.close()
        self._log.close()


def _found(command):
    """With its program's path: what ties a process to this one does not look for it."""
    return [shutil.which(command[0]) or command[0], *command[1:]]


def start(kind, bench, port):
    """Both processes of a peer over NIC 0; who gathers them is reached over NIC 1, which stays. None: it is not installed."""
    network, size = bench.network, str(bench.options.size // 16)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JHETCC_")}
    environment |= {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    if kind == "gloo":
        # Gloo listens at what the host's name means: each process has a name of its own, which is its address.
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$1" && shift && exec "$@"', "sh"]
        commands = [
            [*_found(network.prefix(host)), *named, network.nic_address(host, 0),
             sys.executable, _MEMBER, "gloo", size, f"{network.nic_address(0, 1)}:{port}", str(host)]
            for host in (0, 1)
        ]  # fmt: skip
        return Running(commands, environment)
    place = pathlib.Path(bench.options.peers) / kind
    if not (place / ".complete").exists():
        return None
    environment |= {
        "MPIR_CVAR_NOLOCAL": "1",
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": "nic0",
    }
    ranks = [
        ["-n", "1", *network.prefix(host), str(place / "bin" / "python"), _MEMBER, "mpi", size] for host in (0, 1)
    ]  # fmt: skip
    return Running([[str(place / "bin" / "mpiexec"), *ranks[0], ":", *ranks[1]]], environment)


def _carried(network):
    """Bytes that NIC 0 of host 1 has sent."""
    with open(f"/proc/{network.pid(1)}/net/dev", encoding="ascii") as file:
        (line,) = [line for line in file if line.strip().startswith("nic0:")]
    return int(line.partition(":")[2].split()[8])


def peers(bench):
    """For each: its interface is taken for good in the middle of operations, or for three seconds."""
    for number, kind in enumerate(KINDS):
        for away in (None, 3.0):
            _one(bench, kind, away, 7160 + 2 * number + (away is not None))


def _one(bench, kind, away, port):
    case = f"{kind}, NIC gone {'for good' if away is None else f'for {away:g} s'}"
    running = start(kind, bench, port)
    if running is None:
        print(f" peers {kind}: not installed in {bench.options.peers}: bench/setup_peers.py", flush=True)
        return
    try:
        running.watch(_START_S, lambda: running.count > 4)
        if running.count <= 4:
            print(f" peers {kind}: it did not start: {running.said()}", flush=True)
            return
        bench.row("peers", f"{kind}: from its start to its first result", running.first - running.begun, "s")
        then = _carried(bench.network)
        running.watch(_BEFORE_S)
        if (carried := _carried(bench.network) - then) < bench.options.size // 4:
            print(
                f" peers {kind}: inconclusive: it sent {carried} bytes over NIC 0, too few to depend on it", flush=True
            )
            return
        bench.network.down(1, 0)
        at, before = time.perf_counter(), running.count
        if away is not None:
            running.watch(away)
            bench.network.up(1, 0)
        running.watch(bench.options.patience, lambda: running.has_ended() or (away and running.count > before + 10))
        waited = time.perf_counter() - at
        if running.has_ended():
            bench.row("peers", f"{case}: it ended after", waited, "s", said=running.said())
            print(f"       {running.said()}", flush=True)
        elif running.count > before + 2:
            bench.row("peers", f"{case}: went on, next result after", running.last - at, "s")
        else:
            bench.row("peers", f"{case}: stood still, no error for", waited, "s")
    finally:
        running.close()
        with contextlib.suppress(OSError):
            bench.network.up(1, 0)
