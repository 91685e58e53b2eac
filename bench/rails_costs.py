# SPDX-License-Identifier: Apache-2.0
"""Parts of bench/rails.py: false alarms under load, and what one path costs through a rail. One thread."""

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

_ROOT = pathlib.Path(__file__).resolve().parent.parent
RAIL = _ROOT / "build" / "tests" / "release" / "cc" / "tests" / "bench_rail"
_STOP_MOST_S, _BETWEEN_S = 0.2, (0.2, 1.0)


@contextlib.contextmanager
def burners():
    """Every processor is kept busy."""
    words = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    running = [subprocess.Popen(words, start_new_session=True) for _ in range(os.cpu_count() or 1)]
    try:
        for number, one in enumerate(running):
            os.sched_setaffinity(one.pid, {number})
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def alarms(bench, job):
    """Full load, and processes that do not run for up to 200 ms: no path may be lost."""
    o, chance = bench.options, random.Random(1)
    players = job(bench.network, o.links, 7140)
    stops = 0
    with burners():
        players.all("run", "all_reduce", o.size // 16)
        players.tell("stream", o.size // 16, 60 * o.minutes)
        end = time.monotonic() + 60 * o.minutes
        while time.monotonic() < end:
            pid = chance.choice(players.hellos)["pid"]
            os.kill(pid, signal.SIGSTOP)
            time.sleep(chance.uniform(0, _STOP_MOST_S))
            os.kill(pid, signal.SIGCONT)
            stops += 1
            time.sleep(chance.uniform(*_BETWEEN_S))
        streams = players.hear()
        paths = [path for told in players.all("paths") for path in told if path["tier"] == 0]
    players.close()
    bench.row("alarms", f"paths lost in {o.minutes:g} minutes", sum(path["losses"] for path in paths), "losses")
    bench.row("alarms", "exact operations meanwhile", len(streams[0]), "operations")
    bench.row("alarms", "processes stopped for up to 200 ms", stops, "times")
    gaps = [later[0] - earlier[0] for earlier, later in zip(streams[0], streams[0][1:], strict=False)]
    bench.row("alarms", "longest operation", 1e3 * max(gaps), "ms")


def bare(bench):
    """One path through a rail against that path's endpoint itself; in C++, since the difference is microseconds."""
    program = pathlib.Path(bench.options.bench_rail)
    if not program.exists():
        raise SystemExit(
            f"bare: no {program}: cmake --preset release && cmake --build --preset release --target bench_rail"
        )
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        told = json.loads(line)
        bench.row("bare", told["name"], told["value"], told["unit"])
