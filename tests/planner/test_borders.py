# SPDX-License-Identifier: Apache-2.0
"""Borders and shares: one border a NIC, nearest first; shares proven optimal against a linear program."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from cluster_drawing import clusters, clusters_of, layout_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from jhetcc.planner import ClusterShape, Nic, Vendor, plan
from jhetcc.planner.choice import basis
from jhetcc.planner.clusters import check_clusters
from jhetcc.planner.load import load
from jhetcc.planner.pieces import reduced
from jhetcc.planner.shares import cut, nic_shares, owner_shares, shares
from jhetcc.schedule import RECV, SEND, Operation

LAWS = settings(max_examples=60, deadline=None, derandomize=True)
RATES = st.lists(st.sampled_from([1, 2, 3, 5, 10, 25]), min_size=1, max_size=4)


def rated_cluster(first: int, rates, size: int = 2) -> ClusterShape:
    return ClusterShape(tuple(range(first, first + size)), tuple(Nic(rate * 1e9) for rate in rates))


def test_the_nearest_rank_is_the_border_and_ranks_serve_two_only_in_need():
    near = (Nic(1e9, near=(5, 3)), Nic(1e9, near=(5,)), Nic(1e9), Nic(1e9, near=(3,)))
    assert ClusterShape((3, 5, 8), near[:2]).borders == (5, 3)
    assert ClusterShape((3, 5, 8), near[:3]).borders == (5, 8, 3)
    assert ClusterShape((3, 5, 8), near).borders == (5, 8, 3, 3)
    assert ClusterShape((4,), (Nic(1e9), Nic(1e9))).borders == (4, 4)
    assert ClusterShape((3, 5)).borders == (3, 5)


@pytest.mark.parametrize("sizes", [(8, 4), (4, 8), (8, 1), (1, 3, 8)])
def test_unequal_sizes_keep_all_borders(sizes):
    made, first = [], 0
    for size in sizes:
        ranks = tuple(range(first, first + size))
        made.append(ClusterShape(ranks, tuple(Nic(25e9, near=(rank,)) for rank in ranks)))
        first += size
    work = load(
        Operation("psum", "f32", (1 << 16,)),
        basis("hierarchical", Operation("psum", "f32", (1 << 16,)), layout_of(tuple(made))),
    )
    used = {(cluster, nic) for cluster, nic, _ in (*work.out, *work.into)}
    assert used == {(number, nic) for number, size in enumerate(sizes) for nic in range(size)}


def test_one_rank_clusters_meet_straight():
    made = clusters_of([0, 1], vendors=[Vendor("a"), Vendor("b")])
    for s in plan(Operation("psum", "f32", (100,)), layout_of(made), algorithm="hierarchical").expand_all():
        messages = [step for step in range(s.steps) if s.kind[step] in (SEND, RECV)]
        assert sum(int(s.length[step]) for step in messages if s.kind[step] == SEND) == 400
        assert {int(s.peer[step]) for step in messages} == {1 - s.rank}


@LAWS
@given(RATES, RATES)
def test_shares_of_two_clusters_are_optimal(a, b):
    """Least time T so that x[i][j], which sums to one, loads no NIC beyond T times its bandwidth."""
    found = shares((rated_cluster(0, a), rated_cluster(2, b)))
    assert sum(share.end - share.begin for share in found) == 1 and len(found) <= len(a) + len(b) - 1
    load_a, load_b = Counter(), Counter()
    for share in found:
        load_a[share.nics[0]] += share.end - share.begin
        load_b[share.nics[1]] += share.end - share.begin
    ours = max(max(float(load_a[i]) / x for i, x in enumerate(a)), max(float(load_b[j]) / x for j, x in enumerate(b)))
    pairs = len(a) * len(b)
    rows = []
    for i, rate in enumerate(a):
        rows.append([float(k // len(b) == i) for k in range(pairs)] + [-rate])
    for j, rate in enumerate(b):
        rows.append([float(k % len(b) == j) for k in range(pairs)] + [-rate])
    best = linprog([0.0] * pairs + [1.0], rows, [0.0] * len(rows), [[1.0] * pairs + [0.0]], [1.0])
    assert ours == pytest.approx(best.fun)


@LAWS
@given(st.lists(st.integers(1, 40), min_size=2, max_size=5))
def test_owners_of_an_all_reduce_are_optimal(rates):
    """Least time T so that no cluster moves more than T times its bandwidth, over all ways to share the owning."""
    many = len(rates)
    owned = owner_shares([Fraction(rate) for rate in rates])
    assert sum(owned) == 1 and min(owned) >= 0
    ours = max(float(1 + (many - 2) * w) / rate for w, rate in zip(owned, rates, strict=True))
    rows = [[float((many - 2) * (i == c)) for i in range(many)] + [-rate] for c, rate in enumerate(rates)]
    best = linprog([0.0] * many + [1.0], rows, [-1.0] * many, [[1.0] * many + [0.0]], [1.0])
    assert ours == pytest.approx(best.fun)


@LAWS
@given(clusters(size_max=8), st.integers(0, 50))
def test_shares_carry_every_item_once_and_match_bandwidth(made, count):
    found = shares(made)
    assert [cut(count, share)[0] for share in found[1:]] == [cut(count, share)[1] for share in found[:-1]]
    assert cut(count, found[0])[0] == 0 and cut(count, found[-1])[1] == count
    for number, shape in enumerate(made):
        for nic, wanted in enumerate(nic_shares(shape)):
            assert sum(s.end - s.begin for s in found if s.nics[number] == nic) == wanted
        assert all(share.borders[number] == shape.borders[share.nics[number]] for share in found)


@LAWS
@given(st.lists(RATES, min_size=2, max_size=4))
def test_a_whole_all_reduce_loads_no_nic_longer_than_it_must(rates):
    made, first = [], 0
    for one in rates:
        made.append(rated_cluster(first, one))
        first += 2
    operation = Operation("psum", "u8", (10**6,))
    layout = layout_of(tuple(made))
    work = load(operation, basis("hierarchical", operation, layout))
    bytes_of = Counter()
    for (cluster, nic, _), nbytes in work.out.items():
        bytes_of[cluster, nic] += nbytes
    longest = max(nbytes / rates[cluster][nic] for (cluster, nic), nbytes in bytes_of.items())
    many, totals = len(rates), [sum(one) for one in rates]
    rows = [[float((many - 2) * (i == c)) for i in range(many)] + [-total] for c, total in enumerate(totals)]
    best = linprog([0.0] * many + [1.0], rows, [-1.0] * many, [[1.0] * many + [0.0]], [1.0])
    assert longest == pytest.approx(best.fun * 10**6, rel=1e-3)


def test_with_border_communicators_the_owner_of_an_element_does_not_depend_on_bandwidth():
    """Their libraries may differ, so bits would."""
    operation, owned = Operation("psum", "f32", (90,)), []
    for rates in ([1.0], [1.0, 5.0], [7.0, 3.0, 3.0]):
        made = tuple(
            ClusterShape(ranks, tuple(Nic(rate * (1 + number)) for rate in rates), Vendor("a"))
            for number, ranks in enumerate([(0, 1, 2), (3,), (4, 5, 6)])
        )
        for name in ("hierarchical", "hierarchical_border"):
            work = basis(name, operation, layout_of(made))
            pieces = reduced(operation, made, work.bandwidths)
            owned.append([piece.owner for piece in pieces for _ in range(piece.length)])
    assert owned[1] == owned[3] == owned[5] == [0] * 180 + [2] * 180
    assert owned[0] != owned[1]


def test_the_source_of_a_broadcast_sends_its_bytes_once():
    operation = Operation("broadcast", "f32", (100,), root=0)
    for nics in ((), (Nic(1e9, near=(1,)), Nic(1e9, near=(2,)))):
        made = (ClusterShape((0, 1, 2, 3), nics), ClusterShape((4, 5)))
        s = plan(operation, layout_of(made), algorithm="hierarchical").expand(0)
        inside = int(s.length[(s.kind == SEND) & (s.peer < 4)].sum())
        # To the borders once; and to three members the quarter that it is the border of itself.
        assert inside == (400 if nics else 300 + 3 * 100)


@LAWS
@given(clusters(size_max=6), st.integers(1, 60))
def test_the_load_is_what_the_schedules_send(made, count):
    if len(made) < 2:
        return
    operation = Operation("psum", "f32", (count,))
    layout = layout_of(made)
    work = load(operation, basis("hierarchical", operation, layout))
    where = {rank: number for number, shape in enumerate(made) for rank in shape.ranks}
    sent = Counter()
    for s in plan(operation, layout, algorithm="hierarchical").expand_all():
        for step in np.flatnonzero(s.kind == SEND).tolist():
            a, b = where[s.rank], where[int(s.peer[step])]
            sent[a, b] += int(s.length[step]) if a != b else 0
    counted = Counter()
    for (a, _, b, _), nbytes in work.links.items():
        counted[a, b] += nbytes
    assert +sent == +counted


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: ClusterShape(()), "one or more"),
        (lambda: ClusterShape((1, 0)), "ascending"),
        (lambda: ClusterShape((0,), (Nic(0),)), "bandwidth 0"),
        (lambda: ClusterShape((0,), (Nic(1e9, near=(1,)),)), "not all its ranks"),
        (lambda: check_clusters((ClusterShape((0, 1)), ClusterShape((1, 2))), 3), "each of 3 ranks once"),
    ],
)
def test_wrong_clusters_are_refused(make, why):
    with pytest.raises(ValueError, match=why):
        make()
