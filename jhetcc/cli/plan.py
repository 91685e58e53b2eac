# SPDX-License-Identifier: Apache-2.0
"""``jhetcc plan``: plans an operation without running it, and prints what each rank would do."""

from __future__ import annotations

import argparse
import sys


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="jhetcc plan",
        description="Plans an operation, written as in docs/seams.md: jhetcc plan 'psum(f32[1048576])' --ranks 4",
    )
    parser.add_argument("operation", help="operation text, for example psum(f32[8,4])")
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="size of the communicator")
    parser.add_argument("--print", action="store_true", dest="steps", help="print every step of every rank")
    values = parser.parse_args(arguments)
    if values.ranks < 1:
        print(f"jhetcc plan: --ranks {values.ranks}: write a number of ranks, 1 or more", file=sys.stderr)
        return 2
    from jhetcc import planner

    print(planner.describe(values.operation, values.ranks, steps=values.steps))
    return 0
