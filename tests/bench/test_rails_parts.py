# SPDX-License-Identifier: Apache-2.0
"""Parts of the bench of rails that need no network: what is said where a program is missing, rows, and what a failure is charged with."""

import pathlib
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "bench"))

import faults_train  # noqa: E402
import rails_costs  # noqa: E402


def bench(program):
    rows = []
    options = types.SimpleNamespace(bench_rail=str(program))
    return types.SimpleNamespace(options=options, row=lambda *row: rows.append(row)), rows


def test_a_program_that_was_not_built_is_named(tmp_path):
    with pytest.raises(SystemExit, match=r"bare: no .*bench_rail: cmake --preset release && cmake --build"):
        rails_costs.bare(bench(tmp_path / "bench_rail")[0])


def test_rows_of_the_program(tmp_path):
    program = tmp_path / "bench_rail"
    program.write_text('#!/bin/sh\necho \'{"name": "a", "value": 1.5, "unit": "us"}\'\n')
    program.chmod(0o755)
    one, rows = bench(program)
    rails_costs.bare(one)
    assert rows == [("bare", "a", 1.5, "us")]


def steps(*pairs):
    return [{"seconds": seconds} for seconds, _ in pairs], [count for _, count in pairs]


def test_only_steps_around_a_change_are_charged_to_it():
    """Four links take 1 s a step, three 1.5; the step in which one went took 3."""
    plain = [(1.0, 4)] * 5 + [(1.5, 3)] * 5 + [(1.0, 4)] * 5
    assert faults_train.around_changes(*steps(*plain), 4) == pytest.approx(0)
    slow = [*plain[:5], (3.0, 3), *plain[6:]]
    assert faults_train.around_changes(*steps(*slow), 4) == pytest.approx(1.5 / 17.5)
    far = [
        (1.0, 4),
        (9.0, 4),
        *plain[2:],
    ]  # a slow step of the machine, far from any change, makes all steady ones slower
    assert faults_train.around_changes(*steps(*far), 4) <= 0
