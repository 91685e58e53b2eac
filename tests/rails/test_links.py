# SPDX-License-Identifier: Apache-2.0
"""Links of hosts that go down and come back while collectives run: exact results, and evidence that each link was hit."""

import contextlib
import re
import secrets
import signal
import time

import pytest
from rail_cases import case_link, case_lost_host, case_route, case_start, case_stopped_host, case_third


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
            running.linger(1.1)  # the kernel may tell of a carrier a second late, if it told of one just before
            for k in range(2):
                running.tell(k)
        outcomes = running.finish()
        return [outcome.get() for outcome in outcomes], [outcome.output for outcome in outcomes]


def check_log(output, log, rounds):
    """One line an event: of each path, as the flight recorder has them, and of a NIC that the system takes or gives back."""
    lines = re.findall(r"path (\d+) to rank \d+ \(.*?\) (lost|back)", output)
    events = [
        (str(event["argument"]), "lost" if event["event"] == "disconnected" else "back")
        for event in log
        if event["event"] != "resent"
    ]
    assert sorted(lines) == sorted(events), output
    nics = re.findall(r"NIC (\S+) .*?( can be used again|: .*)", output)
    for name in {name for name, _ in nics}:
        told = [what for each, what in nics if each == name]
        assert len(told) == 2 * rounds and told.count(" can be used again") == rounds, output
    assert output.count("\n") == len(lines) + len(nics), output


def check(told, hits, outputs, reason):
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
        seen = [(event["event"], event["argument"]) for event in log]
        for path in hits[k]:
            assert ("disconnected", path) in seen and ("connected", path) in seen
        check_log(outputs[k], log, len(rounds))
    assert any(reason in output for output in outputs), outputs


# Paths: 0 eth0-en0, 1 eth1-en1; crossed ones need a route between the two subnets, which there is none of.
HITS = ([1], [1])


def test_a_link_taken_down_and_brought_back(hosts):
    """C104, C105: twice."""
    both = two_links(hosts)
    told, outputs = play(
        both,
        lambda: both.do(0, "ip link set eth1 down"),
        lambda: both.do(0, "ip link set eth1 up"),
        HITS,
        rounds=2,
    )
    check(told, HITS, outputs, "eth1 is down")


def test_a_link_cut_at_the_other_end(hosts):
    """The carrier goes; here, the process that called sees it, and has to call again."""
    both = two_links(hosts)
    told, outputs = play(
        both,
        lambda: both.do(1, "ip link set en0 down"),
        lambda: both.do(1, "ip link set en0 up"),
        ([0], [0]),
    )
    check(told, ([0], [0]), outputs, "en0 is down")


def test_an_address_that_is_removed(hosts):
    """Nobody but its host is told by the system."""
    both = two_links(hosts)
    told, outputs = play(
        both,
        lambda: both.do(0, "ip address del 10.71.0.1/24 dev eth1"),
        lambda: both.do(0, "ip address add 10.71.0.1/24 dev eth1"),
        HITS,
    )
    check(told, HITS, outputs, "the address 10.71.0.1 is gone from eth1")


def test_who_is_called_says_that_it_is_back(hosts):
    """C105: the caller, who sees nothing of it, has been trying more and more seldom; within 2 s the path is used again."""
    both = two_links(hosts)
    with contextlib.closing(both.pool()) as pool:
        running = pool.start(case_link, "10.70.0.1:7000", secrets.token_hex(32), {}, 1, world=False)
        for k in range(2):
            assert running.word(k)[0] == "working"
        both.do(0, "ip address del 10.71.0.1/24 dev eth1")
        for k in range(2):
            running.tell(k, [1])
        for k in range(2):
            assert running.word(k, 1)[0] == "without"
        running.linger(12)
        both.do(0, "ip address add 10.71.0.1/24 dev eth1")
        begun = time.monotonic()
        for k in range(2):
            running.tell(k)
        for outcome in running.finish():
            outcome.get()
        assert time.monotonic() - begun < 3.5  # the caller alone would try after 4 s and more


def cut(both, ends):
    """Packets go to a machine that is not there."""
    for k, host, end in ends:
        both.do(k, f"ip neighbor replace {host} lladdr 02:00:00:00:00:99 dev {end} nud permanent")


def test_a_link_that_is_cut_without_a_word(hosts):
    """A black hole: no process and no kernel is told anything; traffic shows it."""
    both = two_links(hosts)
    ends = ((0, "10.71.0.2", "eth1"), (1, "10.71.0.1", "en1"))

    told, outputs = play(
        both,
        lambda: cut(both, ends),
        lambda: [both.do(k, f"ip neighbor del {host} dev {end}") for k, host, end in ends],
        HITS,
    )
    check(told, HITS, outputs, "no answer for")
    for rounds, log, _ in told:
        again = [event["bytes"] for event in log if event["event"] == "resent"]
        assert sum(again) <= sum(path["resent_bytes"] for path in rounds[-1][-1])
    assert any(event["event"] == "resent" and event["argument"] == 0 for _, log, _ in told for event in log)


@pytest.mark.parametrize("is_told", [True, False])
def test_hosts_that_no_path_joins_any_more(hosts, is_told):
    """Whether the system says so or not: one error on both, 10 s after the last answer, with the reason of every path."""
    both = two_links(hosts)
    with contextlib.closing(both.pool()) as pool:
        running = pool.start(case_lost_host, "10.70.0.1:7000", secrets.token_hex(32), world=False)
        running.expect(0, 1, word="working")
        begun = time.monotonic()
        if is_told:
            both.do(0, "ip link set eth0 down && ip link set eth1 down")
        else:
            cut(both, [(k, f"10.7{n}.0.{2 - k}", f"{'en' if k else 'eth'}{n}") for n in range(2) for k in range(2)])
        for k, outcome in enumerate(running.finish()):
            kind, ranks, text, when = outcome.get()
            assert (kind, ranks) == ("PeerLostError", (1 - k,)), text
            assert 9.5 < when - begun < 13, when - begun
            for path in range(2):
                reason = f"{'en' if k else 'eth'}{path} " if is_told else "no answer for "
                assert reason in text.partition(f"path {path} ")[2].partition(";")[0], text


def test_the_only_link_is_away_for_a_while(hosts):
    """Less than the 10 s that are waited for it: the job stands still, and goes on soon after."""
    both = hosts(2)
    both.join(0, 1, "eth0", "en0", addresses=("10.70.0.1/24", "10.70.0.2/24"), mbit=400)
    with contextlib.closing(both.pool()) as pool:
        running = pool.start(case_stopped_host, "10.70.0.1:7000", secrets.token_hex(32), 7, world=False)
        running.expect(0, 1, word="working")
        both.do(0, "ip link set eth0 down")
        running.linger(6.5)
        both.do(0, "ip link set eth0 up")
        begun = time.monotonic()
        for outcome in running.finish():
            _, aborts = outcome.get()
            assert aborts == 0
        assert time.monotonic() - begun < 6


def test_a_route_that_is_gone(hosts):
    """The link stays up, and nothing can be sent: the kernel keeps all back, so nothing is under way that could be unanswered."""
    both = two_links(hosts)
    with contextlib.closing(both.pool()) as pool:
        running = pool.start(case_route, "10.70.0.1:7000", secrets.token_hex(32), world=False)
        running.expect(0, 1, word="idle")
        running.linger(0.2)  # what is under way comes to rest
        both.do(0, "ip route del 10.71.0.0/24 dev eth1")
        for k in range(2):
            running.tell(k)
        for outcome in running.finish():
            seconds, paths, aborts = outcome.get()
            assert seconds < 5 and aborts == 0
            assert paths[0]["losses"] == 0 and paths[1]["losses"] == 1, paths
            assert carried(paths[0]) > 0


def test_a_process_that_is_stopped_is_no_lost_path(hosts):
    """For seconds, with full buffers on slow links: its kernel answers, and that it has no room."""
    both = two_links(hosts)
    with contextlib.closing(both.pool()) as pool:
        running = pool.start(case_stopped_host, "10.70.0.1:7000", secrets.token_hex(32), 12, world=False)
        running.expect(0, 1, word="working")
        for seconds in (5, *[0.4] * 8):
            running.signal(1, signal.SIGSTOP)
            running.linger(seconds)
            running.signal(1, signal.SIGCONT)
            running.linger(0.2)
        for outcome in running.finish():
            losses, aborts = outcome.get()
            assert losses[:2] == [0, 0] and aborts == 0, outcome.output


def test_a_link_that_flaps_while_the_job_starts(hosts):
    """C108: init() ends on the stable one, the other is named, and it is used when it has come to rest."""
    both = two_links(hosts)
    with contextlib.closing(both.pool()) as pool:
        running = pool.start(case_start, "10.70.0.1:7000", secrets.token_hex(32), world=False)
        running.expect(0, 1, word="connecting")
        both.do(0, "ip link set eth1 down")
        begun = time.monotonic()
        for k in range(2):
            running.tell(k)
        flaps = 0
        while flaps < 4 or any("joined" not in outcome.said for outcome in running.outcomes):
            assert time.monotonic() - begun < 15
            flaps += 1
            running.linger(0.25)
            both.do(0, "ip link set eth1 up")
            running.linger(0.25)
            both.do(0, "ip link set eth1 down")
        both.do(0, "ip link set eth1 up")
        for k in range(2):
            running.tell(k)
        outcomes = running.finish()
        assert [path["local"].split()[0] for path in outcomes[0].get()] == ["eth0", "eth1"]
        assert [path["local"].split()[0] for path in outcomes[1].get()] == ["en0", "en1"]
        assert any("eth1" in outcome.output or "en1" in outcome.output for outcome in outcomes)


def test_two_links_in_turn(hosts):
    """The second goes while the first is still away, and the job waits; the first comes back, and it goes on."""
    both = two_links(hosts)
    with contextlib.closing(both.pool()) as pool:
        running = pool.start(case_link, "10.70.0.1:7000", secrets.token_hex(32), {}, 1, world=False)
        for k in range(2):
            assert running.word(k)[0] == "working"
        both.do(0, "ip link set eth1 down")
        for k in range(2):
            running.tell(k, [1])
        for k in range(2):
            assert running.word(k, 1)[0] == "without"
        both.do(0, "ip link set eth0 down")
        running.linger(0.5)
        both.do(0, "ip link set eth0 up")
        both.do(0, "ip link set eth1 up")
        for k in range(2):
            running.tell(k)
        for outcome in running.finish():
            _, _, aborts = outcome.get()
            assert aborts == 0


def test_two_hosts_that_only_a_third_one_joins(hosts):
    """All links between two of three are cut: what they say to each other goes by the third, and stays exact."""
    three = hosts(3)
    three.join(0, 1, "eth1", "eth0", addresses=("10.70.0.1/24", "10.70.0.2/24"))
    three.join(0, 2, "eth2", "eth0", addresses=("10.71.0.1/24", "10.71.0.3/24"))
    three.join(1, 2, "eth2", "eth1", addresses=("10.72.0.2/24", "10.72.0.3/24"))
    three.do(2, "ip route add 10.70.0.0/24 via 10.71.0.1")
    with contextlib.closing(three.pool()) as pool:
        running = pool.start(case_third, "10.70.0.1:7000", secrets.token_hex(32), world=False)
        running.expect(0, 1, 2, word="working")
        three.do(0, "ip link set eth1 down")
        for k in range(3):
            running.tell(k)
        outcomes = running.finish()
    for outcome in outcomes:
        found, aborts = outcome.get()
        assert aborts == 0
        assert "65535" not in outcome.output
        assert not found or (found[-1]["local"], found[-1]["remote"], found[-1]["path"]) == ("relay", "rank 2", 65535)
    assert "path by way of rank 2 to rank 1 back after" in outcomes[0].output, outcomes[0].output
