# SPDX-License-Identifier: Apache-2.0
"""SLURM's node lists and task counts."""

import pytest

from jhetcc.world.hostlist import expand_hosts, expand_tasks


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a[001-003,07],b", ["a001", "a002", "a003", "a07", "b"]),
        ("single", ["single"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
        ("a[1],b[2-3]x", ["a1", "b2x", "b3x"]),
    ],
)
def test_hosts(text, names):
    assert expand_hosts(text) == names


@pytest.mark.parametrize(
    "text", ["", "a[1-", "a]1[", "a[[1]]", "a[3-1]", "a[x]", "a,,b", "a[1-99999999]", "a[]", "a[1-2],"]
)
def test_bad_hosts(text):
    with pytest.raises(ValueError):
        expand_hosts(text)


def test_tasks():
    assert expand_tasks("2(x3),1") == [2, 2, 2, 1]
    assert expand_tasks("4") == [4]
    assert expand_tasks("1(x2)") == [1, 1]


@pytest.mark.parametrize("text", ["", "x", "2(x)", "2(3)", "1,,1", "1(x99999999)"])
def test_bad_tasks(text):
    with pytest.raises(ValueError):
        expand_tasks(text)
