# SPDX-License-Identifier: Apache-2.0
"""``jhetcc plan``: plans an operation without running it, and prints the candidates, the choice and, where asked, every step."""

from __future__ import annotations

import argparse

from jhetcc.errors import BadArgumentError


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="jhetcc plan",
        description="Plans an operation, written as in docs/seams.md: jhetcc plan 'psum(f32[1048576])' --ranks 4",
    )
    parser.add_argument("operation", help="operation text, for example psum(f32[8,4])")
    parser.add_argument(
        "--ranks", type=int, required=True, metavar="N", help="size of the communicator, all on one host"
    )
    parser.add_argument("--algorithm", metavar="NAME", help="force this method instead of the cheapest")
    parser.add_argument("--print", action="store_true", dest="steps", help="print every step of every rank")
    values = parser.parse_args(arguments)
    if values.ranks < 1:
        raise BadArgumentError(f"--ranks {values.ranks}: write a number of ranks, 1 or more", code="bad_argument")
    from jhetcc import planner, schedule

    try:
        operation = schedule.Operation.parse(values.operation)
        layout = planner.Layout.local(values.ranks)
        candidates = planner.candidates(operation, layout)
        plan = planner.plan(operation, layout, algorithm=values.algorithm)
    except ValueError as why:
        raise BadArgumentError(str(why), code="bad_argument") from why
    for name, seconds in candidates:
        print(f"{'*' if name == plan.algorithm else ' '} {name:18} {seconds * 1e6:12.1f} us predicted")
    print(plan)
    if values.steps:
        for rank in range(values.ranks):
            print(plan.expand(rank))
    return 0
