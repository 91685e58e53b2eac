# SPDX-License-Identifier: Apache-2.0
"""How this process is reached by the others of its job, and how it reaches them: an endpoint for every pair of ranks."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from jhetcc import _core, config
from jhetcc.errors import BadArgumentError, Error, OperationTimeoutError, ResourceError
from jhetcc.world.detect import split_address
from jhetcc.world.members import Member
from jhetcc.world.nics import Nic, flows_over_one_nic, ways

__all__ = ["Connections"]

_log = logging.getLogger("jhetcc")


class Connections:
    """Listens for processes of this host at a unix name, for others on every NIC; then connects.

    Args:
      options: this process's settings.
      secret: the job's, as the core has it.
      identity: this process's.
      encryption: of the job's connections, or None.
      local: the address from which this process reaches the coordinator.

    Attributes:
      unix_address: where processes of this host connect.
      nics: what is told to the others.
    """

    def __init__(self, options: config.Options, secret: Any, identity: Any, encryption: Any, local: str):
        self._options, self._secret, self._identity = options, secret, identity
        chosen = _core.choose_nics(options.interface or "", local)
        self._paths = _core.Paths(chosen, secret, identity, encryption if options.tls == "all" else None)
        self._unix: Any = _core.Acceptor(f"unix:@jhetcc-{os.getpid()}-{secrets.token_hex(8)}", secret, identity)
        self.unix_address: str = self._unix.address
        ports = [split_address(address)[1] for address in self._paths.addresses]
        self.nics = tuple(
            Nic(name, host.partition("%")[0], port, length, rate, self._rdma(name, host))
            for (name, host, length, rate, *_), port in zip(chosen, ports, strict=True)
        )
        named = f"JHETCC_INTERFACE={options.interface}" if options.interface else ""
        why = named or "chosen here; JHETCC_INTERFACE names others"
        _log.info("NICs: %s (%s)", ", ".join(str(nic) for nic in self.nics), why)

    def _rdma(self, name: str, host: str) -> str:
        """The NIC's RDMA device, if it is to be used.

        Raises:
          UnavailableError: it has to be used, and cannot be.
        """
        if self._options.transport in ("tcp", "shm") or self._options.tls == "all":
            return ""
        try:
            return _core.rdma_device(host)
        except Error as error:
            if self._options.transport == "verbs":
                raise type(error)(
                    f"transport=verbs, but NIC {name} {host} cannot be used for it: {error}",
                    code=error.code,
                    scope="process",
                ) from None
            if error.code != "no_rdma_device":
                _log.warning("NIC %s %s is used by tcp, not by its RDMA device: %s", name, host, error)
            return ""

    def connect(
        self,
        process: Any,
        me: Member,
        members: Sequence[Member],
        first_rank: Sequence[int],
        client: Any,
        left: Callable[[], float],
        raise_if_ended: Callable[[], None],
    ) -> None:
        """Makes an endpoint for every pair of a local and another rank.

        Pairs of processes on one host are taken in one order everywhere, so that no two wait for each other; of others, the process with
        the higher number calls, on all their paths at once.

        Args:
          process: of the core.
          me: this process.
          members: all, by number.
          first_rank: of each of them.
          client: of the job's store.
          left: seconds until ``init()`` gives up.
          raise_if_ended: raises where another process gave up; that is told rather than what follows from it here.

        Raises:
          OperationTimeoutError, PeerLostError, BadArgumentError: two processes do not connect.
        """

        def failed(other: Member | None, error: Error) -> Error:
            if not isinstance(error, ResourceError):  # that follows from nothing elsewhere
                raise_if_ended()
            them = f"process {other.process_id} ({other.place})" if other else "the others"
            return type(error)(
                f"process {me.process_id} ({me.place}) and {them} do not connect: {error}",
                code="init_timeout" if isinstance(error, OperationTimeoutError) else error.code,
                scope="process",
                ranks=(other.process_id,) if other else (),
            )

        for a in range(me.ranks):
            for b in range(a + 1, me.ranks):
                process.add_local_pair(a, b)
        common = {"process": process, "store": client, "ended_key": "failed"}
        pairs: list[tuple] = []
        # All before anybody is waited for: what cannot be joined is told at once.
        joined = [(other, self._paths_to(me, other)) for other in members if other.process_id != me.process_id]
        with_one: dict[str, tuple[Member, int, int]] = {}
        for other, paths in joined:
            if paths is not None and len(paths) > 1 and len({(nic, address) for _, nic, address, _ in paths}) == 1:
                with_one.setdefault(other.host_key, (other, paths[0][1], len(paths)))
            for local, remote in _rank_pairs(me, other):
                peer = first_rank[other.process_id] + remote
                if paths is not None:
                    is_caller = me.process_id > other.process_id
                    pairs.append((local, peer, other.process_id, other.incarnation, remote, is_caller, paths))
                    continue
                try:
                    self._connect_shm(me, other, common | {"slot": local, "peer": peer, "peer_slot": remote}, left())
                except Error as error:
                    raise failed(other, error) from None
        if not pairs:
            return
        if with_one:
            other, nic, flows = next(iter(with_one.values()))
            _log.info("%s", flows_over_one_nic(me.nics[nic], other.place, len(with_one), flows))
        try:
            self._paths.connect(pairs=pairs, congestion=self._options.tcp_congestion or "", timeout=left(), **common)
        except Error as error:
            raise failed(members[error.ranks[0]] if error.ranks else None, error) from None

    def _paths_to(self, me: Member, other: Member) -> list[tuple[int, int, str, bool]] | None:
        """Tier, own NIC, the other's address and whether by verbs of every path between ranks of the two, by number.

        None where they share memory.

        Raises:
          BadArgumentError: shm or verbs is asked for here, and cannot join the two; or no NIC of one reaches the other.
        """
        same_host = me.host_key == other.host_key
        if same_host and self._options.transport not in ("tcp", "verbs"):
            return None
        if self._options.transport == "shm":
            raise BadArgumentError(
                f"transport=shm, but process {other.process_id} is on another host ({other.place}); unset JHETCC_TRANSPORT",
                code="bad_option",
                scope="process",
            )
        if not same_host:
            _refuse_loopback(me, other)
        is_low = me.process_id < other.process_id
        low, high = (me, other) if is_low else (other, me)
        found = []
        for way in ways(low.nics, high.nics, same_host=same_host, per_nic=self._options.paths_per_nic):
            own, remote = (way.low, way.high) if is_low else (way.high, way.low)
            here, there = me.nics[own], other.nics[remote]
            if self._options.transport == "verbs" and not there.rdma:
                raise BadArgumentError(
                    f"transport=verbs here, but process {other.process_id} ({other.place}) does not use NIC {there} for it: it has no RDMA "
                    "device that works there, or JHETCC_TRANSPORT says otherwise there",
                    code="bad_option",
                    scope="process",
                )
            is_verbs = bool(here.rdma and there.rdma)
            # An adapter sends by its own port only; between subnets, TCP may leave by another one.
            if way.tier == 0 or not is_verbs or here.reaches(there):
                found.append((way.tier, own, there.address_from(here), is_verbs))
        return found

    def _connect_shm(self, me: Member, other: Member, common: dict[str, Any], timeout: float) -> None:
        common |= {"peer_process": other.process_id, "allow_cma": self._options.cma != "off", "timeout": timeout}
        if me.process_id < other.process_id:
            _core.accept_endpoint(self._unix, **common)
        else:
            _core.connect_endpoint(other.unix_address, self._secret, self._identity, **common)

    def finish(self) -> None:
        """All are connected: only what may be lost and connected anew is still listened for."""
        self._unix = None
        if not self._paths.has_several:
            self._paths.stop()

    def leave_behind(self, epoch: int, processes: Sequence[int]) -> None:
        """This process is in that epoch now, and these are not."""
        self._paths.leave_behind(epoch, processes)

    def close(self) -> None:
        self._unix = None
        self._paths.stop()


def _refuse_loopback(me: Member, other: Member) -> None:
    """Raises where one of two processes on different hosts listens on loopback only: calls to it would be awaited for nothing."""
    for one, peer in ((me, other), (other, me)):
        if not all(nic.address.is_loopback for nic in one.nics):
            continue
        here = " (here)" if one is me else ""
        listed = ", ".join(f"{nic.name} {nic.host}".strip() for nic in one.nics)
        why = f"JHETCC_INTERFACE={one.interface}" if one.interface else "no JHETCC_INTERFACE"
        raise BadArgumentError(
            f"process {one.process_id} ({one.place}){here} listens on loopback only, {listed}, by {why} of that process, and process "
            f"{peer.process_id} ({peer.place}) on another host cannot reach it there. Unset JHETCC_INTERFACE, or name interfaces, "
            f"addresses or a subnet of {one.host} that {peer.host} reaches",
            code="no_route",
            scope="process",
            ranks=(other.process_id,),
        )


def _rank_pairs(me: Member, other: Member) -> list[tuple[int, int]]:
    """Local ranks of the two, in the order that both take."""
    if me.process_id < other.process_id:
        return [(a, b) for a in range(me.ranks) for b in range(other.ranks)]
    return [(b, a) for a in range(other.ranks) for b in range(me.ranks)]
