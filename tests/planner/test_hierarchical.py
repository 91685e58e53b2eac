# SPDX-License-Identifier: Apache-2.0
"""Hierarchical schedules are proven for all operations, clusters, borders and chunk sizes; what they promise of bits."""

from __future__ import annotations

import dataclasses
import itertools
import time

import numpy as np
import pytest
from cluster_drawing import VENDORS, clusters, clusters_of, layout_of
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_drawing import chunk_sizes, operations

from jhetcc.planner import HIERARCHICAL, ClusterShape, Layout, Nic, Vendor, candidates, plan, why_unfit
from jhetcc.schedule import (
    NATIVE_BROADCAST,
    NATIVE_REDUCE,
    RECV,
    REDUCE,
    SEND,
    Operation,
    Schedule,
    ScheduleError,
    check_marked_graph,
    numpy_dtype,
    pipelined_seconds,
    prove,
    run,
)

LAWS = settings(max_examples=60, deadline=None, derandomize=True)
NAMES = ("hierarchical", "hierarchical_border")
# Shapes that the open implementation handles wrongly: a border received on top of its own partial sum, two clusters met
# in one rank, or one-rank clusters took a detour through the host.
VECTORS = [(1, 1), (2, 1), (1, 3), (2, 2), (2, 8), (3, 2), (2, 1, 1), (2, 2, 2), (2, 8, 8), (3, 3, 3), (4, 4, 4, 4)]
CASES = [(sizes, vendor) for sizes in VECTORS for vendor in VENDORS if sum(sizes) < 10 or vendor is VENDORS[2]]


def vector(sizes, vendor=None) -> tuple[ClusterShape, ...]:
    where = [number for number, size in enumerate(sizes) for _ in range(size)]
    return clusters_of(where, vendors=[vendor] * len(sizes))


@LAWS
@given(st.data())
def test_every_operation_is_proven_over_any_clusters(data):
    made = data.draw(clusters())
    size = sum(shape.size for shape in made)
    operation = data.draw(operations(size, count_max=30))
    chunk = data.draw(chunk_sizes(operation))
    for name in NAMES:
        if why_unfit(name, operation, layout_of(made)) is None:
            schedules = plan(operation, layout_of(made), algorithm=name, chunk_bytes=chunk).expand_all()
            prove(operation, schedules, uniform=True)
            check_marked_graph(dict(enumerate(schedules)))
            assert all(Schedule.from_bytes(s.to_bytes()) == s for s in schedules)


@LAWS
@given(st.data())
def test_own_schedules_need_nothing_new_of_the_engine(data):
    made = data.draw(clusters(native=False))
    size = sum(shape.size for shape in made)
    operation = data.draw(operations(size, count_max=30))
    if why_unfit("hierarchical", operation, layout_of(made)) is None:
        for s in plan(operation, layout_of(made), algorithm="hierarchical").expand_all():
            assert s.kind.max(initial=0) < NATIVE_REDUCE and not s.circles


ALL = [
    Operation("psum", "f32", (13,)),
    Operation("pmean", "f64", (13,)),
    Operation("pmax", "f32", (13,)),
    Operation("pmin", "i32", (13,)),
    Operation("pprod", "f32", (13,)),
    Operation("reduce", "f32", (13,), op="max", root=1),
    Operation("all_gather", "b24", (5,)),
    Operation("gather", "f32", (5,), root=1),
    Operation("broadcast", "f16", (13,), root=1),
    Operation("ppermute", "f32", (13,), perm=((0, 1), (1, 0))),
    Operation("barrier"),
]


@pytest.mark.parametrize(("sizes", "vendor"), CASES, ids=lambda value: getattr(value, "name", str(value)))
def test_shapes_that_others_get_wrong(sizes, vendor):
    size = sum(sizes)
    whole = [
        Operation("psum_scatter", "f32", (size, 3), op="min"),
        Operation("all_to_all", "f32", (size, 2)),
        Operation("scatter", "f32", (size, 2), root=size - 1),
    ]
    layout, chunk = layout_of(vector(sizes, vendor)), 24 if size < 7 else 72
    for operation in (*ALL, *whole):
        assert why_unfit("hierarchical", operation, layout) is None
        for name in NAMES:
            if why_unfit(name, operation, layout) is None:
                prove(operation, plan(operation, layout, algorithm=name, chunk_bytes=chunk).expand_all(), uniform=True)


ODD_NICS = ((Nic(3e9), Nic(4e9)), (Nic(7e9), Nic(1e9), Nic(5e9)))


@pytest.mark.parametrize("vendor", [None, VENDORS[1]], ids=["own", "native"])
@pytest.mark.parametrize("sizes", [(1, 4), (5, 2)], ids=str)
def test_shares_that_end_inside_blocks(sizes, vendor):
    size = sum(sizes)
    where = [number for number, many in enumerate(sizes) for _ in range(many)]
    layout = layout_of(clusters_of(where, ODD_NICS, [vendor] * 2))
    whole = [
        Operation("psum_scatter", "i32", (size, 11)),
        Operation("all_to_all", "i32", (size, 11)),
        Operation("scatter", "i32", (size, 11), root=0),
        Operation("scatter", "i32", (6, 5), root=size - 1, lengths=(1, 0, 2, 3, *[0] * (size - 4))),
        Operation("gather", "i32", (3, 5), root=1, lengths=(1, 0, 2, 3, *[1] * (size - 4))),
        Operation("all_gather", "i32", (3, 5), lengths=(1, 0, 2, 3, *[1] * (size - 4))),
    ]
    for operation in (*ALL, *whole):
        prove(operation, plan(operation, layout, algorithm="hierarchical", chunk_bytes=48).expand_all(), uniform=True)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("hierarchical", (2, 2)),
        ("hierarchical_border", (2, 2)),
        ("hierarchical", (2, 2, 2)),
        ("hierarchical", (2, 1, 3)),
    ],
)
def test_a_native_plan_is_pipelined_through_all_three_stages(name, sizes):
    """The order of native calls lets later chunks be reduced while earlier ones are between the clusters, two or more."""
    operation, layout = Operation("psum", "f32", (4 << 10,)), layout_of(vector(sizes, VENDORS[2]))
    schedules = dict(enumerate(plan(operation, layout, algorithm=name, chunk_bytes=256).expand_all()))
    together = {rank: s.replace(circle_lag=np.zeros_like(s.circle_lag)) for rank, s in schedules.items()}

    def total(made) -> float:
        return pipelined_seconds(made, lambda s, step: float(s.length[step] > 0 and s.kind[step] != SEND))

    assert total(schedules) < 0.7 * total(together)


@pytest.mark.parametrize("name", ["psum", "all_gather", "broadcast", "reduce", "psum_scatter"])
@pytest.mark.parametrize("vendor", [None, VENDORS[1]], ids=["own", "native"])
def test_offsets_and_lengths_have_64_bits(name, vendor):
    count, sizes = 2**32 + 7, (2, 1)
    shape = (3, count) if name == "psum_scatter" else (count,)
    keys = {"broadcast": {"root": 1}, "reduce": {"root": 1, "op": "sum"}}.get(name, {})
    operation = Operation(name, "u8", shape, **keys)
    for s in plan(operation, layout_of(vector(sizes, vendor)), algorithm="hierarchical").expand_all():
        written = sorted(
            (int(s.target_offset[k]), int(s.target_offset[k] + s.length[k]))
            for k in range(s.steps)
            if s.target_buffer[k] == 1 and s.length[k] and s.kind[k] != SEND
        )
        assert Schedule.from_bytes(s.to_bytes()) == s
        at = 0
        for begin, end in dict.fromkeys(written):  # a native broadcast's root names in place what it has written
            assert begin == at
            at = end
        assert at == s.output_bytes and max(s.iterations(k) for k in range(s.steps)) < 2**31


def _terms(operation, made, name, chunk):
    schedules = plan(operation, layout_of(made), algorithm=name, chunk_bytes=chunk).expand_all()
    return prove(operation, schedules, uniform=True).terms


@LAWS
@given(st.data())
def test_bits_depend_neither_on_chunks_nor_on_shares(data):
    made = data.draw(clusters(size_max=7))
    size = sum(shape.size for shape in made)
    operation = data.draw(operations(size, ("psum", "pmean", "psum_scatter", "reduce"), count_max=24))
    other = tuple(
        dataclasses.replace(
            shape, nics=tuple(Nic(data.draw(st.sampled_from([1e9, 3e9])), shape.ranks[:1]) for _ in range(2))
        )
        for shape in made
    )
    for name in NAMES:
        if why_unfit(name, operation, layout_of(made)) is None:
            first = _terms(operation, made, name, operation.itemsize * 5)
            assert _terms(operation, made, name, operation.itemsize) == first
            assert _terms(operation, made, f"{name}_sequential", None) == first
            assert _terms(operation, other, name, operation.itemsize * 3) == first


def test_equal_terms_tell_orders_apart():
    operation = Operation("psum", "f32", (6,))
    one = _terms(operation, vector((2, 2)), "hierarchical", None)
    two = _terms(operation, clusters_of([0, 1, 0, 1]), "hierarchical", None)
    assert one != two
    assert one[0][0] == (
        "reduce",
        True,
        *(("reduce", False, ("input", a, 0), ("input", a + 1, 0)) for a in (0, 2)),
    )


@LAWS
@given(st.data())
def test_numbers_are_right_and_alike(data):
    made = data.draw(clusters(size_max=6))
    size = sum(shape.size for shape in made)
    operation = Operation(data.draw(st.sampled_from(["psum", "pmax", "pmin", "pmean"])), "f64", (11,))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    inputs = [rng.integers(-9, 9, 11).astype(np.float64) for _ in range(size)]
    total = {"psum": np.sum, "pmean": np.sum, "pmax": np.max, "pmin": np.min}[operation.name](inputs, axis=0)
    want = total / size if operation.name == "pmean" else total
    for name in NAMES:
        if why_unfit(name, operation, layout_of(made)) is None:
            schedules = plan(operation, layout_of(made), algorithm=name, chunk_bytes=16).expand_all()
            for seed, in_place in itertools.product((None, 3), (False, True)):
                found = run(operation, schedules, inputs, seed=seed, in_place=in_place)
                assert all(output.tobytes() == want.tobytes() for output in found.values())


@pytest.mark.parametrize("vendor", [None, VENDORS[1]], ids=["own", "native"])
@pytest.mark.parametrize("root", range(4))
@pytest.mark.parametrize("name", ["gather", "scatter", "broadcast", "reduce"])
def test_every_root_gets_and_gives_what_flat_algorithms_do(name, root, vendor):
    """C125: nothing of the second cluster is lost, whichever rank is the root and wherever it is a border or not."""
    operation = Operation(name, "i32", (4, 3), root=root, op="sum" if name == "reduce" else None)
    inputs = [np.arange(12, dtype=np.int32) + 100 * rank for rank in range(4)]
    flat = run(operation, plan(operation, Layout.local(4), algorithm="direct").expand_all(), inputs)
    for where, nics in itertools.product(([0, 0, 1, 1], [0, 1, 0, 1]), ((), ((Nic(1e9),), (Nic(1e9),)))):
        layout = layout_of(clusters_of(where, nics, [vendor, vendor]))
        found = run(operation, plan(operation, layout, algorithm="hierarchical").expand_all(), inputs)
        assert all(found[rank].tobytes() == flat[rank].tobytes() for rank in range(4))


def test_two_vendors_in_one_host_are_two_clusters():
    operation = Operation("pmax", "f32", (20,))
    layout = Layout((0, 0, 0, 0), clusters=clusters_of([0, 1, 0, 1], vendors=[Vendor("a"), Vendor("b")]))
    schedules = plan(operation, layout, algorithm="hierarchical").expand_all()
    prove(operation, schedules)
    assert {circle.members for s in schedules for circle in s.circles} == {(0, 2), (1, 3)}


def test_signed_zeros_and_infinities_survive_for_nothing_is_filled_in():
    operation = Operation("psum", "f32", (3,))
    layout = layout_of(vector((2, 2), VENDORS[1]))
    for name in NAMES:
        schedules = plan(operation, layout, algorithm=name).expand_all()
        found = run(operation, schedules, [np.float32([-0.0, np.inf, 1])] * 4)
        assert all(output.tobytes() == np.float32([-0.0, np.inf, 4]).tobytes() for output in found.values())


def test_members_of_a_border_communicator_hold_one_contribution_each():
    operation = Operation("psum", "f32", (60,))
    made = vector((4, 3, 3), VENDORS[2])
    for s in plan(operation, layout_of(made), algorithm="hierarchical_border").expand_all():
        crossing = [circle for circle in s.circles if len(circle.members) == 3 and circle.lag == 1]
        own = next(shape for shape in made if s.rank in shape.ranks)
        assert crossing and all(set(circle.members) <= set(own.ranks) for circle in crossing)
        assert not (s.kind == REDUCE).any()  # the libraries do all of it


def test_a_library_that_does_not_promise_equal_bits_is_followed_by_a_broadcast():
    operation = Operation("psum", "f32", (12,))
    alike, unlike = (plan(operation, layout_of(vector((3,), v)), algorithm="hierarchical") for v in VENDORS[1:])
    assert (alike.expand(0).kind >= NATIVE_REDUCE).sum() == 1
    prove(operation, alike.expand_all(), uniform=True)
    with pytest.raises(ScheduleError, match="another order"):
        prove(operation, alike.expand_all())
    prove(operation, unlike.expand_all())


def test_one_cluster_with_a_library_is_left_to_it():
    for operation, steps in (
        (Operation("all_gather", "f32", (5,)), 3),
        (Operation("broadcast", "f32", (5,), root=1), 1),
    ):
        made = plan(
            operation, layout_of(clusters_of([0, 0, 0], [(Nic(1e9), Nic(1e9))], VENDORS[2:])), algorithm="hierarchical"
        )
        prove(operation, made.expand_all())
        s = made.expand(0)
        assert (s.kind == NATIVE_BROADCAST).sum() == steps and not s.length[s.kind < NATIVE_REDUCE].any()


def test_what_a_library_refuses_is_reduced_by_our_own_schedule():
    layout = layout_of(vector((2, 2), VENDORS[2]))
    for dtype, native in (("f32", False), ("f64", True)):
        s = plan(Operation("pprod", dtype, (8,)), layout, algorithm="hierarchical").expand(0)
        assert bool((s.kind >= NATIVE_REDUCE).any()) == native


@pytest.mark.parametrize(
    ("operation", "made", "name", "why"),
    [
        (Operation("send", "f32", (3,), to=1, tag=0), vector((1, 1)), "hierarchical", "straight"),
        (Operation("psum", "f32", (3,)), None, "hierarchical", "no clusters"),
        (Operation("psum", "f32", (3,)), vector((2,)), "hierarchical", "flat"),
        (Operation("gather", "f32", (3,), root=0), vector((2,), VENDORS[1]), "hierarchical", "flat"),
        (Operation("psum", "bf16", (3,)), vector((2, 1)), "hierarchical", "rounded once"),
        (Operation("psum", "f32", (3,)), vector((2, 2)), "hierarchical_border", "no library"),
        (Operation("psum", "f32", (3,)), vector((1, 1), VENDORS[1]), "hierarchical_border", "fewer ranks"),
        (Operation("psum_scatter", "f32", (3, 1)), vector((2, 1), VENDORS[1]), "hierarchical_border", "fewer ranks"),
        (Operation("all_gather", "f32", (3,)), vector((2, 2), VENDORS[1]), "hierarchical_border", "reduced"),
        (Operation("psum", "f32", (3,)), vector((2,), VENDORS[1]), "hierarchical_border", "one cluster"),
        (Operation("all_to_all", "f32", (400, 1)), vector((200, 200)), "hierarchical", "too many"),
    ],
)
def test_unfit_clusters_are_refused_with_the_reason(operation, made, name, why):
    size = 2 if made is None else sum(shape.size for shape in made)
    layout = Layout.local(size) if made is None else layout_of(made)
    with pytest.raises(ValueError, match=why):
        plan(operation, layout, algorithm=name)
    assert name not in [found for found, _ in candidates(operation, layout)]


def test_low_precision_is_rounded_once_by_us_and_as_a_library_does():
    operation = Operation("psum", "bf16", (9,))
    prove(operation, plan(operation, layout_of(vector((1, 1, 1))), algorithm="hierarchical").expand_all())
    made = clusters_of([0, 0, 1], vendors=[Vendor("a")])
    prove(operation, plan(operation, layout_of(made), algorithm="hierarchical").expand_all())


_NO_MAX = Vendor("sums", refuses=tuple((op, dtype) for op in ("max", "min") for dtype in ("f16", "bf16")))
_LIBRARIES = {
    "none": (None, None),
    "all": (VENDORS[1], VENDORS[2]),
    "without max": (_NO_MAX, _NO_MAX),
    "one has it": (_NO_MAX, VENDORS[2]),
    "one library": (VENDORS[2], None),
}


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("libraries", _LIBRARIES)
@pytest.mark.parametrize("sizes", [(2, 2), (3, 2)], ids=str)
def test_a_max_of_low_precision_rounds_nothing_and_takes_any_method(sizes, libraries, dtype):
    """By a library that has it, else by our own schedule inside the cluster; with the bits of one step over everybody."""
    size, vendors = sum(sizes), _LIBRARIES[libraries]
    where = [number for number, many in enumerate(sizes) for _ in range(many)]
    layout = layout_of(clusters_of(where, vendors=vendors))
    numbers = np.random.default_rng(size).normal(size=(size, 3 * size)).astype(np.float32)
    numbers[0, ::5], numbers[1, ::4], numbers[-1, ::7] = np.nan, -0.0, 0.0
    inputs = list(numbers.astype(numpy_dtype(dtype)))
    for operation in (
        Operation("pmax", dtype, (3 * size,)),
        Operation("pmin", dtype, (3 * size,)),
        Operation("reduce", dtype, (3 * size,), op="max", root=1),
        Operation("psum_scatter", dtype, (size, 3), op="min"),
    ):
        flat = run(operation, plan(operation, Layout.local(size)).expand_all(), inputs)
        assert why_unfit("hierarchical", operation, layout) is None
        tried = [name for name in HIERARCHICAL if why_unfit(name, operation, layout) is None]
        assert len(tried) == 4 or libraries != "all"
        for name in tried:
            schedules = plan(operation, layout, algorithm=name, chunk_bytes=4).expand_all()
            prove(operation, schedules, uniform=True)
            native = {s.rank for s in schedules if (s.kind >= NATIVE_REDUCE).any()}
            assert native == {r for r in range(size) if _has_max(vendors[where[r]], dtype)}, name
            found = run(operation, schedules, inputs)
            assert all(found[rank].tobytes() == flat[rank].tobytes() for rank in range(size)), (operation, name)
    summed = Operation("psum", dtype, (3 * size,))
    assert (why_unfit("hierarchical", summed, layout) is None) == (None not in vendors)


def _has_max(vendor, dtype) -> bool:
    return vendor is not None and ("max", dtype) not in vendor.refuses


def test_a_thousand_ranks_cost_each_of_them_its_own_rows():
    nics = tuple(Nic(25e9) for _ in range(8))
    halves = (ClusterShape(tuple(range(0, 1024, 2)), nics, Vendor("a")), ClusterShape(tuple(range(1, 1024, 2)), nics))
    layout = Layout(tuple(rank // 8 for rank in range(1024)), clusters=halves)
    for name in HIERARCHICAL:
        operation = Operation("psum", "f32", (64 << 20,))
        if why_unfit(name, operation, layout) is None:
            rows = [plan(operation, layout, algorithm=name).expand(rank).steps for rank in (0, 1, 511, 1023)]
            assert max(rows) < 20_000 and min(rows) < 100
            head = plan(operation, layout, algorithm=name).expand(halves[0].borders[0])
            assert len(head.dependency_step) < 10 * head.steps
    s = plan(Operation("psum_scatter", "f32", (1024, 1 << 12)), layout, algorithm="hierarchical").expand(1000)
    assert s.steps < 3 * 1024


_LARGE = [
    Operation("psum", "f32", (64 << 20,)),
    Operation("pmean", "bf16", (64,)),
    Operation("reduce", "f16", (1 << 20,), op="max", root=5),
    Operation("psum_scatter", "f32", (1024, 1 << 12)),
    Operation("all_gather", "f32", (1 << 14,)),
    Operation("gather", "f32", (64,), root=3),
    Operation("broadcast", "f32", (1 << 20,), root=5),
    Operation("all_to_all", "f32", (1024, 1 << 8)),
    Operation("barrier"),
]


@pytest.mark.parametrize("number", range(len(_LARGE)), ids=lambda number: _LARGE[number].name)
@pytest.mark.parametrize("many", [2, 8])
def test_a_thousand_ranks_are_planned_in_under_a_second(number, many):
    """Of processor time, by nothing that was planned before: the choice and the schedule of a rank that is a border."""
    operation = _LARGE[number]
    for algorithm in (None, "hierarchical"):
        nics = tuple(Nic(25e9 + number + (algorithm is None)) for _ in range(128 // many))
        vendors = [Vendor("a") if k % 2 else None for k in range(many)]
        shapes = tuple(ClusterShape(tuple(range(k, 1024, many)), nics, vendors[k]) for k in range(many))
        layout = Layout(tuple(rank // 8 for rank in range(1024)), clusters=shapes)
        if algorithm is None or why_unfit(algorithm, operation, layout) is None:
            begin = time.process_time()
            plan(operation, layout, algorithm=algorithm).expand(shapes[1].borders[0])
            assert time.process_time() - begin < 1, algorithm


def test_messages_of_a_piece_have_streams_of_their_own():
    """Two messages to one peer in one operation must not wait for each other."""
    operation = Operation("gather", "f32", (40,), root=0)
    made = clusters_of([0, 0, 1, 1, 1], nics=[(Nic(1e9),), (Nic(1e9),)])
    for s in plan(operation, layout_of(made), algorithm="hierarchical").expand_all():
        ends = [(int(s.kind[k]), int(s.peer[k]), int(s.stream[k])) for k in range(s.steps) if s.kind[k] in (SEND, RECV)]
        assert len(set(ends)) == len(ends)
