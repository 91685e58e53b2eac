# SPDX-License-Identifier: Apache-2.0
"""How the processes of a job find each other: one table, agreed settings, one endpoint per pair of ranks, then go."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from jhetcc import _core, config
from jhetcc.errors import BadArgumentError, Error, OperationTimeoutError, PeerLostError, ResourceError
from jhetcc.planner import Capabilities
from jhetcc.topology.values import spans
from jhetcc.world import library, state
from jhetcc.world.connecting import Connections
from jhetcc.world.detect import Launch, refuse_loopback, split_address
from jhetcc.world.members import Local, Member, describe

__all__ = ["Rendezvous"]

_log = logging.getLogger("jhetcc")
_COUNTDOWN_SECONDS = 5.0
_POLL_SECONDS = 0.02
_CALL_SECONDS = 10.0
_LIMITS_DIFFER_SECONDS = 1.0
_GO_ON_SECONDS = 2.0
_ASK_SECONDS = 1.0


class _EarlierWorldError(BadArgumentError):
    """The coordinator still serves a world that this process, or the one it replaces, was in: it will close soon, or never."""


class Rendezvous:
    """Gathers the job of one ``init()``.

    Args:
      options: this process's settings.
      launch: its number and the coordinator.
      secret: the job's secret, or None on loopback.
      timeout: seconds for everything.
    """

    def __init__(self, options: config.Options, launch: Launch, secret: bytes | None, timeout: float):
        self.options = options
        self.launch = launch
        self._coordinator = launch.coordinator or ""  # several processes always have one
        self.incarnation = secrets.randbits(63)
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._server: Any = None
        self._client: Any = None
        self._job = job = options.job or launch.job or "job"
        self._secret = _core.Secret(secret, options.allow_insecure)
        self._identity = _core.Identity(job, launch.process_id, self.incarnation)
        self._encryption = _core.Encryption(self._secret, job) if secret is not None and options.tls != "off" else None
        self._connections: Any = None
        self._me: Member | None = None
        self._in_the_way: _EarlierWorldError | None = None
        self._has_finished = False
        self._has_failed = False

    def _left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    def _serve(self) -> None:
        """Process 0 listens; an address still held by the job's previous world is asked again until it is free."""
        while True:
            try:
                self._server = _core.StoreServer(self._coordinator, self._secret, self._identity, self._encryption)
                return
            except Error as error:
                if not (isinstance(error, ResourceError) and error.code == "listen"):
                    raise
                if self._left() <= 0:
                    raise self._occupied(error) from None
                time.sleep(_POLL_SECONDS)

    def _occupied(self, error: Error) -> Error:
        """The error of an address that cannot be listened on, with the job that has it, where that is one of ours."""
        try:
            _core.StoreClient(self._coordinator, self._secret, self._identity, self._encryption, _ASK_SECONDS)
        except Error as who:
            if isinstance(who, OperationTimeoutError):  # nobody there speaks
                return error
            owner = f"asked who it is, that process answers: {who}"
        else:
            owner = f"it is the coordinator of another world of this job, {self._job!r}"
        return type(error)(f"{error}; {owner}", code=error.code, scope="process")

    def gather(self, own: Local) -> list[Member]:
        """Waits until every process has said who it is.

        Args:
          own: what this process brings.

        Returns:
          The members in order of their process numbers.

        Raises:
          OperationTimeoutError: names who is missing, and the setting.
          BadArgumentError: a number taken twice, settings that differ, a coordinator others cannot reach.
        """
        refuse_loopback(self._coordinator, self.launch.hosts)
        if self.options.interface:  # a wrong one is told before anybody is waited for
            _core.choose_nics(self.options.interface, "127.0.0.1")
        if self.launch.process_id == 0:
            self._serve()
        next_word = time.monotonic() + _COUNTDOWN_SECONDS
        while True:
            try:
                return self._gather_once(own)
            except _EarlierWorldError as error:
                self._in_the_way = error
                if self._left() <= 0:
                    raise
                if time.monotonic() >= next_word:
                    next_word += _COUNTDOWN_SECONDS
                    _log.warning(
                        "waiting until the earlier world of this coordinator is closed (%.0f s left): %s",
                        self._left(),
                        error,
                    )
                time.sleep(2 * _POLL_SECONDS)
            except PeerLostError as error:
                # The store of the previous world closed under us; the new one is about to listen.
                if self._left() <= 0 or self.launch.process_id == 0 or error.code == "init_failed":
                    raise
                _log.debug("asking the coordinator again: %s", error)
                time.sleep(_POLL_SECONDS)

    def _gather_once(self, own: Local) -> list[Member]:
        launch = self.launch
        try:
            self._client = _core.StoreClient(
                self._coordinator, self._secret, self._identity, self._encryption, self._left()
            )
        except OperationTimeoutError as error:
            if self._in_the_way is not None:  # this attempt had no time left
                raise self._in_the_way from None
            raise OperationTimeoutError(
                f"process {launch.process_id} of {launch.num_processes} found no coordinator at {launch.coordinator} within "
                f"init_timeout = {self._timeout:g} s: {error}. Is process 0 started, and is this its address? ({launch.source})",
                code="init_timeout",
                scope="process",
            ) from None
        me = self._me = self._me or self._describe(own)
        taken = self._client.set_if_absent(f"process/{launch.process_id}", json.dumps(asdict(me)), _CALL_SECONDS)
        if taken is not None:
            other = Member.read(taken)
            is_own = (other.host_key, other.pid) == (me.host_key, me.pid)
            raise (_EarlierWorldError if is_own or self._is_over() else BadArgumentError)(
                f"process number {launch.process_id} is taken by {other.place} in the job at {launch.coordinator}: two processes were "
                f"given the same number, or two jobs the same coordinator. This is {me.place}; {launch.source}",
                code="duplicate_process",
                scope="process",
            )
        self._leave_word(me)
        self._wait_for("process", "never connected")
        members = [Member.read(self._get(f"process/{k}")) for k in range(launch.num_processes)]
        self._leave_word(me, sum(member.ranks for member in members[: launch.process_id]))
        self._check(me, members)
        return members

    def _leave_word(self, me: Member, first_rank: int | None = None) -> None:
        """The store tells it where this process's connection ends before ``init()`` has: killed processes say nothing themselves."""
        ranks = [] if first_rank is None else list(range(first_rank, first_rank + me.ranks))
        name = f"process {me.process_id} on {me.place}" + (f" (rank {spans(tuple(ranks))})" if ranks else "")
        text = f"{name} ended before its init() had; its own output may say why"
        self._client.will("failed", json.dumps({"code": "peer_lost", "text": text, "ranks": ranks[:64]}), _CALL_SECONDS)

    def load_libraries(self, members: list[Member]) -> tuple[list[Member], list[Capabilities], Any]:
        """Loads the library of this process's cluster, and hears of the others'.

        Returns:
          The members with the versions of their libraries; what each of these libraries can do; and this process's own, or None.

        Raises:
          BadArgumentError, UnavailableError: the own library cannot be used.
          OperationTimeoutError: names who has not loaded his.
        """
        if all(member.library == "none" for member in members):
            return members, [], None
        me = members[self.launch.process_id]
        own = None
        if me.library != "none":
            own = library.load(self.options, me.ranks, library.is_crowded(members, me.host_key), self._secret)
        text = library.to_text(None if own is None else library.capabilities(own))
        self._client.set_if_absent(f"library/{me.process_id}", text, _CALL_SECONDS)
        self._wait_for("library", "did not load the library of its cluster", "have loaded the library of their cluster")
        found = [library.from_text(self._get(f"library/{member.process_id}")) for member in members]
        versions = [replace(m, version=c.version if c else "") for m, c in zip(members, found, strict=True)]
        return versions, list(dict.fromkeys(c for c in found if c is not None)), own

    def open_library(self, process: Any, own: Any, world_ranks: tuple[int, ...], world_rank: int) -> None:
        """Joins the cluster's processes in their library; all of them call it.

        Raises:
          OperationTimeoutError: they did not all come, or the library found no way between them.
          PeerLostError: ``init()`` failed in another process.
        """
        job = f"{self.launch.num_processes}"
        try:
            _core.use_library(process, own, list(world_ranks), world_rank, self._client, job, "failed", self._left())
        except PeerLostError as error:
            if error.code != "init_failed":
                raise
            raise _failed_elsewhere(json.loads(self._get("failed"))) from None

    def _raise_if_ended(self) -> None:
        """Raises what another process failed by, or that the store is gone."""
        ended = self._client.try_get("failed", _CALL_SECONDS)
        if ended is None:
            return
        told = json.loads(ended)
        if told["code"] == "init_timeout":
            text = f"init_timeout passed in another process while this one connected to the others: {told['text']}"
            raise OperationTimeoutError(text, code="init_timeout", scope="process")
        raise _failed_elsewhere(told)

    def _is_over(self) -> bool:
        """Whether nobody is gathering at this coordinator any more: its world is complete, or could not be made."""
        if self._client.try_get("failed", _CALL_SECONDS) is not None:
            return True
        return len(self._client.list("ready/", _CALL_SECONDS)) == self.launch.num_processes

    def _describe(self, own: Local) -> Member:
        local = split_address(self._client.local_address)[0]
        self._connections = Connections(self.options, self._secret, self._identity, self._encryption, local)
        return describe(
            own,
            self.options,
            process_id=self.launch.process_id,
            incarnation=self.incarnation,
            unix_address=self._connections.unix_address,
            nics=self._connections.nics,
        )

    def _get(self, key: str) -> str:
        value = self._client.try_get(key, _CALL_SECONDS)
        if value is None:
            raise PeerLostError(
                f"the coordinator at {self._coordinator} forgot {key}", code="store_gone", scope="process"
            )
        return value

    def _wait_for(self, what: str, failure: str, here: str = "here") -> None:
        """Until every process has set ``what/<number>``; says every few seconds who has not."""
        total = self.launch.num_processes
        next_word = time.monotonic() + _COUNTDOWN_SECONDS
        missing = list(range(total))
        while True:
            try:
                # Asked first: who failed had said that it is here before, and what it failed for may be ours to find, too.
                ended = self._client.try_get("failed", _CALL_SECONDS)
                names = self._client.list(f"{what}/", _CALL_SECONDS)
            except PeerLostError:
                if self._left() > _LIMITS_DIFFER_SECONDS:
                    raise
                raise self._late(missing, failure) from None  # process 0 gave up a moment earlier
            there = set(names)  # others' keys may begin alike
            missing = [k for k in range(total) if f"{what}/{k}" not in there]
            if not missing:
                return
            if ended is not None:
                told = json.loads(ended)
                if told["code"] == "init_timeout":  # the same limit passed there a moment earlier
                    raise self._late(missing, failure)
                raise _failed_elsewhere(told)
            if self._left() <= 0:
                raise self._late(missing, failure)
            if time.monotonic() >= next_word:
                next_word += _COUNTDOWN_SECONDS
                _log.warning(
                    "%d of %d processes %s, missing: %s (%.0f s left of init_timeout)",
                    total - len(missing), total, here, ", ".join(map(str, missing[:16])), self._left(),
                )  # fmt: skip
            time.sleep(_POLL_SECONDS)

    def _late(self, missing: list[int], failure: str) -> OperationTimeoutError:
        total = self.launch.num_processes
        listed = ", ".join(f"process {k} of {total}" for k in missing[:8])
        return OperationTimeoutError(
            f"{listed}{', ...' if len(missing) > 8 else ''} {failure} within init_timeout = {self._timeout:g} s "
            f"(JHETCC_INIT_TIMEOUT, or timeout= of init()); {total - len(missing)} of {total} are here. This is process "
            f"{self.launch.process_id}; {self.launch.source}",
            code="init_timeout",
            scope="process",
            ranks=tuple(missing),
        )

    def _check(self, me: Member, members: list[Member]) -> None:
        refuse_loopback(self._coordinator, [member.host_key for member in members])
        for member in members:
            difference = config.difference(me.agreed, member.agreed)
            if difference:
                raise BadArgumentError(
                    f"processes {me.process_id} ({me.place}, here) and {member.process_id} ({member.place}, there) do not agree: "
                    f"{difference}. Give all processes the same setting",
                    code="settings_differ",
                    scope="process",
                )

    def connect(self, process: Any, members: list[Member], first_rank: list[int]) -> None:
        """Makes an endpoint for every pair of a local and another rank."""
        me = members[self.launch.process_id]
        self._connections.connect(process, me, members, first_rank, self._client, self._left, self._raise_if_ended)

    def finish(self) -> None:
        """Returns when every process has all its endpoints: from then on operations may start."""
        self._client.set_if_absent(f"ready/{self.launch.process_id}", "1", _CALL_SECONDS)
        self._wait_for("ready", "did not finish connecting")
        with contextlib.suppress(PeerLostError):  # process 0 is gone again: who needs it hears so from its connection
            self._client.will("", "", _CALL_SECONDS)
            self._go_on()
        self._has_finished = True
        self._connections.finish()

    def leave_behind(self, epoch: int, process_of: Sequence[int]) -> None:
        """From now on, processes with which this one shares no communicator any more get no connection to it.

        Args:
          epoch: that it has moved on to.
          process_of: the process of each world rank.
        """
        here = {process_of[rank] for rank in state.ranks()}
        self._connections.leave_behind(epoch, sorted(set(process_of) - here))

    def _go_on(self) -> None:
        """Says that this process needs the store no longer to learn how ``init()`` ends."""
        self._client.set_if_absent(f"gone on/{self.launch.process_id}", "1", _CALL_SECONDS)

    def fail(self, why: BaseException) -> BaseException:
        """Tells the others that this process's ``init()`` failed, if the coordinator still listens.

        Returns:
          The error to raise: where the store was lost, that of process 0, which holds it.
        """
        if self._client is not None:
            with contextlib.suppress(Error):
                text = f"process {self.launch.process_id} on {socket.gethostname()}:{os.getpid()}: {str(why) or type(why).__name__}"
                told = {"code": why.code if isinstance(why, Error) else "", "text": text}
                self._client.set_if_absent("failed", json.dumps(told), _CALL_SECONDS)
                self._go_on()
                self._has_failed = True
        if not (isinstance(why, PeerLostError) and why.code == "store_gone"):
            return why
        return PeerLostError(
            f"init() failed in another process: process 0, which holds the coordinator {self._coordinator}, gave up or ended; its own "
            f"output may say why. This is process {self.launch.process_id}: {why}",
            code="init_failed",
            scope="process",
            ranks=(0,),
        )

    def close(self) -> None:
        """Lets go of the store; process 0, which holds it, first waits a moment for who has not read there how ``init()`` ended."""
        end = time.monotonic() + min(_GO_ON_SECONDS, self.options.close_timeout)
        with contextlib.suppress(Error):
            while self._server is not None and (self._has_finished or self._has_failed) and time.monotonic() < end:
                here = len(self._client.list("process/", _CALL_SECONDS))
                if len(self._client.list("gone on/", _CALL_SECONDS)) >= here:
                    break
                time.sleep(_POLL_SECONDS)
        if self._connections is not None:
            self._connections.close()
        self._client = None
        self._server = None


def _failed_elsewhere(told: dict[str, Any]) -> PeerLostError:
    return PeerLostError(
        f"init() failed in another process: {told['text']}",
        code="init_failed",
        scope="process",
        ranks=tuple(told.get("ranks", ())),
    )
