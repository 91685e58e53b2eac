# SPDX-License-Identifier: Apache-2.0
"""Several addresses of loopback as NICs: striping, connections that end, NICs that cannot be reached at the start."""

import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from process_worker import hear, here, say, until_error
from processes import environment
from rail_cases import (
    both_used,
    case_closed_connections,
    case_paths,
    case_stopped,
    close_sockets,
    exact,
    moved,
    paths_to,
    states,
    work_until,
)

import jhetcc
from jhetcc.world import report
from jhetcc.world.nics import Nic


def options(*hosts, **more):
    return {"JHETCC_TRANSPORT": "tcp", "JHETCC_INTERFACE": ",".join(hosts)} | more


def carried(path):
    return path["sent_bytes"] + path["received_bytes"]


TWO = options("127.0.0.2", "127.0.0.3")


def test_two_nics_carry_together(pools):
    outcomes = pools(1, 1).start(case_paths, options=TWO).finish()
    for mine in [outcome.get() for outcome in outcomes]:
        assert [path["tier"] for path in mine] == [0, 0, 1, 1]
        assert all(path["state"] == "healthy" and path["losses"] == 0 for path in mine)
        assert {path["local"] for path in mine} == {"lo 127.0.0.2", "lo 127.0.0.3"}
    assert not any("no spare path" in outcome.output for outcome in outcomes)


@pytest.mark.parametrize("count", [3, 5])
def test_odd_numbers_of_nics_carry_together(pools, count):
    """C106, C107: three and five; every one is used, and each pair of ranks has a spare."""
    hosts = [f"127.0.0.{2 + k}" for k in range(count)]
    for mine in [outcome.get() for outcome in pools(1, 1).start(case_paths, options=options(*hosts)).finish()]:
        assert [path["tier"] for path in mine] == [0] * count + [1] * count


def test_several_flows_over_one_nic(pools):
    chosen = options("127.0.0.2", JHETCC_PATHS_PER_NIC="3")
    for mine in [outcome.get() for outcome in pools(1, 1).start(case_paths, options=chosen).finish()]:
        assert [path["local"] for path in mine] == ["lo 127.0.0.2"] * 3


def case_one_path(comm):
    exact(comm, 0, False)
    return paths_to(comm, 1 - comm.rank)


def test_one_nic_of_loopback_is_a_bare_connection(pools):
    """Nothing is numbered, kept or connected anew there."""
    for mine in [o.get() for o in pools(1, 1).start(case_one_path, options={"JHETCC_TRANSPORT": "tcp"}).finish()]:
        (only,) = mine
        assert only["state"] == "healthy" and only["sent_bytes"] > 0
        assert only["resent_bytes"] == 0 and only["received_bytes"] is None
        assert only["last_event"].startswith("tcp rank ")


def test_connections_that_end_are_made_anew(pools):
    """C104, C105: exact results meanwhile, no abort; one line an event; the NIC is used again."""
    running = pools(1, 1).start(case_closed_connections, "127.0.0.3", options=TWO)
    outcomes = running.finish()
    for outcome in outcomes:
        hit, before, lost, after, aborts = outcome.get()
        assert 1 in hit and len(hit) == 2 and aborts == 0
        assert carried(before[1]) > 0
        assert all(lost[k]["losses"] == 1 and lost[k]["last_event"] for k in hit)
        assert [path["losses"] for path in after] == [int(k in hit) for k in range(4)]
        assert carried(after[1]) > carried(lost[1])
        for k in hit:
            running.see(outcome.index, after[k]["last_event"])
        events = re.findall(r"path (\d) to rank \d \(.*?\) (lost: |back after )", outcome.output)
        assert sorted(events) == sorted((str(k), word) for k in hit for word in ("lost: ", "back after ")), (
            outcome.output
        )
        assert outcome.output.count("\n") == len(events), outcome.output


def case_of_several_ranks(comm, host):
    """Local ranks of two processes; the connections of one NIC end."""
    rows = [np.full(1 << 16, rank, np.int64) for rank in comm.local_ranks]
    expected = sum(range(comm.size))
    for turn in range(30):
        if turn == 10 and 0 in comm.local_ranks:
            assert close_sockets(host) > 0
        for total in comm.all_reduce(rows):
            assert (total == expected).all()
    others = [rank for rank in range(comm.size) if rank not in comm.local_ranks]
    return [sum(path["losses"] for path in paths_to(comm, peer, k)) for k in range(2) for peer in others]


def test_each_pair_of_local_ranks_has_its_own_paths(pools):
    for outcome in pools(2, 2).start(case_of_several_ranks, "127.0.0.3", options=TWO).finish():
        assert all(losses > 0 for losses in outcome.get()), outcome.value


def case_unreachable(wrong, timeout=20):
    """Process 1 is told a wrong port for some of process 0's NICs, which it calls, and gives up before process 0."""
    place = here()
    timeout += 10 * (place["process_id"] == 0)
    kept = Nic.address_from
    Nic.address_from = lambda self, own: "127.0.0.1:9" if self.host in wrong else kept(self, own)
    try:
        comm = jhetcc.init(**place | {"timeout": timeout})
    finally:
        Nic.address_from = kept
    work_until(comm, lambda: True, at_least=5)
    found = paths_to(comm, 1 - comm.rank)
    comm.barrier()
    comm.close()
    return found


def test_a_nic_that_cannot_be_reached_at_the_start(pools):
    """C090, C103: the rest is used, and the log says what is not there."""
    running = pools(1, 1).start(case_unreachable, ["127.0.0.3"], world=False, options=TWO)
    outcomes = running.finish()
    for outcome in outcomes:
        assert [path["state"] for path in outcome.get()].count("healthy") == 2
    assert "lo 127.0.0.3 here and 127.0.0.1 of process 0: connect: Connection refused" in outcomes[1].output
    assert "begins as lost, and it is tried on" in outcomes[1].output
    assert "process 1: it did not call" in outcomes[0].output


def case_without_spare():
    """Process 1 reaches one address of process 0 only, from one of its own."""
    kept = Nic.address_from
    Nic.address_from = lambda self, own: kept(self, own) if self.host == own.host == "127.0.0.2" else "127.0.0.1:9"
    try:
        comm = jhetcc.init(**here() | {"timeout": 20})
    finally:
        Nic.address_from = kept
    work_until(comm, lambda: True, at_least=3)
    found = states(comm, 1 - comm.rank)
    comm.barrier()
    comm.close()
    return found


def test_a_rank_without_a_spare_path_is_named_at_the_start(pools):
    """C106: a warning says which ranks lack one."""
    for outcome in pools(1, 1).start(case_without_spare, world=False, options=TWO).finish():
        assert outcome.get().count("healthy") == 1
        assert f"no spare path to rank {1 - outcome.index} at the start" in outcome.output


def threads_and_children():
    tasks = os.listdir("/proc/self/task")
    children = [pathlib.Path(f"/proc/self/task/{task}/children").read_text().split() for task in tasks]
    names = sorted(pathlib.Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in tasks)
    return names, sorted(itertools.chain.from_iterable(children))


def case_counted(comm):
    peer = 1 - comm.rank
    turn = work_until(comm, both_used(comm, peer))
    before = threads_and_children()
    if comm.rank == 0:
        assert close_sockets("127.0.0.3") > 0
    turn = work_until(comm, lambda: any(path["losses"] for path in paths_to(comm, peer)), turn)
    turn = work_until(comm, lambda: set(states(comm, peer)) == {"healthy"}, turn)
    work_until(comm, both_used(comm, peer, moved(comm, peer)), turn)
    return before, threads_and_children()


def test_a_path_that_is_lost_and_comes_back_leaves_no_thread_or_process_behind(pools):
    for outcome in pools(1, 1).start(case_counted, options=TWO).finish():
        before, after = outcome.get()
        assert before == after and "jhetcc-paths" in before[0] and before[1] == []


def test_no_path_at_all_is_an_error(pools):
    """C103: process 0 tells addresses where nobody listens: the caller names it, them, the attempts and the time."""
    running = pools(1, 1).start(case_unreachable, ["127.0.0.2", "127.0.0.3"], 3, world=False, options=TWO)
    called, caller = running.finish()
    for outcome in (called, caller):
        with pytest.raises(jhetcc.OperationTimeoutError):
            outcome.get()
        assert outcome.error.code == "init_timeout" and outcome.seconds < 20
    text = str(caller.error)
    assert caller.error.ranks == (0,) and "process 1 (" in text and "and process 0 (" in text, text
    elapsed = int(re.search(r"gave up after (\d+) s", text).group(1))
    assert 2 <= elapsed < 20, text
    for host in ("127.0.0.2", "127.0.0.3"):
        tried = re.search(rf"calling 127.0.0.1:9 from {host}, (\d+) attempts?: .*?Connection refused", text)
        assert tried and int(tried.group(1)) >= 2, text


def case_until_lost(comm):
    turn = work_until(comm, both_used(comm, 1 - comm.rank))
    say("working")
    error, seconds = until_error(lambda: exact(comm, turn, True))
    return type(error).__name__, error.ranks, seconds


def test_a_peer_that_is_killed_is_lost_at_once(pools):
    """No path is waited for where every one is closed by the peer's host."""
    running = pools(1, 1).start(case_until_lost, options=TWO)
    running.expect(0, 1, word="working")
    begun = time.monotonic()
    running.signal(1, signal.SIGKILL)
    (survivor,) = running.finish(0)
    assert survivor.get()[:2] == ("PeerLostError", (1,))
    assert time.monotonic() - begun < 5


def test_a_peer_that_is_stopped_is_no_lost_path(pools):
    """Its host goes on answering, though its buffers are full and it is asked ever more rarely."""
    running = pools(1, 1).start(case_stopped, 12, options=TWO)
    running.expect(0, 1, word="working")
    for seconds in (5, *[0.4] * 8):
        running.signal(1, signal.SIGSTOP)
        running.linger(seconds)
        running.signal(1, signal.SIGCONT)
        running.linger(0.2)
    for outcome in running.finish():
        assert outcome.get() == ([0] * 4, 0)


def case_report(comm):
    work_until(comm, lambda: True, at_least=3)
    say("here")
    hear()
    told = jhetcc.status()
    return told["process"]["pid"], sorted(report.running())


def test_the_command_asks_the_jobs_of_this_host(pools):
    running = pools(1, 1).start(case_report, options=TWO)
    running.expect(0, 1, word="here")

    def ask(*words):
        return subprocess.run(
            [sys.executable, "-P", "-m", "jhetcc", "status", *words],
            env=environment(1, {}), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    told = [ask("--json", "--pid", str(running.pid(k))) for k in range(2)]
    shown = ask("--pid", str(running.pid(0)))
    nobody = ask("--pid", "1")
    for k in range(2):
        running.tell(k)
    outcomes = [outcome.get() for outcome in running.finish()]
    for k, answer in enumerate(told):
        assert answer.returncode == 0, answer.stderr
        one = json.loads(answer.stdout)
        assert one["process"]["number"] == k and one["process"]["pid"] == running.pid(k)
        assert [path["state"] for path in one["ranks"][0]["rails"][str(1 - k)]] == ["healthy"] * 4
        assert outcomes[k][0] == running.pid(k) and running.pid(k) in outcomes[k][1]
    assert shown.returncode == 0 and "process 0 of 2" in shown.stdout and "to rank 1: 4 paths" in shown.stdout
    assert "1 healthy  lo 127.0.0.3 -> 127.0.0.3" in shown.stdout
    assert nobody.returncode == 1 and "process 1 is none" in nobody.stderr
