# SPDX-License-Identifier: Apache-2.0
"""Runs the bench on two ranks and tiny sizes: what it prints can be read by programs and is right. Speed is never asserted."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "bench"))

import cases  # noqa: E402
import rows  # noqa: E402
import targets  # noqa: E402

COLUMNS = {
    "peer": str, "mode": str, "operation": str, "bytes": int, "count": int, "dtype": str, "reduction": str, "ranks": int,
    "time_us": float, "algbw_gb_per_s": float, "busbw_gb_per_s": float, "wrong": int, "bound": float, "p50_us": float,
    "p99_us": float, "calls": int, "rounds": int, "quiet": bool, "foreign": float, "note": str,
}  # fmt: skip


def bench(tmp_path, *arguments):
    """Rows, lines of the table."""
    path = tmp_path / "rows.jsonl"
    # Other tests of the session give this process several devices; the members of the bench have one each.
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
    short = ("--rounds", "1", "--seconds", "0.001", "--quiet-below", "1", "--json", str(path))
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "collectives.py"), *short, *arguments],
        capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in path.read_text().splitlines()]
    table = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    return found, table, done.stdout


def test_rows_parse_as_json_and_as_a_table(tmp_path):
    found, table, _ = bench(tmp_path, "--peers", "jhetcc,floor", "--sizes", "4,4K", "--operations", "all")
    context, peers, *measured = found
    assert (
        context["kind"] == "context" and peers["kind"] == "peers" and {"cpu", "cpus", "kernel"} <= set(context["host"])
    )
    assert "jhetcc" in peers["versions"]["jhetcc"]
    assert tuple(COLUMNS) == rows.COLUMNS
    for row in measured:
        assert row.pop("kind") == "row"
        assert list(row) == list(COLUMNS)
        assert {name: type(value) for name, value in row.items() if type(value) is not COLUMNS[name]} == {}
        assert row["wrong"] == 0 and row["time_us"] > 0 and row["p50_us"] <= row["p99_us"]
    assert {row["operation"] for row in measured} == set(cases.OPERATIONS)
    heads, _, *lines = table
    assert heads[:4] == ["size", "count", "type", "redop"] and "#wrong" in heads
    assert [(int(line[0]), line[4], line[5], int(line[heads.index("#wrong")])) for line in lines] == [
        (row["bytes"], row["operation"], row["peer"], row["wrong"]) for row in measured
    ]


def test_the_error_column_says_what_it_counts(tmp_path):
    found, _, printed = bench(
        tmp_path, "--peers", "jhetcc", "--sizes", "4K", "--dtypes", "float32,bfloat16", "--reductions", "sum,max"
    )
    measured = [row for row in found if row["kind"] == "row"]
    assert [(row["dtype"], row["reduction"], row["wrong"]) for row in measured] == [
        ("float32", "sum", 0), ("float32", "max", 0), ("bfloat16", "sum", 0), ("bfloat16", "max", 0),
    ]  # fmt: skip
    assert "#wrong: elements outside the bound" in printed
    assert "bfloat16 sum 0" in printed and "float32 sum 0" in printed


def test_inside_programs(tmp_path):
    found, _, _ = bench(tmp_path, "--peers", "jhetcc-jax,add", "--sizes", "4,4K")
    measured = [row for row in found if row["kind"] == "row"]
    modes = ["jit", "jit donated", "jit loop"]
    once = [("jhetcc-jax", mode) for mode in [*modes, "plain jit"]]
    once += [("add", mode) for mode in modes]
    assert sorted((row["peer"], row["mode"]) for row in measured) == sorted(2 * once)
    assert all(row["wrong"] == 0 and row["note"] == "" for row in measured)


@pytest.mark.parametrize("operation", cases.OPERATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_wrong_element_is_counted(operation, dtype):
    case = cases.Case.make(operation, 400, dtype, "sum", 2)
    want = cases.expected(case, 1)
    if want is None:
        assert operation in ("reduce", "gather", "barrier")
        want = cases.expected(case, 0)
        rank = 0
    else:
        rank = 1
    if want is None:
        return
    got = want.astype(cases.dtype_of(dtype))
    assert got.shape == case.output_shape
    assert cases.count_wrong(case, rank, got) == 0
    got.flat[3] = np.nan if got.dtype.kind == "f" else got.flat[3] + 1
    got.flat[5] += 1
    assert cases.count_wrong(case, rank, got) == 2


def test_bounds():
    def bound(dtype, reduction, ranks):
        return cases.bound(cases.Case.make("all_reduce", 4096, dtype, reduction, ranks))

    assert (
        bound("float32", "sum", 4)
        == bound("bfloat16", "sum", 4)
        == bound("int8", "sum", 4)
        == bound("bfloat16", "max", 64)
        == 0
    )
    assert bound("bfloat16", "sum", 8) == 8 / 256
    assert bound("float32", "mean", 3) == 3 * 2.0**-24


def test_sizes():
    assert [cases.size_of(text) for text in ("4", "4K", "1M", "64MiB", "2g")] == [4, 4096, 1 << 20, 64 << 20, 2 << 30]
    assert cases.Case.make("reduce_scatter", 4, "float32", "sum", 2).bytes == 8
    assert cases.Case.make("all_reduce", 4, "float32", "sum", 2).bytes == 4


def test_targets_say_what_was_reached():
    def row(peer, mode, size, p50, quiet=True):
        return {
            "operation": "all_reduce", "dtype": "float32", "reduction": "sum", "peer": peer, "mode": mode, "bytes": size, "ranks": 2,
            "p50_us": p50, "quiet": quiet,
        }  # fmt: skip

    measured = [row("jhetcc", "raw", 4096, 4.0), row("mpich", "raw", 4096, 4.0), row("impi", "raw", 4096, 2.0)]
    measured += [row("jhetcc", "raw", 1 << 20, 100.0, False), row("oneccl", "raw", 1 << 20, 150.0)]
    measured += [row("jhetcc", "raw", 64 << 20, 14e3), row("floor", "raw", 64 << 20, 7e3)]
    lines = targets.report(measured)
    assert any("impi" in line and "NOT MET" in line for line in lines)
    assert any("oneccl" in line and " met busy" in line for line in lines)
    assert any("50% of the floor" in line for line in lines)
    assert any("not measured" in line and "jhetcc-jax" in line for line in lines)


def test_a_peer_that_is_not_there_is_named(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "collectives.py"), "--peers", "impi", "--sizes", "4", "--installed", str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "impi" in done.stderr and "left out" in done.stderr and "setup_peers.py" in done.stderr
