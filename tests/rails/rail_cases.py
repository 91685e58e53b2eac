# SPDX-License-Identifier: Apache-2.0
"""Cases of rails, called in every process of a job: collectives that must be exact while a test takes paths away."""

import contextlib
import itertools
import os
import socket
import time

import numpy as np
from process_worker import hear, here, say, until_error

import jhetcc
from jhetcc.world.rendezvous import Rendezvous

WORDS = 1 << 18  # 1 MiB a collective: several stripes
DEADLINE_S = 60.0


def paths_to(comm, peer, rank=0):
    """The paths of a local rank to a world rank, by number."""
    return comm.status()["ranks"][rank]["rails"][peer]


def states(comm, peer):
    return [path["state"] for path in paths_to(comm, peer)]


def moved(comm, peer):
    """Bytes that each path carried so far, both ways."""
    return [path["sent_bytes"] + path["received_bytes"] for path in paths_to(comm, peer)]


def exact(comm, turn, wants_more):
    """One exact collective. Every rank says whether it wants more; returns how many do."""
    rank = comm.rank
    data = np.arange(WORDS, dtype=np.int64) * (rank + 1) + turn
    data[-1] = wants_more
    total = comm.all_reduce(data)
    size = comm.size
    expected = np.arange(WORDS, dtype=np.int64) * (size * (size + 1) // 2) + turn * size
    assert np.array_equal(total[:-1], expected[:-1]), f"turn {turn} is wrong"
    return int(total[-1])


def work_until(comm, is_done, turn=0, at_least=1):
    """Exact collectives until every rank's condition holds; the number of the next turn."""
    end = time.monotonic() + DEADLINE_S
    first = turn
    while True:
        assert time.monotonic() < end, f"the condition does not come: {comm.status()['ranks'][0]['rails']}"
        more = exact(comm, turn, not (is_done() and turn - first >= at_least - 1))
        turn += 1
        if more == 0:
            return turn


def close_sockets(host):
    """Ends every connection of this process from this address, as a peer's crash would: found by its local end. How many."""
    count = 0
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(number)) as one:
                if one.family == socket.AF_INET and one.getsockname()[0] == host and one.getpeername():
                    one.shutdown(socket.SHUT_RDWR)
                    count += 1
    return count


def both_used(comm, peer, since=None):
    before = since or [0] * len(paths_to(comm, peer))
    return lambda: all(
        now > then
        for now, then, path in zip(moved(comm, peer), before, paths_to(comm, peer), strict=True)
        if path["tier"] == 0
    )


def are_lost(comm, peer, numbers):
    return lambda: all(states(comm, peer)[k] == "lost" for k in numbers)


def case_paths(comm):
    """What paths there are once all of tier 0 have carried bytes."""
    peer = 1 - comm.rank
    work_until(comm, both_used(comm, peer))
    return paths_to(comm, peer)


def case_closed_connections(comm, host):
    """The connections of one NIC end in the middle of the work: the others go on, and these come back."""
    peer = 1 - comm.rank
    turn = work_until(comm, both_used(comm, peer))
    before = paths_to(comm, peer)
    if comm.rank == 0:
        assert close_sockets(host) > 0
    hit = [path["path"] for path in before if host == (path["remote"] if comm.rank else path["local"].split()[-1])]
    assert hit
    turn = work_until(comm, lambda: all(paths_to(comm, peer)[k]["losses"] > 0 for k in hit), turn)
    lost = paths_to(comm, peer)
    turn = work_until(comm, lambda: all(state == "healthy" for state in states(comm, peer)), turn)
    work_until(comm, both_used(comm, peer, moved(comm, peer)), turn)
    return hit, before, lost, paths_to(comm, peer), comm.status()["counters"]["aborts"]


def joined(address, key, seconds=40, **options):
    """Joins the job at this address; the processes may be in namespaces of their own."""
    for name, value in options.items():
        os.environ[f"JHETCC_{name.upper()}"] = value
    return jhetcc.init(**here() | {"coordinator": address, "secret": key, "timeout": seconds})


def case_link(address, key, options, rounds):
    """Works while the test takes links away and gives them back; tells its paths at every point.

    The test hears "working" with all paths in use, takes something away, and says which paths that hits; hears "without" when these
    are lost and the others carried a lot since; gives back; and hears "again" when all are in use.
    """
    comm = joined(address, key, **options)
    peer, turn = 1 - comm.rank, 0
    told = []
    turn = work_until(comm, both_used(comm, peer), turn)
    for _ in range(rounds):
        said = [paths_to(comm, peer)]
        say(("working", said[0]))
        hit = hear()
        turn = work_until(comm, are_lost(comm, peer, hit), turn)
        said.append(paths_to(comm, peer))
        turn = work_until(comm, lambda: True, turn, at_least=20)
        said.append(paths_to(comm, peer))
        say(("without", said[-1]))
        hear()
        turn = work_until(comm, lambda: all(state == "healthy" for state in states(comm, peer)), turn)
        turn = work_until(comm, both_used(comm, peer, moved(comm, peer)), turn)
        said.append(paths_to(comm, peer))
        told.append(said)
    kinds = ("connected", "disconnected", "resent")
    log = [event for event in comm._world.process.records() if event["event"] in kinds]
    aborts = comm.status()["counters"]["aborts"]
    comm.barrier()
    comm.close()
    return told, log, aborts


def case_join(address, key, options):
    """Joins, works for a moment, and returns its paths."""
    begun = time.monotonic()
    comm = joined(address, key, **options)
    seconds = time.monotonic() - begun
    work_until(comm, lambda: True, at_least=3)
    found = paths_to(comm, 1 - comm.rank)
    comm.barrier()
    comm.close()
    return found, seconds


def case_route(address, key):
    """Rank 0 alone sends, after the test did something to an idle job; how long that took, and the paths."""
    comm = joined(address, key)
    peer = 1 - comm.rank
    turn = work_until(comm, both_used(comm, peer))
    work_until(comm, lambda: all(state == "healthy" for state in states(comm, peer)[:2]), turn)
    say("idle")
    hear()
    begun = time.monotonic()
    data = np.arange(8 * WORDS, dtype=np.int64)
    assert np.array_equal(comm.broadcast(data, root=0), data)
    told = time.monotonic() - begun, paths_to(comm, peer), comm.status()["counters"]["aborts"]
    comm.barrier()
    comm.close()
    return told


def case_lost_host(address, key):
    """Works until an error; its class, ranks and text, and when it came."""
    comm = joined(address, key)

    def work():
        for turn in itertools.count(first):
            exact(comm, turn, True)

    first = work_until(comm, both_used(comm, 1 - comm.rank))
    say("working")
    error, _ = until_error(work)
    when = time.monotonic()
    comm.close()
    return type(error).__name__, error.ranks, str(error), when


def case_stopped(comm, seconds):
    """Works while the test stops one of the two; losses of each path, and aborts."""
    peer = 1 - comm.rank
    turn = work_until(comm, both_used(comm, peer))
    say("working")
    stop = time.monotonic() + seconds
    work_until(comm, lambda: time.monotonic() > stop, turn)
    return [path["losses"] for path in paths_to(comm, peer)], comm.status()["counters"]["aborts"]


def case_stopped_host(address, key, seconds):
    comm = joined(address, key)
    told = case_stopped(comm, seconds)
    comm.barrier()
    comm.close()
    return told


def case_start(address, key):
    """Joins beside a link that flaps from the moment on when both have chosen their NICs; works once it rests."""
    kept = Rendezvous.connect

    def connect(self, *arguments):
        say("connecting")
        hear()
        kept(self, *arguments)

    Rendezvous.connect = connect
    try:
        comm = joined(address, key)
    finally:
        Rendezvous.connect = kept
    say("joined")
    hear()
    work_until(comm, lambda: all(state == "healthy" for state in states(comm, 1 - comm.rank)[:2]))
    used = paths_to(comm, 1 - comm.rank)[:2]
    comm.barrier()
    comm.close()
    return used


def relayed(path):
    """A third rank passes on, and has shown that it stays."""
    return path["local"] == "relay" and path["state"] == "healthy"


def case_third(address, key):
    """Three ranks; the test cuts all links between ranks 0 and 1."""
    comm = joined(address, key)
    turn = work_until(comm, lambda: True, at_least=5)
    say("working")
    hear()
    peer = 1 - comm.rank
    turn = work_until(comm, lambda: comm.rank == 2 or relayed(paths_to(comm, peer)[-1]), turn)
    work_until(comm, lambda: True, turn, at_least=20)
    found = paths_to(comm, peer) if comm.rank < 2 else []
    aborts = comm.status()["counters"]["aborts"]
    comm.barrier()
    comm.close()  # also of the one who passes things on, and does not know who needs it
    return found, aborts
