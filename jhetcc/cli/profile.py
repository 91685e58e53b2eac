# SPDX-License-Identifier: Apache-2.0
"""``jhetcc profile``: measures what the links, memory and libraries of a job cost; one of the job's programs."""

from __future__ import annotations

import argparse
import pathlib
import sys

from jhetcc.errors import ResourceError


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="jhetcc profile",
        description="Measures what plans are chosen by, in each process of a job: jhetcc launch -n 4 -m jhetcc profile --out costs.json. "
        "Process 0 prints it as JSON; JHETCC_PROFILE=costs.json then plans with it, and so does jhetcc plan --profile costs.json.",
    )
    parser.add_argument("--out", metavar="FILE", help="write it there instead of printing it")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="ranks of each process (default 1)")
    values = parser.parse_args(arguments)
    import jhetcc
    from jhetcc.world import calibration, state

    jhetcc.init(devices=values.ranks)
    world = state.current()
    assert world is not None
    try:
        with calibration.meeting(world) as everybody:
            found, unsteady = calibration.steadier(*(calibration.measure(world, everybody) for _ in range(2)))
        if world.launch.process_id == 0:
            if unsteady:
                print(
                    f"jhetcc profile: measured twice, and these costs differ: {', '.join(unsteady)}. Other work disturbed the measurement, "
                    "or the machines' speed changes: the lower ones are kept; better measure again while nothing else runs",
                    file=sys.stderr,
                )
            _tell(found.to_json(), values.out)
    finally:
        world.close()
    return 0


def _tell(text: str, path: str | None) -> None:
    if path is None:
        print(text)
        return
    try:
        pathlib.Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as why:
        raise ResourceError(f"--out {path}: {why.strerror}", code="resource", scope="process") from why
