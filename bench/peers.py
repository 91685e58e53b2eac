# SPDX-License-Identifier: Apache-2.0
"""The peers: what each is, how its processes are started, and the conversation with them. Used by the bench's own process alone.

What is started dies with the bench, however that ends, and leaves no name in /dev/shm.
"""

import contextlib
import json
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

from namespace import CubicNamespace

from jhetcc.launch import child
from jhetcc.launch.port import HeldPort

_HERE = pathlib.Path(__file__).resolve().parent
_SHARED_MEMORY = "/dev/shm/"
_START_S, _ANSWER_S, _END_S = 120, 300, 10
_HOST_PORT = 7300  # of the first coordinator on a host that is all the bench's
# Peers know hosts by their names, and take the first interface they find.
_AS_HOST = 'hostname "$1" && export FI_TCP_IFACE="$2" && shift 2 && exec "$@"'
_RAW, _JAX = ("raw",), ("jit", "jit donated", "jit loop")


class PeerError(Exception):
    """A peer cannot be started or has failed: it is left out by name."""


@dataclass(frozen=True)
class Peer:
    name: str
    kind: str  # of member.py
    modes: tuple[str, ...]
    what: str
    ours: bool = False
    place: str | None = None  # below .venv-bench; None: this interpreter
    needs_coordinator: bool = False
    cubic: bool = False  # in a network namespace of its own, whose default is cubic
    environment: dict = field(default_factory=dict)
    libraries: tuple[str, ...] = ()  # of our clusters, each of an equal part of the ranks


_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}  # fmt: skip
_GLOO = "JAX's own collectives over Gloo"
PEERS = {
    peer.name: peer
    for peer in (
        Peer("jhetcc", "jhetcc_raw", _RAW, "our raw calls", True, needs_coordinator=True),
        Peer(
            "jhetcc-tcp",
            "jhetcc_raw",
            _RAW,
            "our raw calls over TCP",
            True,
            None,
            True,
            environment={"JHETCC_TRANSPORT": "tcp"},
        ),
        Peer(
            "jhetcc-jax", "jhetcc_jit", (*_JAX, "plain jit"), "ours inside JAX programs", True, needs_coordinator=True
        ),
        Peer(
            "jhetcc-mixed",
            "jhetcc_raw",
            _RAW,
            "ours over two clusters, the stages inside by oneCCL and by MPICH",
            True,
            None,
            True,
            environment={"JHETCC_ALGORITHM": "hierarchical"},
            libraries=("oneccl", "mpi"),
        ),
        Peer(
            "jhetcc-split",
            "jhetcc_raw",
            _RAW,
            "ours over two clusters, the stages inside by oneCCL",
            True,
            None,
            True,
            environment={"JHETCC_ALGORITHM": "hierarchical"},
            libraries=("oneccl", "oneccl"),
        ),
        Peer("floor", "copy", _RAW, "one non-temporal copy of the size on each rank", True),
        Peer("sockets", "sockets", _RAW, "two plain sockets, spinning", True, needs_coordinator=True),
        Peer("add", "add", _JAX, "a jitted addition: JAX's own cost", True),
        Peer("gloo", "gloo", _JAX, _GLOO, needs_coordinator=True),
        Peer("gloo-cubic", "gloo", _JAX, f"{_GLOO}, cubic congestion control", needs_coordinator=True, cubic=True),
        Peer("mpi4jax", "mpi4jax", _JAX, "mpi4jax on MPICH", place="mpi4jax"),
        Peer("mpich", "mpi", _RAW, "mpi4py on MPICH", place="mpich"),
        Peer("openmpi", "mpi", _RAW, "mpi4py on Open MPI", place="openmpi", environment=_OPEN_MPI),
        Peer("impi", "mpi", _RAW, "mpi4py on Intel MPI", place="impi"),
        Peer("oneccl", "oneccl", _RAW, "oneCCL over shared memory", place="oneccl"),
        Peer("oneccl-tcp", "oneccl", _RAW, "oneCCL over TCP", place="oneccl"),
    )
}


def _tied(parent, python=sys.executable):
    """What to put in front of a command that is to be killed when its parent ends; a stopped one, too."""
    return [python, "-I", "-S", child.__file__, str(parent)]


def _mapped_names(pid):
    """The names in /dev/shm of what this process has mapped; what was unlinked has none."""
    with open(f"/proc/{pid}/maps") as file:
        return {line.rstrip("\n").partition(_SHARED_MEMORY)[2] for line in file if _SHARED_MEMORY in line}


class Team:
    """The processes of one peer, each with a connection over which it is told what to measure.

    Args:
      hosts: a network of two hosts, of which each has half of the ranks; None: all are on this one.
      number: of the team among those on these hosts.
    """

    def __init__(self, peer, ranks, installed, hosts=None, number=0):
        self.peer, self.ranks, self.versions, self.pids = peer, ranks, {}, []
        self._hosts, self._number = hosts, number
        self._installed = pathlib.Path(installed).resolve()
        self._processes, self._streams, self._paused, self._namespace = [], [], False, None
        self._port = None  # kept for the rank that will listen
        self._names_before = set(os.listdir(_SHARED_MEMORY))
        self._folder = tempfile.TemporaryDirectory(prefix="jhetcc-bench-")
        self._log = open(os.path.join(self._folder.name, "output"), "w+b")  # noqa: SIM115

    # -- birth and end
    def start(self):
        try:
            self._start()
        except (OSError, PeerError, ValueError) as why:
            self.close()
            raise PeerError(str(why)) from None

    def _start(self):
        environment = self._environment()
        self._namespace = CubicNamespace() if self.peer.cubic else None
        prefix = self._namespace.prefix if self._namespace else []
        address = os.path.join(self._folder.name, "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(self.ranks)
            for command in self._commands(address):
                self._processes.append(
                    subprocess.Popen(
                        [*prefix, *command], env=environment, stdin=subprocess.DEVNULL, stdout=self._log,
                        stderr=subprocess.STDOUT, start_new_session=True,
                    )
                )  # fmt: skip
            hellos = [self._accept(listener) for _ in range(self.ranks)]
        self.pids = [hello["pid"] for hello in hellos]
        self.versions = hellos[0]["versions"]
        if sorted(hello["rank"] for hello in hellos) != list(range(self.ranks)):
            raise PeerError(f"ranks {[hello['rank'] for hello in hellos]} came instead of 0 to {self.ranks - 1}")
        self._unlink_shared()

    def _unlink_shared(self):
        """What all members have mapped needs no name any more: without one, it is gone with the last of them."""
        if self.peer.ours:
            return
        shared = set.intersection(*map(_mapped_names, self.pids)) & set(os.listdir(_SHARED_MEMORY))
        for name in shared - self._names_before:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_SHARED_MEMORY + name)

    def _accept(self, listener):
        listener.settimeout(1)
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                connection.settimeout(_START_S)
                stream = connection.makefile("rw", encoding="utf-8")
                connection.settimeout(_ANSWER_S)
                self._streams.append(stream)
                return self._read(stream)
            if any(process.poll() not in (None, 0) for process in self._processes):
                raise PeerError(f"a process ended while starting: {self._last_words()}")
        raise PeerError(f"its processes did not come within {_START_S} s: {self._last_words()}")

    def _last_words(self):
        self._log.flush()
        with open(self._log.name, "rb") as file:
            lines = file.read().decode(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:]) or "no output"

    def close(self):
        self.resume()
        for stream in self._streams:
            with contextlib.suppress(OSError):
                stream.close()
        deadline = time.monotonic() + _END_S
        for process in self._processes:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for held in (self._namespace, self._port):
            if held:
                held.close()
        self._streams, self._processes, self.pids, self._namespace, self._port = [], [], [], None, None
        self._log.close()
        self._folder.cleanup()

    # -- how it is started
    def _environment(self):
        peer, crowded = self.peer, self.ranks > len(os.sched_getaffinity(0))
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", **peer.environment}
        environment.pop("JHETCC_COORDINATOR", None)
        if peer.place:
            environment.pop("PYTHONPATH", None)
        if peer.kind == "oneccl":
            # The defaults spin against the rank itself. A rank a core: no helper thread; more ranks than cores: one that yields.
            offload = {"CCL_WORKER_OFFLOAD": "1", "CCL_YIELD": "sched_yield", "CCL_SPIN_COUNT": "1"}
            environment |= offload if crowded else {"CCL_WORKER_OFFLOAD": "0"}
            environment |= {"CCL_LOG_LEVEL": "error", "CCL_ATL_SHM": "0" if peer.name == "oneccl-tcp" else "1"}
        if self._hosts:
            environment |= {"FI_PROVIDER": "tcp", "MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi"}
            environment |= {"CCL_MNIC": "global", "CCL_MNIC_NAME": "to0,to1"}
            environment |= {"JHETCC_SECRET": secrets.token_hex(32)}
            environment |= {"JHETCC_SPIN_US": "2"}  # who spins keeps a rank of the other host from running
        if peer.name == "impi":
            root = self._installed / "impi"
            providers = next(root.glob("**/libtcp-fi.so"), None)
            environment |= {"I_MPI_ROOT": str(root), "I_MPI_FABRICS": "shm"}
            environment |= {"FI_PROVIDER_PATH": str(providers.parent)} if providers else {}
        return environment

    def _commands(self, address):
        peer, member = self.peer, str(_HERE / "member.py")
        settings = []
        if peer.needs_coordinator and self._hosts:
            settings.append(f"coordinator={self._hosts.address(0)}:{_HOST_PORT + self._number}")
        elif peer.needs_coordinator:
            self._port = HeldPort()
            settings.append(f"coordinator={self._port.address}")
        for name in peer.libraries:
            if not self._folder_of(name).exists():
                raise PeerError(f"{name} is not below {self._installed.name}: python bench/setup_peers.py says why")
        if peer.libraries:
            settings.append("libraries=" + ",".join(f"{name}:{self._folder_of(name)}" for name in peer.libraries))
        if peer.place and not (self._installed / peer.place / ".complete").exists():
            raise PeerError(f"it is not installed below {self._installed.name}: python bench/setup_peers.py says why")
        if peer.kind == "oneccl":
            settings += [f"folder={self._installed / 'oneccl'}", f"exchange={self._folder.name}/identifier"]
        if peer.kind in ("mpi", "mpi4jax"):
            home = self._installed / ("mpich" if peer.kind == "mpi4jax" else peer.place) / "bin"
            python, ranks = str(home / "python"), str(self.ranks)
            rank = [*_tied("any", python), python, member, address, peer.kind, "mpi", ranks]
            if not self._hosts:
                return [[*_tied(os.getpid()), str(home / "mpiexec"), "-n", ranks, *rank]]
            halves = [["-n", str(self.ranks // 2), *self._on_host(host), *rank] for host in (0, 1)]
            return [[*_tied(os.getpid()), str(home / "mpiexec"), *halves[0], ":", *halves[1]]]
        return [
            [*_tied(os.getpid()), *self._on_host(rank * 2 // self.ranks), sys.executable, member, address, peer.kind,
             str(rank), str(self.ranks), *settings]
            for rank in range(self.ranks)
        ]  # fmt: skip

    def _on_host(self, host):
        """What to put in front of a command that shall run there."""
        if not self._hosts:
            return []
        nsenter, *where = self._hosts.prefix(host)
        inside = ["unshare", "--uts", "sh", "-c", _AS_HOST, "sh", self._hosts.address(host), f"to{1 - host}"]
        return [shutil.which(nsenter), *where, *inside]

    def _folder_of(self, library):
        return self._installed / {"oneccl": "oneccl", "mpi": "mpich/lib"}[library]

    # -- the conversation
    def _read(self, stream):
        try:
            line = stream.readline()
        except TimeoutError:
            raise PeerError(f"no answer within {_ANSWER_S} s") from None
        if not line:
            raise PeerError(f"a process ended: {self._last_words()}")
        answer = json.loads(line)
        if "failed" in answer:
            raise PeerError(answer["failed"].strip().splitlines()[-1])
        return answer

    def _ask(self, message):
        self.resume()
        try:
            for stream in self._streams:
                stream.write(json.dumps(message) + "\n")
                stream.flush()
            answers = [self._read(stream) for stream in self._streams]
            self._unlink_shared()
        except OSError as why:
            raise PeerError(f"a process ended: {why}; {self._last_words()}") from None
        self.pause()
        return answers

    def forget(self):
        """Lets the processes give back the buffers of the last case."""
        self._ask({"do": "forget"})

    def measure(self, case, mode, calls, check):
        """One batch of calls on all ranks: an answer a rank, or a text that says why this peer has no such operation."""
        answers = self._ask({"do": "measure", "case": case.as_dict(), "mode": mode, "calls": calls, "check": check})
        refused = [answer["unsupported"] for answer in answers if "unsupported" in answer]
        return refused[0] if refused else answers

    def pause(self):
        """oneCCL's helper threads never rest: stopped, they take nothing from the others."""
        if self.peer.kind == "oneccl" and not self._paused:
            self._signal(signal.SIGSTOP)
            self._paused = True

    def resume(self):
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    def _signal(self, number):
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
