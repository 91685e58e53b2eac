# SPDX-License-Identifier: Apache-2.0
"""A job of two guests, one process each, over verbs: run by lab.sh in both. Tells what it saw as one JSON line a phase."""

import json
import os
import subprocess
import sys
import time

os.environ["JHETCC_TRANSPORT"] = "verbs"
BEGIN = time.monotonic()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import jhetcc  # noqa: E402

NUMBER = int(os.environ["LAB_HOST"]) - 1
SECRET = "0123456789abcdef" * 4
DEADLINE_S = 90.0


def tell(phase, **facts):
    print(json.dumps({"phase": phase, "at": round(time.monotonic() - BEGIN, 1), **facts}), flush=True)


def joined(port, **options):
    for name, value in options.items():
        os.environ[f"JHETCC_{name.upper()}"] = str(value)
    return jhetcc.init(f"10.9.0.1:{port}", process_id=NUMBER, num_processes=2, secret=SECRET, timeout=60)


def paths(comm):
    return comm.status()["ranks"][0]["rails"][1 - comm.rank]


def moved(comm):
    return [path["sent_bytes"] + path["received_bytes"] for path in paths(comm)]


def link(name, state):
    subprocess.run(["ip", "link", "set", name, state], check=True)


psum = jax.jit(jhetcc.psum)


def exact(turn, wants_more, words=1 << 17):
    """One exact psum inside a compiled program. Every rank says whether it wants more; returns how many do."""
    data = np.arange(words, dtype=np.int32) % 1000 * (NUMBER + 1) + turn
    data[-1] = wants_more
    total = np.asarray(psum(jnp.asarray(data)))
    expected = np.arange(words, dtype=np.int32) % 1000 * 3 + 2 * turn
    assert np.array_equal(total[:-1], expected[:-1]), f"turn {turn} is wrong"
    return int(total[-1])


def work_until(is_done, turn=0, act_at=None, act=None):
    end = time.monotonic() + DEADLINE_S
    first = turn
    while True:
        assert time.monotonic() < end, "the condition does not come"
        if act and turn - first == act_at:
            act()
        more = exact(turn, not (is_done() and (act is None or turn - first >= act_at)))
        turn += 1
        if more == 0:
            return turn


def phase_values(comm):
    """Every operation inside jax.jit, short and long, against numpy."""
    for words in (3, 5000, 300_000):
        x = np.arange(words, dtype=np.float32) % 97
        mine = jnp.asarray(x * (NUMBER + 1))
        both = np.stack([x, x * 2])

        @jax.jit
        def everything(y):
            return (
                jhetcc.psum(y),
                jhetcc.all_gather(y),
                jhetcc.psum_scatter(jnp.concatenate([y, y]), tiled=True),
                jhetcc.ppermute(y, perm=[(0, 1), (1, 0)]),
            )

        total, gathered, scattered, turned = map(np.asarray, everything(mine))
        assert np.array_equal(total, both.sum(0))
        assert np.array_equal(gathered, both)
        assert np.array_equal(scattered, both.sum(0))
        assert np.array_equal(turned, both[1 - NUMBER])
    work_until(lambda: all(now > 0 for now in moved(comm)))
    tell("values", paths=paths(comm))


def take(way):
    """Takes this host's second adapter out of service: the link down, or, as a cut elsewhere would, nothing said and nothing sent."""
    if way == "link":
        link("eth1", "down")
    else:
        subprocess.run(["tc", "qdisc", "add", "dev", "eth1", "root", "netem", "loss", "100%"], check=True)


def give_back(way):
    if way == "link":
        link("eth1", "up")
    else:
        subprocess.run(["tc", "qdisc", "del", "dev", "eth1", "root"], check=True)


def phase_link(comm):
    """An adapter of host 2 is gone in the middle of the work and comes back: nothing is lost, and it is used again."""
    hit = [path["path"] for path in paths(comm) if "10.9.1." in path["local"] or "10.9.1." in path["remote"]]
    for way in ("link", "link", "hole"):
        before = paths(comm)
        act = (lambda way=way: take(way)) if NUMBER == 1 else (lambda: None)
        turn = work_until(lambda: all(paths(comm)[k]["state"] == "lost" for k in hit), 0, 3, act)
        lost = paths(comm)
        if NUMBER == 1:
            give_back(way)
        turn = work_until(lambda: all(path["state"] == "healthy" for path in paths(comm)), turn)
        since = moved(comm)
        work_until(lambda since=since: all(now > then for now, then in zip(moved(comm), since, strict=True)), turn)
        tell("link", way=way, hit=hit, before=before, lost=lost, after=paths(comm))


def phase_lossy(comm):
    """One packet of a hundred is lost: adapters send it again."""
    if NUMBER == 0:
        subprocess.run(["tc", "qdisc", "add", "dev", "eth0", "root", "netem", "loss", "1%"], check=True)
    for turn in range(5):
        exact(turn, False)
    shown = subprocess.run(["tc", "-s", "qdisc", "show", "dev", "eth0"], capture_output=True, text=True, check=True)
    dropped = int(shown.stdout.split("dropped ")[1].split(",")[0])
    if NUMBER == 0:
        subprocess.run(["tc", "qdisc", "del", "dev", "eth0", "root"], check=True)
    exact(5, False)
    tell("lossy", dropped=dropped, aborts=comm.status()["counters"]["aborts"])


def phase_alone(comm):
    """The only path goes down in the middle of the work: an error, on both sides, in bounded time."""
    for turn in range(3):
        exact(turn, False)
    began = time.monotonic()
    if NUMBER == 1:
        link("eth0", "down")
    try:
        for turn in range(3, 1000):
            exact(turn, False)
    except Exception as error:
        typed = jhetcc.error_of(error) or error
        tell("alone", seconds=time.monotonic() - began, kind=type(typed).__name__, text=str(typed))
    else:
        tell("alone", seconds=None)


def main():
    tell("begin", imported=True)
    comm = joined(7001)
    tell("joined")
    phase_values(comm)
    phase_link(comm)
    phase_lossy(comm)
    comm.close()
    comm = joined(7002, interface="eth0", paths_per_nic=1, operation_timeout="30s", warn_after="10s")
    tell("joined again")
    phase_alone(comm)
    comm.close()
    tell("end")


if __name__ == "__main__":
    sys.exit(main())
