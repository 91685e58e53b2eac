# SPDX-License-Identifier: Apache-2.0
"""The fault bench without a network: a cell that ends its job needs the same evidence as any other that bytes went before."""

import pathlib
import sys
import time
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "bench"))

import faults  # noqa: E402
import faults_menu  # noqa: E402

CASE = ("all_reduce", 4, 0)
CELLS = [
    (name, position)
    for name, fault in (faults_menu.MENU | faults_menu.CONTROLS).items()
    if fault.ends
    for position in fault.positions
]


class Ending:
    """A job of which each rank says in time that the other is lost."""

    def __init__(self, kind):
        self.kind = kind

    def tell(self, *words, hosts=()):
        pass

    def signal(self, host, number):
        pass

    def hear_one(self, rank, seconds):
        error = {"class": self.kind, "ranks": [1 - rank], "text": "lost"}
        return {"end": time.perf_counter(), "wrong": 0, "error": error}

    def close(self, kill=False):
        pass


def outcome(name, position, before):
    fault = (faults_menu.MENU | faults_menu.CONTROLS)[name]
    site = types.SimpleNamespace(up=lambda host, link: None, settle=lambda links: None)
    grid = faults.Grid.__new__(faults.Grid)
    grid.site, grid.job = site, Ending(fault.errors[-1])
    one = faults_menu.Strike(site, grid.job, None, [0], 1, position, at=time.perf_counter())
    return grid.ended(fault, one, position, before, CASE)


def test_there_are_cells_that_end_their_job():
    assert {name for name, _ in CELLS} >= {"peer_killed", "peer_stopped_for_long", "all_gone"}


@pytest.mark.parametrize(("name", "position"), CELLS)
def test_an_ended_job_counts_only_where_bytes_went_before(name, position):
    assert outcome(name, position, 1 << 20)[0] == faults.PASSED
    told, why, row = outcome(name, position, 100)
    assert told == faults.INCONCLUSIVE and why == "the link carried nothing before" and row["bytes_before"] == 100
