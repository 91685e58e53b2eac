# SPDX-License-Identifier: Apache-2.0
"""A communicator: an ordered set of ranks that run collectives together; its name is an axis name."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from jhetcc import _core, errors
from jhetcc.errors import AbortedError, BadArgumentError, Error
from jhetcc.planner import Layout, explain, nics_of, shapes
from jhetcc.schedule import Operation
from jhetcc.topology import Cluster, Topology, form_clusters
from jhetcc.world import flight, machines
from jhetcc.world.raw import RawCalls

if TYPE_CHECKING:
    from jhetcc.world.world import World

__all__ = ["Communicator"]


class Communicator(RawCalls):
    """Made by ``jhetcc.init()``, ``split()`` and ``shrink()``; never directly.

    Attributes:
      name: the axis name operations use.
      size: number of ranks.
      epoch: 0 at birth; grows by one with every ``shrink()``.
      world_ranks: world rank of each index.
      local_ranks: indexes of this process's ranks, ascending.
      devices: the JAX devices of those ranks, same order; empty where the world was made without JAX.
      island_devices: those of all its ranks in this process's island, which has several processes under ``jax.distributed``.
      island_sizes: how many of its ranks each island has, islands in the order of their lowest ranks.
      clusters: who of them one vendor's collective library can join, in the order of their lowest ranks; numbered within.
    """

    def __init__(self, world: World, name: str, world_ranks: tuple[int, ...], epoch: int = 0):
        self.name = name
        self.world_ranks = world_ranks
        self.size = len(world_ranks)
        self.epoch = epoch
        self._world = world
        self._ready = {}
        local = {world.first_rank + k: device for k, device in enumerate(world.devices)}
        owned = range(world.first_rank, world.first_rank + world.local_count)
        self.local_ranks = tuple(index for index, rank in enumerate(world_ranks) if rank in owned)
        self.devices = tuple(local[world_ranks[index]] for index in self.local_ranks if world_ranks[index] in local)
        own = {world.island_of(world_ranks[index]) for index in self.local_ranks}
        self.island_devices = tuple(world.device_of(rank) for rank in world_ranks if world.island_of(rank) in own)
        self.island_sizes = tuple(Counter(world.island_of(rank) for rank in world_ranks).values())
        self.clusters: tuple[Cluster, ...] = form_clusters([world.identity_of(rank) for rank in world_ranks])
        self.layout = self.laid_out()

    def __repr__(self) -> str:
        return f"Communicator({self.name!r}, size={self.size}, local_ranks={self.local_ranks}, epoch={self.epoch})"

    def laid_out(self) -> Layout:
        """What its plans are made by, as far as the world knows it now."""
        world = self._world
        hosts = tuple(world.host_of(rank) for rank in self.world_ranks)
        processes = [world.process_of(rank) for rank in self.world_ranks]
        nics = nics_of(machines.of_ranks(world.machines, self), world.profile) if world.machines else ()
        shaped = shapes(self.clusters, world.libraries, processes=processes, trusted=self.epoch == 0, nics=nics)
        return Layout(hosts, world.profile, shaped)

    @property
    def rank(self) -> int:
        """This process's index.

        Raises:
          BadArgumentError: the process owns several ranks (use ``local_ranks`` or ``jhetcc.axis_index``), or none.
        """
        if len(self.local_ranks) != 1:
            raise BadArgumentError(
                f"this process owns {len(self.local_ranks)} ranks of {self.name!r} {self.local_ranks}: use comm.local_ranks, or "
                "jhetcc.axis_index() inside shard_map",
                code="bad_argument",
            )
        return self.local_ranks[0]

    # -- what the operations layer needs
    def prepare(self, text: str) -> None:
        """Plans an operation before it is asked for; called at lowering.

        Raises:
          BadArgumentError: the text does not fit this communicator.
        """
        try:
            self._world.planner.warm(self.name, self.epoch, text)
        except ValueError as why:
            raise BadArgumentError(str(why), code="bad_argument") from None

    def _raw_call(self, text: str) -> Any:
        """The core's blocking call of an operation, planned."""
        self._world.require_open()
        self.prepare(text)
        return _core.raw_call(self._world.process, self.name, text)

    # -- health
    @property
    def has_ended(self) -> bool:
        """Whether an error ended this communicator; ``check()`` raises it."""
        return self._world.is_open and self._world.process.verdict(self.name) is not None

    def check(self) -> None:
        """Raises the error that ended this communicator; returns where it is well.

        Raises:
          Error: a ``PeerLostError``, ``MismatchError``, ``OperationTimeoutError`` or ``AbortedError``, the same on all ranks.
        """
        self._world.require_open()
        error = self._verdict_error()
        if error is not None:
            raise error

    def _verdict_error(self) -> Error | None:
        verdict = self._world.process.verdict(self.name)
        if verdict is None:
            return None
        return errors.make(
            verdict["kind"],
            verdict["message"],
            code=verdict["code"],
            scope=verdict["scope"],
            ranks=tuple(verdict["ranks"]),
        )

    def abort(self, reason: str = "abort() was called") -> None:
        """Ends every operation of this communicator on all ranks with ``AbortedError``; returns at once.

        Args:
          reason: told to everybody.
        """
        self._world.require_open()
        self._world.process.abort(self.name, reason)

    def shrink(self, timeout: float | None = None) -> Communicator:
        """Goes on without lost ranks, after an error: all survivors call it.

        Args:
          timeout: seconds to wait for the other survivors; default ``operation_timeout``, at most 60.

        Returns:
          A communicator of the same name with the survivors in their old order and the next epoch. This one is closed.

        Raises:
          PeerLostError: this rank was declared lost, or the survivors did not agree in time.
        """
        self._world.require_open()
        if self._world.process.verdict(self.name) is None:
            self.abort("shrink() was called on a communicator that is well")
        limit = timeout if timeout is not None else min(self._world.options.operation_timeout, 60.0)
        members, epoch = self._world.process.shrink(self.name, limit)
        return self._world.replace(self, tuple(self.world_ranks[m] for m in members), epoch)

    def split(self, color: Any, key: Any = None, name: str | None = None) -> Communicator | None:
        """Divides the ranks by color into new communicators. A collective call: every rank takes part.

        Args:
          color: int, or one int for each local rank; -1 for ranks that join none.
          key: int or one int for each local rank; orders the ranks of a color, ties by old index. Default: old order.
          name: axis name of the new communicators; the same on all ranks. Default ``"<parent>/<color>"``.

        Returns:
          The communicator of this process's ranks, or None when all of them gave -1.

        Raises:
          BadArgumentError: local ranks of this process gave different colors other than -1: call split() once for each.

        Example:
          >>> import jhetcc
          >>> comm = jhetcc.init(num_processes=1, devices=1)
          >>> comm.split(0, name="all").size
          1
          >>> comm.close()
        """
        count = len(self.local_ranks)
        colors, keys = _per_rank(color, count, "color"), _per_rank(0 if key is None else key, count, "key")
        kept = {one for one in colors if one != -1}
        if len(kept) > 1:
            raise BadArgumentError(
                f"split: the local ranks of this process gave colors {colors}; a process can join one new communicator a call. Call "
                "split() once for each color, with -1 for the ranks that stay out",
                code="bad_argument",
            )
        mine = [np.array([c, k], np.int64) for c, k in zip(colors, keys, strict=True)]
        table = self.all_gather(mine)[0] if count > 1 else self.all_gather(mine[0])
        if not kept:
            return None
        chosen = kept.pop()
        members = sorted((int(table[i, 1]), i) for i in range(self.size) if int(table[i, 0]) == chosen)
        return self._world.create(
            name or f"{self.name}/{chosen}", tuple(self.world_ranks[i] for _, i in members), self.epoch
        )

    def close(self) -> None:
        """Ends this communicator here. Closing ``"world"`` closes the whole world; it never waits for other ranks' calls."""
        self._world.close_communicator(self)

    # -- insight
    def status(self) -> dict[str, Any]:
        """What this process is doing: operations, waits, paths, counters. Cheap, callable from any thread.

        Returns:
          A dictionary: ``name``, ``size`` and ``epoch`` of this communicator; ``ended``, the text of the error that ended it, or None;
          ``counters`` of this process by name; and ``ranks``, a dictionary for each of its ranks, over all communicators:

          * ``rank``: in the world.
          * ``seconds_in_operations``: how long at least one operation of this rank was in flight since ``init()``, from its start to its
            end, whoever waited for it: a call with plain buffers or a compiled program. It contains the time that other ranks were late.
          * ``operation``, ``communicator``, ``seconds``, ``waiting_for``: the operation in flight, since when, and for which world
            ranks it waits; None, None, 0.0 and [] where there is none.
          * ``stale_frames``: messages that came too late to matter.
          * ``paths``: by world rank of the peer, how the two are connected, in a line.
          * ``rails``: by world rank of the peer, a list of the paths between the two, by number. Each is a dictionary: ``path``, its
            number; ``tier``, 0 for paths used together and 1 for spare ones; ``state``, one of healthy, settling (back, not yet used),
            lost and closed (by the peer); ``local`` and ``remote``, the NICs; ``bytes_per_second``, as measured from its traffic;
            ``sent_bytes`` and ``received_bytes`` of payloads longer than 16 KiB, ``resent_bytes``, what went over it because another path
            was lost; ``losses``, how often it was lost; ``last_event`` and ``seconds_since`` it. Where there is one path only, nothing
            goes over it again, ``sent_bytes`` are all that the peer's host confirmed, ``bytes_per_second`` is their mean while any were
            under way, and what is not known is None: ``received_bytes``, the rate at first, and over shared memory all of these.

        Example:
          >>> import jhetcc, numpy as np
          >>> comm = jhetcc.init(num_processes=1, devices=1)
          >>> before = comm.status()["ranks"][0]["seconds_in_operations"]
          >>> _ = comm.all_reduce(np.ones(1000))
          >>> comm.status()["ranks"][0]["seconds_in_operations"] > before
          True
          >>> comm.close()
        """
        self._world.require_open()
        error = self._verdict_error()
        return {
            "name": self.name,
            "size": self.size,
            "epoch": self.epoch,
            "ended": None if error is None else str(error),
            "ranks": self._world.process.status(),
            "counters": dict(self._world.process.counters()),
        }

    def record(self, directory: str) -> str:
        """Writes what this process's flight recorder holds: the last few thousand events, of all its communicators.

        ``jhetcc trace FILE...`` makes one timeline of the files of several processes: operations, and the steps of those in chunks.

        Args:
          directory: made where it is missing.

        Returns:
          The file: JSON with reason, clock, ranks (as in ``status()``), counters and events.

        Raises:
          OSError: it cannot be written.

        Example:
          >>> import jhetcc, numpy as np, tempfile
          >>> comm = jhetcc.init(num_processes=1, devices=1)
          >>> _ = comm.all_reduce(np.ones(1000))
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     comm.record(folder).endswith(".json")
          True
          >>> comm.close()
        """
        self._world.require_open()
        return flight.dump(self._world.process, directory, "asked for", self._world.first_rank)

    def explain(self, operation: str) -> str:
        """Why an operation runs as it does: candidates with predicted times, the choice, its stages, border ranks and
        bytes between clusters or hosts, what is bounced through host memory, and the paths of this process.

        Args:
          operation: text as in errors, e.g. ``"psum(f32[1024])"``.

        Raises:
          BadArgumentError: the text does not fit this communicator.

        Example:
          >>> import jhetcc
          >>> comm = jhetcc.init(num_processes=1, devices=2)
          >>> print(comm.explain("psum(f32[1024])").splitlines()[0])
          psum(f32[1024]) on 'world' (2 ranks on 1 host)
          >>> comm.close()
        """
        try:
            plan = self._world.planner.plan(operation, self.layout)
            report = explain(
                Operation.parse(operation), self.layout, algorithm=plan.algorithm, chunk_bytes=plan.chunk_bytes
            )
        except ValueError as why:
            raise BadArgumentError(str(why), code="bad_argument") from None
        hosts = len(set(self.layout.hosts))
        lines = [f"{operation} on {self.name!r} ({_counted(self.size, 'rank')} on {_counted(hosts, 'host')})"]
        lines += report.text().splitlines()
        for rank in self._world.process.status():
            lines += [f"  path {text}" for _, text in sorted(rank["paths"].items())]
        return "\n".join(lines)

    def topology(self) -> Topology:
        """The job's machines, with this communicator's ranks and clusters on them. A collective call: every rank takes part.

        One process of each host looks at it, as ``jhetcc topo`` does, and all are told.

        Returns:
          A topology, equal on all ranks. A host has a cpu device for every rank of the world that was born there, ``cpu0``, ``cpu1``, ...
          by world rank; one without a rank of this communicator takes no part.

        Raises:
          PeerLostError, OperationTimeoutError, MismatchError, AbortedError: as any collective call; see ``docs/errors.md``.

        Example:
          >>> import jhetcc
          >>> comm = jhetcc.init(num_processes=1, devices=2)
          >>> found = comm.topology()
          >>> [rank.device for rank in found.ranks], [cluster.ranks for cluster in found.clusters]
          (['cpu0', 'cpu1'], [(0, 1)])
          >>> picture = jhetcc.topology.svg(found)
          >>> comm.close()
        """
        self._world.require_open()
        return machines.survey(self, self._world)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _per_rank(value: Any, count: int, what: str) -> list[int]:
    values = [int(value)] * count if np.ndim(value) == 0 else [int(one) for one in value]
    if len(values) != count:
        raise BadArgumentError(f"split: {len(values)} {what}s for {count} local ranks", code="bad_argument")
    return values


def closed_error(name: str) -> AbortedError:
    return AbortedError(f"communicator {name!r} was closed", code="closed", scope="communicator")
