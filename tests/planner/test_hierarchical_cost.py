# SPDX-License-Identifier: Apache-2.0
"""What hierarchical plans are predicted to cost, which one is chosen, the profile as one value, and what explain says."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from cluster_drawing import VENDORS, clusters_of, layout_of

from jhetcc.planner import ClusterShape, Layout, Library, Link, Nic, Profile, Vendor, plan, rated, split_sizes
from jhetcc.planner.choice import basis
from jhetcc.planner.hierarchical_cost import chunk_sizes, seconds, sequential_chunk
from jhetcc.planner.report import explain
from jhetcc.schedule import RECV, REDUCE, Operation, pipelined_seconds

BIG = Operation("psum", "f32", (16 << 20,))
PROFILE = Profile(
    shm=Link(1e-6, 1e-10),
    tcp=Link(30e-6, 2e-9),
    reduce=5e-11,
    libraries=(("a", Library(1e-5, 1e-10, 2e-10)), ("b", Library(2e-5, 3e-10, 4e-10))),
)


def two(sizes=(4, 4), vendors=(), profile=None, nics=()) -> Layout:
    where = [number for number, size in enumerate(sizes) for _ in range(size)]
    layout = layout_of(clusters_of(where, nics, vendors))
    return layout if profile is None else dataclasses.replace(layout, profile=profile)


def predicted(layout: Layout, chunk: int, name: str = "hierarchical", operation: Operation = BIG) -> float:
    return seconds(operation, layout, basis(name, operation, layout), chunk)


def test_two_single_ranks_cost_what_their_link_and_sum_cost():
    layout = two((1, 1), profile=PROFILE)
    nbytes, tcp = BIG.nbytes, PROFILE.tcp
    # Each rank owns a half: contributions cross both ways at once, are added, and results cross back. Messages of over
    # 2 MiB are offered and asked for before their bytes come.
    wait = 3 * tcp.alpha
    half = nbytes / 2
    once = 2 * (wait + half * tcp.beta) + 2 * half * PROFILE.reduce
    assert predicted(layout, 64 << 20) == pytest.approx(once)
    # In 32 chunks the link is the slowest thing; contributions and results share it.
    chunked = 2 * (tcp.alpha + half / 32 * tcp.beta) + 2 * half / 32 * PROFILE.reduce
    chunked += 31 * 2 * (half / 32 * tcp.beta + tcp.alpha / 4)  # a quarter of the latency is the sender's own work
    assert predicted(layout, 1 << 20) == pytest.approx(chunked)
    # Within one host the cores that add are those that move the bytes.
    near = dataclasses.replace(layout, hosts=(0, 0), profile=dataclasses.replace(PROFILE, shm=tcp))
    assert predicted(near, 1 << 20) == pytest.approx(chunked + 31 * 2 * half / 32 * PROFILE.reduce)


def test_a_crowd_of_hosts_slows_what_all_send_to_all_and_nothing_else():
    free = Profile(shm=Link(0, 0), tcp=Link(0, 1e-9), copy=0, reduce=0)
    crowded = dataclasses.replace(free, crowd=1.25)
    gather, spread = Operation("all_gather", "f32", (1 << 20,)), Operation("broadcast", "f32", (1 << 20,), root=0)
    for operation, sizes, times in (
        (BIG, (1, 1), 1),
        (BIG, (2, 2, 2), 1.25),
        (gather, (2, 2, 2), 1.25),
        (spread, (2, 2, 2), 1),
    ):
        alone, together = (predicted(two(sizes, profile=one), 64 << 20, operation=operation) for one in (free, crowded))
        assert together == pytest.approx(times * alone), (operation, sizes)


def test_links_inside_a_cluster_do_both_stages_at_once_where_their_directions_differ():
    """Two hosts a cluster: with one border the contributions come to it while results leave it; with two, both go both ways."""
    free = dataclasses.replace(PROFILE, tcp=Link(0, 1e-9), copy=0, reduce=0)
    for borders, stages in ((1, 1), (2, 2)):
        nics = tuple(tuple(Nic(100e9, (rank,)) for rank in ranks[:borders]) for ranks in ((0, 1), (2, 3)))
        layout = dataclasses.replace(two((2, 2), (), free, nics), hosts=(0, 1, 2, 3))
        at_most = BIG.nbytes / borders * 1e-9 * stages
        assert predicted(layout, 64 << 10) == pytest.approx(at_most, rel=0.02), borders


def test_the_first_chunk_takes_the_longest_path_of_the_real_schedule():
    layout = two((1, 1), profile=PROFILE)
    schedules = plan(BIG, layout, algorithm="hierarchical_sequential").expand_all()

    def cost(s, step):
        nbytes = int(s.length[step])
        if s.kind[step] == RECV:
            return 3 * PROFILE.tcp.alpha + nbytes * PROFILE.tcp.beta  # offered, asked for, sent
        return 2 * nbytes * PROFILE.reduce if s.kind[step] == REDUCE else 0.0

    real = pipelined_seconds(dict(enumerate(schedules)), cost)
    assert predicted(layout, 64 << 20) == pytest.approx(real)


def test_native_stages_cost_what_their_library_costs():
    layout = two((2, 2), (Vendor("a"), Vendor("b")), PROFILE, ((Nic(1e12),), (Nic(1e12),)))
    slower = predicted(layout, 64 << 20)
    a, b = (PROFILE.library(name) for name in "ab")
    per_byte = a.reduce + a.move, b.reduce + b.move
    assert slower >= BIG.nbytes * max(per_byte)
    faster = dataclasses.replace(PROFILE, libraries=(("a", a), ("b", a)))
    assert predicted(dataclasses.replace(layout, profile=faster), 64 << 20) < slower


def test_calls_of_libraries_wait_until_all_have_agreed():
    """Messages to the border ranks and back, and rounds among these; the stages inside send none themselves."""
    late = dataclasses.replace(PROFILE, shm=Link(PROFILE.shm.alpha + 1e-3, PROFILE.shm.beta))
    vendors = (Vendor("a"), Vendor("b"))
    more = [predicted(two((2, 2), vendors, profile), 64 << 20) for profile in (PROFILE, late)]
    assert more[1] - more[0] == pytest.approx(2e-3)
    alone = [dataclasses.replace(two((4,), vendors[:1]), profile=profile) for profile in (PROFILE, late)]
    more = [predicted(layout, 64 << 20) for layout in alone]
    assert more[1] - more[0] == pytest.approx(2e-3)  # two rounds among four


def test_three_balanced_stages_pipeline_by_more_than_half():
    # Both stages inside the clusters together take as long as what crosses: at best the pipeline takes half.
    library = Library(1e-6, 1 / 10e9, 1 / 10e9)
    profile = Profile(tcp=Link(5e-6, 1 / 5e9), libraries=(("a", library),))
    layout = two((2, 2), (Vendor("a"), Vendor("a")), profile, ((Nic(10e9),), (Nic(10e9),)))
    found = {one.name: one.seconds for one in rated(BIG, layout)}
    assert found["hierarchical_sequential"] > 1.5 * found["hierarchical"]


def test_pipelining_pays_for_two_clusters_and_the_chunk_size_has_an_optimum():
    layout = two(profile=PROFILE)
    made = basis("hierarchical", BIG, layout)
    found = {chunk: predicted(layout, chunk) for chunk in chunk_sizes(BIG, made)}
    best = min(found, key=found.__getitem__)
    assert found[best] < predicted(layout, sequential_chunk(BIG, made))
    assert plan(BIG, layout, algorithm="hierarchical").chunk_bytes == best
    slow = dataclasses.replace(layout, profile=dataclasses.replace(PROFILE, tcp=Link(3e-3, 2e-9)))
    assert plan(BIG, slow, algorithm="hierarchical").chunk_bytes > best


def test_a_pipeline_is_taken_where_it_is_predicted_to_win_by_more_than_its_messages_may_cost():
    """Inside the clusters all is nearly free, then as dear as the link: nothing, then much to gain by overlap."""
    link = Link(0, 2e-9)
    for beta, pipelined in ((1e-13, False), (2e-9, True)):
        profile = dataclasses.replace(PROFILE, tcp=link, shm=Link(0, beta), copy=0, reduce=0)
        layout = two(profile=profile)
        found = [one for one in rated(BIG, layout) if one.name in ("hierarchical", "hierarchical_sequential")]
        gain = max(one.seconds for one in found) / min(one.seconds for one in found)
        assert (gain > 1.03) == pipelined, (beta, gain)
        assert found[0].name == ("hierarchical" if pipelined else "hierarchical_sequential")
        if not pipelined:  # though it is predicted to be faster, if by a little
            assert found[1].seconds < found[0].seconds


def test_hierarchy_is_chosen_where_links_between_clusters_are_slow_and_not_where_messages_are_small():
    slow = Profile(tcp=Link(50e-6, 1 / 1e9))
    assert plan(BIG, two(profile=slow)).algorithm == "hierarchical"
    assert plan(Operation("psum", "f32", (4,)), two(profile=slow)).algorithm in ("one_shot", "halving_doubling")
    alike = Layout.local(8)
    assert [one.name for one in rated(BIG, dataclasses.replace(alike, clusters=(ClusterShape(tuple(range(8))),)))] == [
        one.name for one in rated(BIG, alike)
    ]


def test_flat_algorithms_are_costed_with_the_measured_nics():
    nics = (Nic(6e9), Nic(2e9))
    layout = Layout((0, 0, 1, 1, 2), clusters=(ClusterShape((0, 1, 2, 3), nics), ClusterShape((4,), (Nic(9e9),))))
    assert layout.tcp == Link(Profile().tcp.alpha, 1 / 4e9)  # two hosts share 8 GB/s
    assert layout.link(0, 2) == layout.tcp and layout.link(0, 1) == Profile().shm


def test_no_clusters_plan_as_before():
    assert plan(BIG, Layout.local(4)).detail == ""
    assert plan(BIG, Layout.local(4)) == plan(BIG, dataclasses.replace(Layout.local(4), clusters=split_sizes([4])))


def test_hashes_tell_clusters_and_shares_apart():
    rates = ((Nic(1e9), Nic(2e9)), (Nic(2e9), Nic(2e9)))
    plans = [
        plan(BIG, layout, algorithm="hierarchical", chunk_bytes=1 << 20)
        for layout in (
            two((2, 2)),
            two((3, 1)),
            two((2, 2), nics=rates),
            two((2, 2), nics=rates[::-1]),
            two((2, 2), VENDORS[1:2]),
            layout_of(clusters_of([0, 1, 0, 1])),
        )
    ]
    assert len({p.hash for p in plans}) == len(plans)
    assert len({s.plan_hash for s in plans[0].expand_all()}) == 1


def test_plans_do_not_depend_on_the_process():
    code = (
        "from jhetcc.planner import *; from jhetcc.schedule import Operation;"
        "v = Vendor('x', refuses=(('sum', 'f32'), ('max', 'f64')));"
        "l = Layout((0, 0, 1), clusters=split_sizes([2, 1], [v]));"
        "p = plan(Operation.parse('psum(f64[70])'), l, algorithm='hierarchical');"
        "print(p.hash, *(s.to_bytes().hex() for s in p.expand_all()))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1] and len(runs[0].split()) == 4


def test_profiles_are_values_with_a_text_and_a_hash():
    assert Profile.from_json(PROFILE.to_json()) == PROFILE != Profile()
    assert Profile.from_json('{"form": 1}') == Profile()
    unlike = dataclasses.replace(PROFILE, hosts=(1e-9, 2e-9), crowd=1.2)
    assert Profile.from_json(unlike.to_json()) == unlike
    assert PROFILE.hash == Profile.from_json(json.dumps(json.loads(PROFILE.to_json()), indent=3)).hash
    others = [dataclasses.replace(PROFILE, copy=1e-9), dataclasses.replace(PROFILE, libraries=()), Profile()]
    assert len({one.hash for one in (PROFILE, *others)}) == 4
    assert PROFILE.library("a") == Library(1e-5, 1e-10, 2e-10) and PROFILE.library("c") == Library()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[]", "form"),
        ('{"form": 2}', "form"),
        ('{"form": 1, "magic": 1}', "no cost 'magic'.*tcp"),
        ('{"form": 1, "copy": -1}', "copy is -1"),
        ('{"form": 1, "copy": true}', "copy is True"),
        ('{"form": 1, "copy": 1e999}', "copy is inf"),
        ('{"form": 1, "tcp": 1}', "tcp is not an object"),
        ('{"form": 1, "tcp": {"alpha": 1}}', "alpha and beta"),
        ('{"form": 1, "hosts": 1e-9}', "hosts is not a list"),
        ('{"form": 1, "hosts": [1e-9, 0]}', "hosts is 0, not seconds"),
        ('{"form": 1, "crowd": 0.9}', "crowd is 0.9, not a number from 1 on"),
        ('{"form": 1, "libraries": []}', "libraries"),
        ('{"form": 1, "libraries": {"a": {"gamma": 1}}}', "a: no cost 'gamma'"),
    ],
)
def test_wrong_profiles_are_refused(text, why):
    with pytest.raises(ValueError, match=why):
        Profile.from_json(text)


def test_explain_names_borders_links_stages_and_bounced_bytes():
    nics = ((Nic(2e9, (1,), name="eth0"), Nic(1e9, (0,), name="eth1")), (Nic(3e9, direct=False),))
    layout = two((2, 2), (Vendor("a"), None), None, nics)
    report = explain(BIG, layout, algorithm="hierarchical")
    assert [(one.cluster, one.rank, one.nic) for one in report.borders] == [
        (0, 1, "eth0"),
        (0, 0, "eth1"),
        (1, 2, "NIC 0"),
    ]
    assert [one.share for one in report.borders] == pytest.approx([2 / 3, 1 / 3, 1])
    crossing = sum(one.nbytes for one in report.links or ())
    assert crossing == 2 * BIG.nbytes == report.bounced_bytes
    assert report.stages[0] == "cluster 0: 2 ranks by a" and "our own schedule" in report.stages[1]
    text = report.text()
    assert text.count("predicted") == len(report.candidates) == len(rated(BIG, layout))
    assert "* hierarchical " in text and f"bounced through host memory: {2 * BIG.nbytes} bytes" in text
    assert "border of cluster 0: rank 1 by eth0, 66.7% of its bytes" in text and "costs: built-in" in text
    measured = explain(BIG, dataclasses.replace(layout, profile=PROFILE))
    assert f"costs: profile {PROFILE.hash:016x}" in measured.text()


def test_explain_counts_what_flat_plans_send_between_clusters():
    layout = two((1, 1))
    report = explain(Operation("psum", "f32", (8,)), layout, algorithm="one_shot")
    assert [(one.source, one.nbytes) for one in report.links or ()] == [("cluster 0", 32), ("cluster 1", 32)]
    assert report.borders == () and report.bounced_bytes == 0
    assert explain(Operation("psum", "f32", (8,)), Layout.local(65)).links is None


@pytest.mark.parametrize("name", ["gather", "scatter", "ppermute", "all_to_all", "broadcast", "all_gather", "barrier"])
def test_every_move_has_a_prediction_and_an_explanation(name):
    keys = {"gather": {"root": 1}, "scatter": {"root": 1}, "broadcast": {"root": 1}, "ppermute": {"perm": ((0, 4),)}}
    dims = (8, 1000) if name in ("scatter", "all_to_all") else (1000,)
    operation = Operation(name) if name == "barrier" else Operation(name, "f32", dims, **keys.get(name, {}))
    report = explain(operation, two((4, 4), VENDORS[1:]), algorithm="hierarchical")
    assert report.candidates[0].seconds > 0 and "border" in report.text()
    assert (sum(one.nbytes for one in report.links or ()) > 0) == (name != "barrier")
