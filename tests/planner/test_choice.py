# SPDX-License-Identifier: Apache-2.0
"""The planner's choice: forced and unfit algorithms, chunk sizes, agreement of hashes, cost of planning."""

from __future__ import annotations

import ast
import dataclasses
import pathlib
import subprocess
import sys
import time

import pytest

import jhetcc.planner
from jhetcc.planner import ALGORITHMS, ClusterShape, Layout, Link, Profile, candidates, plan
from jhetcc.planner.common import chunk_bytes, shards
from jhetcc.schedule import Operation, prove

BIG = Operation("psum", "f32", (16 << 20,))
SMALL = Operation("psum", "f32", (1024,))


def test_small_goes_in_one_shot_and_large_in_two_or_round():
    assert plan(SMALL, Layout.local(2)).algorithm == "one_shot"
    assert plan(BIG, Layout.local(2)).algorithm == "two_shot"
    names = [name for name, _ in candidates(BIG, Layout(tuple(i // 8 for i in range(64))))]
    assert names.index("ring") < names.index("two_shot") < names.index("one_shot")


def test_a_tree_costs_what_its_busiest_host_sends():
    operation, profile = Operation("broadcast", "f32", (16 << 20,), root=0), Profile(Link(0, 0), Link(0, 1e-9), copy=0)
    for hosts, copies in (((0, 0, 1, 1), 1), ((0, 1, 0, 1), 2), ((0, 1, 2, 3), 2), ((0, 0, 0, 0), 0)):
        seconds = dict(candidates(operation, Layout(hosts, profile)))["tree"]
        assert seconds == pytest.approx(copies * operation.nbytes * 1e-9, rel=0.05), hosts


def test_between_hosts_only_a_very_long_message_waits_for_its_request():
    alpha, layout = 1e-3, Layout((0, 1), Profile(tcp=Link(1e-3, 0), shm=Link(1e-3, 0), copy=0, reduce=0))
    assert [layout.wait(True, size) for size in (0, 2 << 20, (2 << 20) + 1)] == [alpha, alpha, 3 * alpha]
    assert layout.wait(False, 4 << 20) == alpha
    for name, keys in (
        ("psum", {}),
        ("all_gather", {}),
        ("broadcast", {"root": 0}),
        ("reduce", {"op": "sum", "root": 0}),
    ):
        one, within = "one_shot" if name == "psum" else "direct", Layout((0, 0), layout.profile)
        found = [
            dict(candidates(Operation(name, "f32", (count,), **keys), where))[one]
            for count in (4 << 10, (4 << 10) + 2, 4 << 20)
            for where in (layout, within)
        ]
        assert found == pytest.approx(found[:1] * 6), name


def test_each_host_has_a_link_of_its_own():
    """Where the hosts' links differ, an operation takes what the busiest of them needs."""
    profile = Profile(tcp=Link(0, 4e-9), shm=Link(0, 0), copy=0, reduce=0, hosts=(1e-9, 2e-9, 4e-9))
    nbytes, hosts = 4 << 20, (0, 0, 1, 2)
    layout = Layout(hosts, profile)

    def seconds(name, method, hosts=hosts, crowd=1.0, **keys):
        dims = (1 << 20,) if name != "psum_scatter" else (len(hosts), (1 << 20) // len(hosts))
        where = Layout(hosts, dataclasses.replace(profile, crowd=crowd))
        return dict(candidates(Operation(name, "f32", dims, **keys), where))[method] / nbytes

    # From host 0 two copies leave, and one arrives at each of the others; from host 2 three leave.
    assert seconds("broadcast", "direct", root=0) == pytest.approx(4e-9)
    assert seconds("broadcast", "direct", root=3) == pytest.approx(3 * 4e-9)
    assert seconds("broadcast", "direct", (0, 0, 1, 1), root=0) == pytest.approx(2 * 2e-9)
    assert seconds("broadcast", "tree", (0, 0, 1, 1), root=0) == pytest.approx(2e-9)
    assert seconds("all_gather", "direct") == pytest.approx(3 * 4e-9)
    assert seconds("all_gather", "direct", (0, 0, 1)) == pytest.approx(2 * 2e-9)
    assert seconds("all_gather", "direct", crowd=1.5) == pytest.approx(3 * 4e-9 * 1.5)
    assert seconds("all_gather", "direct", (0, 0, 1), crowd=1.5) == pytest.approx(2 * 2e-9)
    assert seconds("all_gather", "ring", crowd=1.5) == seconds("all_gather", "ring")
    assert seconds("all_gather", "ring", (0, 1, 0, 1)) == pytest.approx(3 * 2 * 2e-9)
    assert seconds("psum", "halving_doubling", (0, 1, 1, 0)) == pytest.approx(2 * (1 / 2 + 1 / 4) * 2 * 2e-9)
    assert [layout.beta_of(host) for host in (0, 1, 2, 3)] == [1e-9, 2e-9, 4e-9, 4e-9]


def test_the_clusters_of_faster_links_reduce_more():
    """Two of three hosts have links twice as fast: the third reduces nothing, and all take as long as its link needs."""
    clusters = tuple(ClusterShape((2 * host, 2 * host + 1)) for host in range(3))
    free = {"shm": Link(0, 1e-15), "copy": 0, "reduce": 0}
    alike = Layout((0, 0, 1, 1, 2, 2), Profile(tcp=Link(0, 2e-9), **free), clusters)
    unlike = dataclasses.replace(alike, profile=Profile(tcp=Link(0, 2e-9), hosts=(1e-9, 1e-9, 2e-9), **free))
    found = [dict(candidates(BIG, layout))["hierarchical"] / BIG.nbytes for layout in (alike, unlike)]
    assert found == pytest.approx([4 / 3 * 2e-9, 2e-9], rel=0.02)


def test_candidates_are_sorted_and_named():
    found = candidates(BIG, Layout.local(4))
    assert [seconds for _, seconds in found] == sorted(seconds for _, seconds in found)
    assert {name for name, _ in found} == {"one_shot", "two_shot", "ring", "halving_doubling"}
    assert {name for name, _ in candidates(Operation("psum", "bf16", (64,)), Layout.local(4))} == {
        "one_shot",
        "two_shot",
    }


def test_a_max_of_low_precision_rounds_nothing_and_takes_any_method():
    for name, dtype in (("pmax", "f16"), ("pmin", "bf16")):
        found = {name for name, _ in candidates(Operation(name, dtype, (64,)), Layout.local(4))}
        assert found == {"one_shot", "two_shot", "ring", "halving_doubling"}
        for algorithm in found:
            operation = Operation(name, dtype, (9,))
            prove(operation, plan(operation, Layout.local(4), algorithm=algorithm).expand_all())


@pytest.mark.parametrize(
    ("operation", "size", "algorithm", "why"),
    [
        (SMALL, 2, "magic", "no algorithm 'magic'.*one_shot"),
        (SMALL, 2, "tree", "broadcast"),
        (SMALL, 2, "direct", "one_shot"),
        (SMALL, 3, "halving_doubling", "power of two"),
        (Operation("psum", "bf16", (64,)), 2, "ring", "rounded once"),
        (Operation("psum", "f16", (64,)), 2, "halving_doubling", "rounded once"),
        (Operation("psum", "f32", (3,)), 4, "ring", "fewer elements"),
        (Operation("psum", "f32", (3,)), 4, "halving_doubling", "fewer elements"),
        (Operation("all_gather", "f32", (0,)), 4, "ring", "no elements"),
        (Operation("all_gather", "f32", (2,), lengths=(1, 2)), 2, "ring", "equal"),
        (Operation("barrier"), 2, "two_shot", "all-reduce"),
    ],
)
def test_unfit_algorithms_are_refused_with_the_reason(operation, size, algorithm, why):
    with pytest.raises(ValueError, match=why):
        plan(operation, Layout.local(size), algorithm=algorithm)


def test_an_operation_that_does_not_fit_the_communicator_is_refused():
    with pytest.raises(ValueError, match="root=2"):
        plan(Operation("broadcast", "f32", (3,), root=2), Layout.local(2))
    with pytest.raises(ValueError, match="leading dimension must be 3"):
        plan(Operation("all_to_all", "f32", (2, 2)), Layout.local(3))


def test_chunk_sizes():
    assert chunk_bytes(BIG, Layout.local(2)) == 128 << 10
    assert chunk_bytes(BIG, Layout((0, 1))) == 1 << 20
    assert chunk_bytes(Operation("psum", "f32", (256 << 10,)), Layout.local(2)) == 512 << 10
    assert chunk_bytes(Operation("all_gather", "f32", (256 << 10,)), Layout.local(2)) == 1 << 20
    for size in (2, 3, 8, 64, 1024):
        for dtype in ("b24", "f32", "c128"):
            chunk = chunk_bytes(Operation("all_gather", dtype, (5,)), Layout.local(size))
            assert chunk % 64 == 0 and chunk % Operation("all_gather", dtype, (5,)).itemsize == 0
            assert chunk > 16 << 10
    for bad in (0, -4, 6):
        with pytest.raises(ValueError, match="chunk_bytes"):
            plan(SMALL, Layout.local(2), chunk_bytes=bad)


def test_shards_are_whole_elements_and_balanced():
    assert shards(Operation("psum", "f64", (11,)), 4) == [(0, 24), (24, 24), (48, 24), (72, 16)]
    assert shards(Operation("psum", "f32", (2,)), 3) == [(0, 4), (4, 4), (8, 0)]


def test_hashes_tell_plans_apart():
    layout = Layout.local(2)
    hashes = [
        plan(SMALL, layout).hash,
        plan(SMALL, layout, algorithm="two_shot").hash,
        plan(SMALL, layout, chunk_bytes=64).hash,
        plan(Operation("psum", "f32", (1025,)), layout).hash,
        plan(Operation("pmax", "f32", (1024,)), layout).hash,
        plan(SMALL, Layout.local(3)).hash,
    ]
    assert len(set(hashes)) == len(hashes)
    assert len({s.plan_hash for s in plan(SMALL, layout).expand_all()}) == 1
    send = plan(Operation("send", "f32", (4,), to=1, tag=2), layout)
    assert send.hash == plan(Operation("recv", "f32", (4,), from_=0, tag=2), layout).hash
    assert send.hash != plan(Operation("recv", "f32", (4,), from_=0, tag=3), layout).hash
    assert send.hash != plan(Operation("recv", "f32", (5,), from_=0, tag=2), layout).hash


def test_plans_do_not_depend_on_the_process():
    text = "psum(f32[70])"
    code = (
        "from jhetcc.planner import Layout, plan; from jhetcc.schedule import Operation;"
        f"p = plan(Operation.parse({text!r}), Layout((0, 0, 1)));"
        "print(p.hash, *(s.to_bytes().hex() for s in p.expand_all()))"
    )
    other = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    p = plan(Operation.parse(text), Layout((0, 0, 1)))
    assert other.stdout.split() == [str(p.hash), *(s.to_bytes().hex() for s in p.expand_all())]


def test_a_rank_of_a_large_job_is_small_and_quick():
    for algorithm in ALGORITHMS:
        operation = Operation("broadcast", "f32", (1 << 20,), root=5) if algorithm == "tree" else BIG
        operation = Operation("all_gather", "f32", (1 << 14,)) if algorithm == "direct" else operation
        begin = time.process_time()
        schedule = plan(operation, Layout.local(1024), algorithm=algorithm).expand(7)
        assert time.process_time() - begin < 1
        assert len(schedule.to_bytes()) < 1 << 20
        assert schedule.scratch_bytes < 256 << 20


def test_schedule_and_planner_import_only_what_they_may():
    allowed = {"numpy", "ml_dtypes", *sys.stdlib_module_names}
    for room, relatives in (("schedule", {1}), ("planner", {1, 2})):
        for path in (pathlib.Path(jhetcc.planner.__file__).parents[1] / room).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    assert {alias.name.split(".")[0] for alias in node.names} <= allowed, path
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    assert str(node.module).split(".")[0] in allowed, path
                elif isinstance(node, ast.ImportFrom):
                    assert node.level in relatives and (node.level == 1 or node.module in ("schedule", "topology")), (
                        path
                    )
