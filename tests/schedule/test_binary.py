# SPDX-License-Identifier: Apache-2.0
"""The binary form: round trips, the blob that the C++ test holds, refusals; printing and equality."""

from __future__ import annotations

import pathlib
import re
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jhetcc.planner import ClusterShape, Layout, Vendor, plan
from jhetcc.schedule import WHOLE, Builder, Operation, Plan, Schedule

MEAN = plan(Operation("pmean", "f32", (70,)), Layout.local(3), algorithm="two_shot", chunk_bytes=16)
CLUSTERS = (ClusterShape((0, 2), vendor=Vendor("pretend")), ClusterShape((1,)))
NATIVE = plan(
    Operation("psum", "f32", (70,)), Layout((0, 0, 0), clusters=CLUSTERS), algorithm="hierarchical", chunk_bytes=16
)


@pytest.mark.parametrize(("name", "schedule"), [("pmean_two_shot", MEAN.expand(1)), ("psum_native", NATIVE.expand(0))])
def test_the_blobs_of_the_cpp_test_are_what_the_planner_makes(name, schedule):
    path = pathlib.Path(__file__).parents[2] / f"cc/tests/schedule/{name}.inc"
    assert "".join(re.findall(r'"([0-9a-f]+)"', path.read_text())) == schedule.to_bytes().hex()


def test_round_trip_equality_and_hash():
    first, again = MEAN.expand(1), Schedule.from_bytes(MEAN.expand(1).to_bytes())
    assert first == again and hash(first) == hash(again) and first is not again
    assert first != MEAN.expand(2) and first != "something else"
    assert struct.unpack_from("<I", first.to_bytes())[0] == int.from_bytes(b"JHS1", "little")


def test_printing_names_every_step():
    lines = str(MEAN.expand(1)).splitlines()
    assert len(lines) == 1 + MEAN.expand(1).steps
    assert "output[96]" in lines[5] and "final" in lines[5] and "ring 4" in lines[3]
    assert str(MEAN) == "pmean(f32[70]) on 3 ranks by two_shot, chunks of 16 bytes"
    assert "rank 1 of 3" in repr(MEAN.expand(1))


def test_no_such_rank():
    for rank in (-1, 3):
        with pytest.raises(ValueError, match=f"rank {rank}"):
            MEAN.expand(rank)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.data())
def test_any_damage_is_refused_or_decodes_to_something_valid(data):
    blob = bytearray(MEAN.expand(1).to_bytes())
    if data.draw(st.booleans()):
        del blob[data.draw(st.integers(0, len(blob) - 1)) :]
        with pytest.raises(ValueError, match="schedule"):
            Schedule.from_bytes(bytes(blob))
        return
    for _ in range(data.draw(st.integers(1, 3))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    try:
        schedule = Schedule.from_bytes(bytes(blob))
    except ValueError as error:
        assert str(error).startswith("schedule")
    else:
        assert schedule.to_bytes() == bytes(blob)


def test_too_many_bytes():
    with pytest.raises(ValueError, match="too many"):
        Schedule.from_bytes(MEAN.expand(1).to_bytes() + b"\0")


def _built(add, dtype="f32", name="psum") -> Schedule:
    b = Builder(Plan(Operation(name, dtype, (16,)), 2, "by hand", 64, lambda plan, rank: None), 0)
    add(b)
    return Schedule.from_bytes(b.finish().to_bytes())


@pytest.mark.parametrize(
    ("add", "why"),
    [
        (lambda b: b.send(0, b.input(), 4), r"step 0 \(send\): peer 0"),
        (lambda b: b.send(2, b.input(), 4), r"step 0 \(send\): peer 2"),
        (lambda b: b.send(1, b.input(4), 64), "source"),
        (lambda b: (b.send(1, b.input(), 4), b.send(1, b.input(), 4)), r"step 1 \(send\): stream 0 has a step"),
        (lambda b: b.recv(1, b.input(), 4), "target is the input"),
        (lambda b: b.recv(1, b.output(-4), 4), "target"),
        (lambda b: b.copy(b.output(), b.input(), -4), "length -4"),
        (lambda b: b.copy(b.output(), b.input(), 4, after=[0]), "earlier step"),
        (lambda b: b.copy(b.output(), b.input(), 4, after=[(0, WHOLE)]), "earlier step"),
        (lambda b: b.copy(b.output(), b.input(), 4, after=[(3, 1)]), "names no step"),
        (lambda b: b.reduce(b.output(), [], 4), "sources are 0"),
        (lambda b: b.reduce(b.output(2), [b.input()], 4), "target"),
        (lambda b: b.reduce(b.output(), [b.input()], 6), "length"),
        (lambda b: b.fill(b.output(), 65), "target"),
    ],
)
def test_bad_steps_name_the_step_and_the_field(add, why):
    with pytest.raises(ValueError, match=why):
        _built(add)


def test_what_only_moves_is_not_reduced():
    with pytest.raises(ValueError, match="cannot be reduced"):
        _built(lambda b: b.reduce(b.output(), [b.input()], 4), name="all_gather")


def test_a_dependency_with_a_distance_may_name_a_later_step_and_itself():
    schedule = _built(lambda b: b.fill(b.output(), 64, after=[(0, 1), (1, 2)]) or b.copy(b.output(), b.input(), 64))
    assert schedule.dependencies(0) == [(0, 1), (1, 2)]
