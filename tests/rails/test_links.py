# SPDX-License-Identifier: Apache-2.0
"""Links of hosts that go down and come back while collectives run: exact results, and evidence that each link was hit."""

import contextlib
import secrets

import pytest
from namespaces import hosts  # noqa: F401 - a fixture
from rail_cases import case_link


def two_links(hosts, mbit=400):
    both = hosts(2)
    for k in range(2):
        both.join(0, 1, f"eth{k}", f"en{k}", addresses=(f"10.7{k}.0.1/24", f"10.7{k}.0.2/24"), mbit=mbit)
    return both


def carried(path):
    return path["sent_bytes"] + path["received_bytes"]


def play(both, take, give, hits, rounds=1, options=None):
    """Takes something away and gives it back while both processes work; what each told."""
    with contextlib.closing(both.pool()) as pool:
        place = ("10.70.0.1:7000", secrets.token_hex(32), options or {})
        running = pool.start(case_link, *place, rounds, world=False)
        for turn in range(rounds):
            for k in range(2):
                kind, paths = running.word(k, 2 * turn)
                assert kind == "working"
                assert all(carried(path) > 0 for path in paths if path["tier"] == 0)
            take()
            for k in range(2):
                running.tell(k, hits[k])
            for k in range(2):
                assert running.word(k, 2 * turn + 1)[0] == "without"
            give()
            for k in range(2):
                running.tell(k)
        return [outcome.get() for outcome in running.finish()], running.outcomes


def check(told, hits, reason):
    """On paths that were hit nothing moved from their loss on; others carried all; afterwards all are used again."""
    for k, (rounds, log, aborts) in enumerate(told):
        assert aborts == 0
        for working, lost, without, again in rounds:
            for before, at, after, end in zip(working, lost, without, again, strict=True):
                if before["path"] in hits[k]:
                    assert at["state"] == after["state"] == "lost"
                    assert carried(at) == carried(after)
                elif before["tier"] == 0:
                    assert carried(after) > carried(at)
                if end["tier"] == 0:
                    assert end["state"] == "healthy" and carried(end) > carried(after)
        assert any(reason in lost[path]["last_event"] for _, lost, _, _ in rounds for path in hits[k]) or k == 1
        seen = [(event["event"], event["argument"]) for event in log]
        for path in hits[k]:
            assert ("disconnected", path) in seen and ("connected", path) in seen


# Paths: 0 eth0-en0, 1 eth1-en1; crossed ones need a route between the two subnets, which there is none of.
HITS = ([1], [1])


def test_a_link_taken_down_and_brought_back(hosts):
    """C104, C105: twice."""
    both = two_links(hosts)
    told, _ = play(
        both,
        lambda: both.do(0, "ip link set eth1 down"),
        lambda: both.do(0, "ip link set eth1 up"),
        HITS,
        rounds=2,
    )
    check(told, HITS, "eth1 is down")
