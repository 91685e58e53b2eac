# SPDX-License-Identifier: Apache-2.0
"""Measured costs: who measures with whom, one profile from many measurements, in real processes, kept, refused, used."""

import json
import logging
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from process_worker import here, joined_by_loopback

import jhetcc
from jhetcc import cli
from jhetcc.errors import BadArgumentError
from jhetcc.planner import Library, Link, Profile
from jhetcc.schedule import SEND, Builder, Operation, Plan, check_marked_graph, prove
from jhetcc.world import calibration, measuring, members, state, world

NAN = float("nan")


# What is measured, and what is made of it


@pytest.mark.parametrize(
    ("hosts", "processes", "near", "far", "alone", "crowd"),
    [
        ([0], [0], (), (), (0,), ()),
        ([0, 0, 0], [0, 0, 0], ((0, 1),), (), (0,), ()),
        ([0, 0, 0, 0], [0, 0, 1, 2], ((0, 2),), (), (0,), ()),
        ([0, 1, 0, 1], [0, 1, 2, 3], ((0, 2), (1, 3)), (((0, 1),),), (0, 1), ()),
        ([0, 1, 2, 3], [0, 1, 2, 3], (), (((0, 1), (2, 3)), ((1, 2),), ((3, 0),)), (0, 1, 2, 3), (0, 1, 2, 3)),
        (
            [0, 1, 2, 2, 0],
            [0, 1, 2, 3, 4],
            ((0, 4), (2, 3)),
            (((0, 1),), ((1, 2),), ((2, 0),)),
            (0, 1, 2),
            (0, 1, 2, 3, 4),
        ),
    ],
)
def test_who_measures(hosts, processes, near, far, alone, crowd):
    assert calibration.pairs_of(hosts, processes) == calibration.Pairs(near, far, alone, crowd)


def test_nobody_measures_twice_at_a_time():
    pairs = calibration.pairs_of([rank // 3 for rank in range(30)], range(30))
    for turn in (pairs.near, *pairs.far):
        ranks = [rank for pair in turn for rank in pair]
        assert len(set(ranks)) == len(ranks)
    assert len(pairs.near) == 10 and sum(len(turn) for turn in pairs.far) == 10
    assert pairs.crowd == (0, 1, 3, 4, 6, 7, 9, 10)  # of four hosts


def test_medians_do_not_depend_on_who_measured_and_are_measured_ones():
    rows = np.full((3, 11), NAN)
    rows[:, 0] = [3e-6, 1.23456e-6, NAN]
    rows[:, 5] = [2e-11, 4e-11, 3e-11]
    rows[1, 8:] = [1e-5, 2e-10, 3e-10]
    profile = calibration.combined(rows, ["mpi"])
    assert profile.shm == Link(1.23e-6, Profile().shm.beta) and profile.copy == 3e-11
    assert profile.tcp == Profile().tcp and profile.reduce == Profile().reduce
    assert profile.libraries == (("mpi", Library(1e-5, 2e-10, 3e-10)),)
    assert calibration.combined(rows[[2, 0, 1]], ["mpi"]) == profile


@pytest.mark.parametrize("slow", [0, 1, 2, 3])
def test_the_slowest_link_between_hosts_counts_wherever_it_is(slow):
    rows = np.full((4, 8), NAN)
    rows[:, 2], rows[:, 3], rows[slow, 3] = [3e-5, 1e-5, 2e-5, 9e-5], 1e-9, 5e-9
    assert calibration.combined(rows, []).tcp == Link(2e-5, 5e-9)


def test_hosts_whose_links_differ_have_their_own_costs():
    """A slow host between two fast ones, who measured each other, too; small differences are noise."""
    rows = np.full((5, 8), NAN)
    rows[:, 3] = [1.0004e-9, NAN, 4e-9, 1.1e-9, 3.9e-9]  # processes 0 and 1 share a host, as 2 and 4 do
    hosts = [0, 0, 1, 2, 1]
    assert calibration.combined(rows, [], hosts).hosts == (1e-9, 3.9e-9, 1.1e-9)
    assert calibration.combined(rows, [], hosts).tcp.beta == 4e-9
    rows[2, 3] = rows[4, 3] = 1.2e-9
    assert calibration.combined(rows, [], hosts).hosts == ()
    rows[0, 3] = NAN  # nothing is known of its link
    assert calibration.combined(rows, [], hosts).hosts == ()


def test_a_crowd_costs_what_links_lose_by_it_and_no_less_than_nothing():
    rows = np.full((3, 8), NAN)
    rows[:, 3], rows[:, 7] = 4e-9, [4.4e-9, 5e-9, NAN]
    assert calibration.combined(rows, []).crowd == 1.1
    rows[:, 7] = 3.9e-9
    assert calibration.combined(rows, []).crowd == 1.0


def test_noise_makes_no_cost_of_nothing_or_less():
    assert measuring.slope((2, 10.0), (12, 30.0)) == 2.0
    assert measuring.slope((2, 10.0), (12, 9.0)) == pytest.approx(9.0 / 12 / 4)


def test_what_disturbed_a_measurement_is_told_and_the_lower_costs_are_kept():
    quiet = Profile(shm=Link(2e-6, 1e-10), libraries=(("mpi", Library(1e-5, 2e-10, 3e-10)),))
    disturbed = Profile(shm=Link(1.9e-6, 5e-10), libraries=(("mpi", Library(9e-5, 2.1e-10, 3e-10)),))
    for one, other in ((quiet, disturbed), (disturbed, quiet)):
        found, unsteady = calibration.steadier(one, other)
        assert found == Profile(shm=Link(1.9e-6, 1e-10), libraries=quiet.libraries)
        assert [text.rsplit(maxsplit=3)[0] for text in unsteady] == ["libraries mpi alpha", "shm beta"]
    assert calibration.steadier(quiet, quiet) == (quiet, ())


def test_links_of_hosts_that_were_measured_twice():
    alike = Profile(tcp=Link(5e-5, 1e-9))
    slow = Profile(tcp=Link(5e-5, 4e-9), hosts=(1.1e-9, 4e-9, 1.2e-9))
    assert calibration.steadier(slow, slow) == (slow, ())
    found, unsteady = calibration.steadier(slow, alike)  # where they looked alike once, they are
    assert (found.tcp.beta, found.hosts) == (1e-9, ())
    assert unsteady == ("tcp beta 4e-09 and 1e-09", "host 1 4e-09 and 1e-09")
    assert calibration.steadier(alike, slow)[0] == found


@pytest.mark.parametrize("is_disturbed", [False, True])
def test_the_command_says_that_it_was_disturbed(monkeypatch, capsys, is_disturbed):
    costs = iter((1e-10, 4e-10 if is_disturbed else 1.2e-10))
    monkeypatch.setattr(calibration, "measure", lambda *arguments: Profile(copy=next(costs)))
    assert cli.main(["profile"]) == 0
    seen = capsys.readouterr()
    assert Profile.from_json(seen.out).copy == 1e-10
    assert ("measured twice, and these costs differ: copy 1e-10 and 4e-10. Other work" in seen.err) == is_disturbed
    assert is_disturbed or not seen.err


def written(operation, size, write, chunk=16):
    made = []
    for rank in range(size):
        b = Builder(Plan(operation, size, "by hand", chunk, lambda plan, rank: None), rank)
        write(b)
        made.append(b.finish())
    return made


def home(b):
    """What a rank sends to itself."""
    part = b.input_bytes // b.size
    b.copy(b.output(b.rank * part), b.input(b.rank * part), part)


def test_schedules_of_measurements_do_what_they_are_named_for():
    exchange = Operation("ppermute", "b8", (70,), perm=((0, 1), (1, 0)))
    prove(exchange, written(exchange, 2, measuring.exchange), in_place=False)
    for operation in (Operation("broadcast", "b8", (70,), root=0), Operation("reduce", "f32", (20,), op="sum", root=0)):
        prove(operation, written(operation, 3, measuring.native_calls), in_place=False)
    everywhere = Operation("all_to_all", "b8", (5, 14))
    prove(everywhere, written(everywhere, 5, lambda b: measuring.abroad(b, range(5)) or home(b)), in_place=False)
    some = written(everywhere, 5, lambda b: measuring.abroad(b, [0, 0, 1, 2, 2]))
    assert [int((s.kind == SEND).sum()) for s in some] == [3, 3, 4, 3, 3]
    rounds = written(Operation("ppermute", "b8", (56,), perm=()), 2, lambda b: measuring.ping(b, 7, 8))
    check_marked_graph(dict(enumerate(rounds)))
    assert [int((s.kind == SEND).sum()) for s in rounds] == [4, 3]
    # Each message but the first waits for the one before.
    assert all(len(s.dependencies(step)) == (s.rank + step > 0) for s in rounds for step in range(1, s.steps))


# In processes


def case_measured(hosts, cache):
    """Joins with measured costs; returns them, what the communicators plan with, and whether anything was measured."""
    me = here()["process_id"]
    kept, measure, ran = members.host_identity, calibration.measure, []
    members.host_identity = world.host_identity = lambda: f"host {hosts[me]}"
    calibration.measure = lambda *arguments: ran.append(1) or measure(*arguments)
    os.environ.update(JHETCC_PROFILE="auto", JHETCC_CACHE_DIR=str(cache))
    try:
        with joined_by_loopback():
            comm = jhetcc.init(**here() | {"timeout": 30})
        child = comm.split(0, name="child")
        layouts = {one.layout.profile for one in (comm, state.communicator("islands"), child)}
        every = [np.arange(5001, dtype=np.float32) + rank for rank in range(comm.size)]
        mine = [every[rank] for rank in child.local_ranks]
        for got in child.all_reduce(mine):
            assert got.tobytes() == np.sum(every, 0).tobytes()
        profile = comm._world.profile
        assert layouts == {profile} and set(state.names()) == {"world", "islands", "child"}
        comm.close()
        return profile, len(ran)
    finally:
        members.host_identity = world.host_identity = kept
        calibration.measure = measure
        del os.environ["JHETCC_PROFILE"], os.environ["JHETCC_CACHE_DIR"]


def run_measured(pool, *arguments):
    values = [outcome.get() for outcome in pool.attempt(case_measured, *arguments, world=False)]
    assert len(set(values)) == 1, values
    return values[0]


def test_all_ranks_hold_what_was_measured_once(pools, tmp_path):
    """Two processes of one host and one of another: both kinds of links are measured; a second world takes what was kept."""
    pool, cache = pools(1, 1, 1), tmp_path / "made" / "when needed"
    profile, ran = run_measured(pool, "aab", cache)
    built_in = Profile()
    assert ran == 1 and profile.crowd == 1.0  # two hosts are none
    for name in ("shm", "tcp", "copy", "reduce"):
        assert getattr(profile, name) != getattr(built_in, name), (name, profile)
    for cost in (*vars(profile.shm).values(), *vars(profile.tcp).values(), profile.copy, profile.reduce):
        assert 0 < cost < 1e-1
    [path] = cache.iterdir()
    assert Profile.from_json(path.read_text()) == profile
    assert run_measured(pool, "aab", cache) == (profile, 0)
    # Another arrangement is another topology.
    other, ran = run_measured(pool, "aaa", cache)
    assert ran == 1 and other.tcp == built_in.tcp and len(list(cache.iterdir())) == 2


def test_three_hosts_are_a_crowd(pools, tmp_path):
    profile, _ = run_measured(pools(1, 1, 1), "abc", tmp_path)
    assert 1.0 <= profile.crowd < 100


def test_what_was_kept_and_is_damaged_is_measured_again(pools, tmp_path):
    pool = pools(2, 1)
    profile, ran = run_measured(pool, "aa", tmp_path)
    [path] = tmp_path.iterdir()
    path.write_text(profile.to_json()[:-20])
    values = pool.attempt(case_measured, "aa", tmp_path, world=False)
    assert [outcome.get()[1] for outcome in values] == [1, 1] and ran == 1
    assert "measuring again: profile: not JSON" in values[0].output
    assert Profile.from_json(path.read_text()) == values[0].get()[0]


def case_lost():
    """Process 1 ends while everybody measures; the others hear of it, and can join another world."""
    me, measure = here()["process_id"], calibration.measure

    def end(*arguments):
        if me == 1:
            os._exit(7)
        return measure(*arguments)

    calibration.measure, calibration._path = end, lambda world: None
    os.environ["JHETCC_PROFILE"] = "auto"
    with pytest.raises(jhetcc.PeerLostError):
        jhetcc.init(**here() | {"timeout": 30})
    del os.environ["JHETCC_PROFILE"]
    comm = jhetcc.init(num_processes=1, devices=1)
    comm.close()
    return True


def test_a_process_that_ends_meanwhile(pools):
    pool = pools(1, 1, 1)
    outcomes = pool.attempt(case_lost, world=False)
    assert [outcome.code for outcome in outcomes] == [None, 7, None]
    assert [outcomes[index].get() for index in (0, 2)] == [True, True]
    pool.kill()  # its processes were changed


def test_what_cannot_be_kept_is_still_used(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("JHETCC_PROFILE", "auto")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JHETCC_CACHE_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "jhetcc"):
        comm = jhetcc.init(num_processes=1, devices=2)
    try:
        assert comm.layout.profile.shm != Profile().shm
        assert "cannot keep what was measured" in caplog.text
    finally:
        comm.close()


def test_nothing_is_measured_unless_asked(monkeypatch):
    """C144: by default, plans and so bits are the same in every launch."""

    class Refused:
        def __init__(self, *arguments):
            raise AssertionError("measured")

    monkeypatch.setattr(calibration, "Room", Refused)
    comm = jhetcc.init(num_processes=1, devices=2)
    try:
        assert comm.layout.profile == Profile()
    finally:
        comm.close()


def case_from_file(paths):
    me = here()["process_id"]
    os.environ["JHETCC_PROFILE"] = "costs.json"
    kept = calibration._of_file
    calibration._of_file = lambda path: kept(paths[me])
    try:
        comm = jhetcc.init(**here() | {"timeout": 30})
        text = comm.explain("psum(f32[262144])")
        total = comm.all_reduce(np.full(262144, 1 + comm.rank, np.float32))
        comm.close()
        return text, float(total[0])
    finally:
        calibration._of_file = kept
        del os.environ["JHETCC_PROFILE"]


def test_plans_follow_the_file(pools, tmp_path):
    """Where a message costs a second and a byte nothing, all is sent in one shot."""
    chosen = []
    for number, profile in enumerate((Profile(shm=Link(1.0, 1e-15)), Profile(shm=Link(1e-9, 1e-6)))):
        path = tmp_path / f"{number}.json"
        path.write_text(profile.to_json())
        for outcome in pools(1, 1, 1).attempt(case_from_file, [str(path)] * 3, world=False):
            text, total = outcome.get()
            assert total == 6.0
        chosen.append(next(line.split()[1] for line in text.splitlines() if line.startswith("*")))
    assert chosen[0] == "one_shot" != chosen[1]


def test_files_that_differ_or_lack_are_refused_on_all(pools, tmp_path):
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text(Profile().to_json())
    other.write_text(Profile(copy=1e-9).to_json())
    for second, named in ((other, "has other costs"), (tmp_path / "none.json", "cannot read it")):
        outcomes = pools(1, 1, 1).attempt(case_from_file, [str(one), str(second), str(one)], world=False)
        for index, outcome in enumerate(outcomes):
            with pytest.raises(BadArgumentError) as caught:
                outcome.get()
            told = str(caught.value)
            if index != 1:
                assert f"process 1 {named}" in told and caught.value.code == "settings_differ", told
        assert "process 0 has other costs" in told or "No such file" in str(outcomes[1].error) or second == other


def test_the_command(tmp_path):
    """Under the launcher; its file is one that plans can be made with."""
    path = tmp_path / "costs.json"
    ours = {name: text for name, text in os.environ.items() if not name.startswith("JHETCC_")}
    command = [sys.executable, "-P", "-m", "jhetcc", "launch", "-n", "2", "-m", "jhetcc", "profile", "--out", str(path)]
    # Elsewhere: beside the sources, programs of a job would import those.
    done = subprocess.run(command, capture_output=True, text=True, env=ours, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0 and not done.stdout, done.stdout + done.stderr
    profile = Profile.from_json(path.read_text())
    assert profile.shm != Profile().shm and profile.tcp == Profile().tcp
    where = pathlib.Path(path).parent / "nowhere" / "costs.json"
    done = subprocess.run(
        [*command[:4], "profile", "--out", str(where)],
        capture_output=True,
        text=True,
        env=ours,
        timeout=120,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if "measured twice" not in line]
    assert done.returncode == 2 and len(said) == 1 and "No such file or directory" in said[0], done.stderr
    done = subprocess.run([*command[:4], "profile"], capture_output=True, text=True, env=ours, timeout=120, check=True)
    assert json.loads(done.stdout)["form"] == 1
    plan = [*command[:4], "plan", "psum", "64MiB", "--ranks", "4", "--profile", str(path)]
    assert subprocess.run(plan, env=ours, capture_output=True, timeout=120, check=False).returncode == 0
