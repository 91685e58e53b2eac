# SPDX-License-Identifier: Apache-2.0
"""A process that a shrink left behind lives on and knows the secret: it gets no connection any more, and the others go on."""

import logging
import secrets
import signal
import time

import numpy as np
import pytest
from process_worker import hear, say, until_error
from rail_cases import close_sockets, paths_to, states, work_until

from jhetcc.errors import PeerLostError

HOSTS = ("127.0.0.2", "127.0.0.3")
OPTIONS = {
    "JHETCC_TRANSPORT": "tcp",
    "JHETCC_INTERFACE": ",".join(HOSTS),
    "JHETCC_OPERATION_TIMEOUT": "3s",
    "JHETCC_ABORT_GATHER": "500ms",
    "JHETCC_ABORT_CONFIRM": "1s",
    "JHETCC_LOG": "warn,net=info",  # who was left behind is no stranger
}
LEFT = 2
WHY = "in epoch 1, the caller in epoch 0; it was left behind by a shrink"


def case_left_behind(comm):
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    comm.all_reduce(np.ones(1))
    if comm.rank == LEFT:
        say("ready")
        hear()
        error, _ = until_error(lambda: comm.all_reduce(np.ones(1)))
        assert isinstance(error, PeerLostError) and error.ranks == (LEFT,), error
        with pytest.raises(PeerLostError):
            comm.shrink(timeout=5)
        assert close_sockets(HOSTS[1]) > 0  # it calls both of the others, from its second NIC
        for peer in (0, 1):
            hit = [path["path"] for path in paths_to(comm, peer) if path["local"].endswith(HOSTS[1])]
            assert len(hit) == 2
            end = time.monotonic() + 20
            while not all(WHY in paths_to(comm, peer)[k]["last_event"] for k in hit):
                assert time.monotonic() < end, paths_to(comm, peer)
            assert states(comm, peer).count("healthy") == 2  # connections that are there are left alone
        return "refused by both"
    error, _ = until_error(lambda: comm.all_reduce(np.ones(1)))
    assert isinstance(error, PeerLostError) and error.ranks == (LEFT,), error
    comm = comm.shrink(timeout=30)
    assert comm.epoch == 1 and comm.world_ranks == (0, 1)
    say("gone on")
    hear()
    peer = 1 - comm.rank
    before = comm.status()["counters"]["aborts"]
    turn = work_until(comm, lambda: True, at_least=5)
    if comm.rank == 0:
        assert close_sockets(HOSTS[1]) > 0
    turn = work_until(comm, lambda: any(path["losses"] for path in paths_to(comm, peer)), turn)
    work_until(comm, lambda: all(state == "healthy" for state in states(comm, peer)), turn)
    assert comm.status()["counters"]["aborts"] == before
    return "survivors meet again"


def test_who_was_left_behind_by_a_shrink_gets_no_connection(pools):
    """Stopped, given up and resumed: refused by name on every path that it calls again, while the survivors' come back."""
    running = pools(1, 1, 1).start(case_left_behind, options=OPTIONS | {"JHETCC_SECRET": secrets.token_hex(32)})
    running.expect(LEFT, word="ready")
    running.signal(LEFT, signal.SIGSTOP)
    running.tell(LEFT)
    running.expect(0, 1, word="gone on")
    running.signal(LEFT, signal.SIGCONT)
    running.finish(LEFT)
    for survivor in (0, 1):
        running.see(survivor, WHY)
        running.tell(survivor)
    outcomes = running.finish()
    running.pool.renew()
    assert [outcome.get() for outcome in outcomes] == ["survivors meet again"] * 2 + ["refused by both"]
