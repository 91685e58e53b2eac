# SPDX-License-Identifier: Apache-2.0
"""The world of one ``init()``: its process, members, communicators and planner; and ``init()`` itself."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jhetcc import _core, config
from jhetcc.errors import AbortedError, BadArgumentError, Error, UnavailableError
from jhetcc.planner import Capabilities, Layout, Profile
from jhetcc.topology import Identity, Topology, form_clusters
from jhetcc.world import calibration, flight, interrupt, library, machines, state
from jhetcc.world import secret as job_secret
from jhetcc.world.communicator import Communicator
from jhetcc.world.detect import Launch, detect
from jhetcc.world.devices import devices_by_id, local_devices, local_ranks_of, ordinal
from jhetcc.world.islands import islands_of
from jhetcc.world.logs import LogPump
from jhetcc.world.members import Local, Member, describe, host_identity
from jhetcc.world.planning import Planner
from jhetcc.world.rendezvous import Rendezvous
from jhetcc.world.report import Answering, status
from jhetcc.world.system import typed

__all__ = ["World", "init"]

_log = logging.getLogger("jhetcc")
_had_world = False
_init_lock = threading.Lock()


class World:
    """Everything between ``init()`` and ``close()``. One at a time."""

    def __init__(self, options: config.Options, launch: Launch, devices: tuple[Any, ...], own: Local):
        self.options = options
        self.launch = launch
        self.devices = devices
        self.own = own
        self.local_count = own.ranks
        self.first_rank = 0
        self.members: list[Member] = []
        self.process: Any = None
        self.planner: Any = None
        self.profile = Profile()
        self.machines: Topology | None = None  # what plans know of them
        self.libraries: list[Capabilities] = []
        self.rendezvous: Rendezvous | None = None
        self._islands: tuple[int, ...] = ()
        self._processes: tuple[int, ...] = ()
        self._hosts: tuple[int, ...] = ()
        self._places: tuple[str, ...] = ()
        self._identities: tuple[Identity, ...] = ()
        self._pid = os.getpid()
        self.is_open = False
        self._logs: LogPump | None = None

    # -- birth
    def start(self, secret: bytes | None, timeout: float) -> None:
        """Meets the other processes and makes ``"world"`` and ``"islands"``."""
        if self.launch.num_processes > 1:
            self.rendezvous = Rendezvous(self.options, self.launch, secret, timeout)
        try:
            with typed("init()"):  # the others hear the typed one, too
                self._meet()
        except BaseException as why:
            told = self.rendezvous.fail(why) if self.rendezvous is not None else why
            self._end(0.0)
            if told is why:
                raise
            raise told from None

    def _meet(self) -> None:
        meeting = self.rendezvous
        if not meeting:
            library.check_path(self.options)
        self.members = (
            meeting.gather(self.own) if meeting else [replace(describe(self.own, self.options), library="none")]
        )
        own_library = None
        if meeting:
            self.members, self.libraries, own_library = meeting.load_libraries(self.members)
        first, rank_process = [], []
        for member in self.members:
            first.append(len(rank_process))
            rank_process += [member.process_id] * member.ranks
        self.first_rank = first[self.launch.process_id]
        keys = list(dict.fromkeys(member.host_key for member in self.members))
        self._processes = tuple(rank_process)
        island_of_process = islands_of(self.members)
        self._islands = tuple(island_of_process[p] for p in rank_process)
        self._hosts = tuple(keys.index(self.members[p].host_key) for p in rank_process)
        self._places = tuple(self.members[p].place for p in rank_process)
        self._identities = tuple(self.members[p].identity for p in rank_process)
        clusters = form_clusters(
            self._identities
        )  # a label that joins what no library can join is refused, on all alike
        mine = list(range(self.first_rank, self.first_rank + self.local_count))
        ordinals = [ordinal(device) for device in self.devices] or list(range(self.local_count))
        self.process = _core.Process(self._core_options(), mine, ordinals)
        if meeting:
            meeting.connect(self.process, self.members, first)
        else:
            for a in range(self.local_count):
                for b in range(a + 1, self.local_count):
                    self.process.add_local_pair(a, b)
        answering = Answering(status) if meeting else None
        self._logs = LogPump(answering, self._aborts, self._dump) if self.options.trace_dir else LogPump(answering)
        self.process.start()
        if meeting and own_library is not None:
            mine_of = next(cluster.ranks for cluster in clusters if self.first_rank in cluster.ranks)
            if len(mine_of) > self.local_count:
                meeting.open_library(self.process, own_library, mine_of, self.first_rank)
        self.planner = Planner(self.process, self.options, self._layout_of)
        self.is_open = True
        state.set_current(self)
        self.create("world", tuple(range(len(rank_process))), 0)
        self.create("islands", tuple(self._islands.index(island) for island in sorted(set(self._islands))), 0)
        if meeting:
            meeting.finish()
        calibration.adopt(self, calibration.settle(self), machines.learn(self))

    def _core_options(self) -> dict[str, float]:
        options = self.options
        crowded = library.is_crowded(self.members, host_identity())  # whoever spins keeps a peer from running
        spin = options.spin_us * 1e-6 if options.spin_us is not None else (2e-6 if crowded else 50e-6)
        names = ("operation_timeout", "warn_after", "abort_gather", "abort_confirm")
        values = {name: float(getattr(options, name)) for name in names}
        return {name: value if math.isfinite(value) else 1e10 for name, value in values.items()} | {
            "spin": spin,
            "help": 200e-6 if self.local_count == 1 else 50e-6,
        }

    def _aborts(self) -> int:
        return dict(self.process.counters())["aborts"]

    def _dump(self) -> None:
        try:
            path = flight.dump(self.process, str(self.options.trace_dir), "a communicator ended", self.first_rank)
        except OSError as why:
            _log.warning("cannot write the flight recorder to JHETCC_TRACE_DIR: %s", why)
        else:
            _log.warning("flight recorder written to %s", path)

    # -- communicators
    def create(self, name: str, world_ranks: tuple[int, ...], epoch: int) -> Communicator:
        places = [self._places[rank] for rank in world_ranks]
        self.process.create_communicator(name, epoch, list(world_ranks), places)
        communicator = Communicator(self, name, world_ranks, epoch)
        state.register(communicator)
        return communicator

    def replace(self, old: Communicator, world_ranks: tuple[int, ...], epoch: int) -> Communicator:
        """The shrunk successor of a communicator; programs traced for the old size are forgotten."""
        _drain(old.devices)
        self.process.destroy_communicator(old.name)
        state.forget(old.name)
        _forget_traces()
        if old.name == "world":  # islands shrink with the world: each goes on with its first surviving rank
            self.process.destroy_communicator("islands")
            first: dict[int, int] = {}
            for rank in world_ranks:
                first.setdefault(self._islands[rank], rank)
            self.create("islands", tuple(first.values()), epoch)
        made = self.create(old.name, world_ranks, epoch)
        if self.rendezvous is not None:
            self.rendezvous.leave_behind(epoch, self._processes)
        return made

    def close_communicator(self, communicator: Communicator) -> None:
        if communicator.name == "world":
            self.close()
        elif self.is_open:
            self.process.destroy_communicator(communicator.name)
            state.forget(communicator.name)

    def island_of(self, rank: int) -> int:
        return self._islands[rank]

    def process_of(self, rank: int) -> int:
        return self._processes[rank]

    def device_of(self, rank: int) -> Any:
        """The JAX device of a rank of this process's island; None elsewhere, or without JAX."""
        member = self.members[self._processes[rank]]
        if not member.device_ids or self._islands[rank] != self._islands[self.first_rank]:
            return None
        if member.process_id == self.launch.process_id:
            return self.devices[rank - self.first_rank]
        place = rank - self._processes.index(member.process_id)
        return devices_by_id()[member.device_ids[place]]

    def host_of(self, rank: int) -> int:
        return self._hosts[rank]

    def identity_of(self, rank: int) -> Identity:
        return self._identities[rank]

    def _layout_of(self, name: str, epoch: int) -> tuple[Layout, tuple[int, ...]] | None:
        with contextlib.suppress(Error):
            communicator = state.communicator(name)
            if communicator.epoch == epoch:
                return communicator.layout, communicator.local_ranks
        return None

    def require_open(self) -> None:
        """Raises where the world was closed, or belongs to the parent of a fork."""
        if os.getpid() != self._pid:
            raise UnavailableError(
                f"process {os.getpid()} is a fork of {self._pid}, where jhetcc.init() was called: connections and threads do not "
                "survive a fork. Call init() after forking, or use the spawn start method",
                code="forked",
                scope="process",
            )
        if not self.is_open:
            raise AbortedError("jhetcc was closed in this process; call init() again", code="closed", scope="process")

    def close(self, *, at_exit: bool = False) -> None:
        """Says goodbye and ends every thread, within ``close_timeout``. Again is harmless.

        Args:
          at_exit: the interpreter is going down: a daemon thread that was in the core stays there, and nobody waits for it.
        """
        if self.is_open and os.getpid() == self._pid:
            self._end(self.options.close_timeout, at_exit)

    def _end(self, timeout: float, at_exit: bool = False) -> None:
        """Undoes what was made so far; after a failed ``init()`` too, so that another one can follow."""
        self.is_open = False
        if state.current() is self:
            _core.set_ffi_process(None)
            state.set_current(None)
        if self.process is not None:
            self.process.close(timeout)
        if self.planner is not None:
            self.planner.close(wait=not at_exit)
        if self.rendezvous is not None:
            self.rendezvous.close()
        if self._logs is not None:
            self._logs.close()
            self._logs = None  # it knows us: what the world holds goes with its last user, not with a later collection


def _drain(devices: tuple[Any, ...]) -> None:
    """Lets programs dispatched before a shrink fail on the old communicator: a device runs its programs in order."""
    if devices:
        import jax

        for device in devices:
            jax.block_until_ready(jax.jit(lambda x: x + 1)(jax.device_put(0, device)))


def _forget_traces() -> None:
    """Programs traced for another world must be traced again."""
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


def init(
    coordinator: str | None = None,
    *,
    process_id: int | None = None,
    num_processes: int | None = None,
    devices: int | Sequence[Any] | None = None,
    secret: str | None = None,
    timeout: float | None = None,
) -> Communicator:
    """Joins the job and returns its communicator ``"world"``.

    Who this process is comes from the arguments, from ``JHETCC_*`` variables, or from the launcher (SLURM, Open MPI, MPICH, torchrun,
    JobSet, ``python -m jhetcc launch``); without any of these the process is a world of its own and needs no network. Ranks are
    numbered by process, then by local device.

    Args:
      coordinator: ``host:port`` where process 0 listens.
      process_id: number of this process, from 0.
      num_processes: how many processes the job has.
      devices: the local JAX devices that take part, or a number of ranks for raw calls without JAX. Default: all local cpu devices, or
        one rank where JAX is not installed.
      secret: the job's secret; see ``jhetcc secret`` for the other ways in.
      timeout: seconds until all processes must be here; default ``init_timeout``.

    Returns:
      The communicator of all ranks; ``"islands"`` (one rank a process) exists beside it.

    Raises:
      BadArgumentError: contradictory arguments, settings that differ between processes, a number taken twice.
      OperationTimeoutError: not everybody came; names who.
      UnavailableError: a platform or JAX version this build cannot serve.

    Example:
      >>> import jhetcc
      >>> comm = jhetcc.init(num_processes=1, devices=1)
      >>> comm.size, comm.rank
      (1, 0)
      >>> comm.close()
    """
    global _had_world
    with _init_lock, typed("init()"):
        if state.current() is not None:
            raise BadArgumentError(
                "init() was called already in this process; close() the world first, or use the communicator it returned",
                code="already_initialized",
                scope="process",
            )
        overrides = {"init_timeout": timeout} if timeout is not None else None
        options = config.read(os.environ, overrides)
        _core.set_log_spec(options.log)
        try:
            _core.set_simd(options.simd or "auto")
        except ValueError as why:
            raise UnavailableError(f"JHETCC_SIMD: {why}", code="unavailable", scope="process") from None
        launch = detect(os.environ, coordinator=coordinator, process_id=process_id, num_processes=num_processes)
        _log.info("%s", launch.source)
        found, count, platform = local_devices(devices)
        key = None
        if launch.num_processes > 1:
            key = job_secret.find(options, launch.coordinator, secret)
        if _had_world:
            _forget_traces()
        _had_world = True
        world = World(options, launch, found, local_ranks_of(found, count, platform))
        begin = time.monotonic()
        world.start(key, options.init_timeout)
        if found:
            from jhetcc import registration

            try:
                registration.register()
                _core.set_ffi_process(world.process)
                interrupt.watch()
            except BaseException:  # no world that init() did not give
                world.close()
                raise
        atexit.unregister(_close_at_exit)
        atexit.register(_close_at_exit)
        _log.info("world of %d ranks in %.2f s", len(world._hosts), time.monotonic() - begin)
        return state.communicator("world")


def _close_at_exit() -> None:
    _core.begin_exit()  # only daemon threads are left beside this one
    world = state.current()
    if world is not None:
        _log.debug("the world was still open at exit; closing it")
        world.close(at_exit=True)
