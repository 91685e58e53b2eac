# SPDX-License-Identifier: Apache-2.0
"""Measures rails on several links of a known rate: all of them against one, against plain sockets, and what losses cost. Needs root.

    python bench/rails.py --json rails.jsonl
    python bench/rails.py --links 4 --mbit 200 --size 64M --rounds 5 --parts speed,cut,hole,slow
    python bench/rails.py --parts bare,alarms,peers --minutes 10

Two hosts are network namespaces with that many NICs each (rails_network.py); README.md beside this file says more.
"""

import argparse
import contextlib
import json
import os
import pathlib
import secrets
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cases
import rails_costs
from quiet import Watch
from rails_network import Rails
from rails_peers import peers

from jhetcc.launch import child

_MEMBER = str(pathlib.Path(__file__).resolve().parent / "rails_member.py")
_END_S = 10
PARTS = ("speed", "cut", "hole", "slow", "bare", "alarms", "peers")


class Players:
    """Two processes, one a host, all told the same at once."""

    def __init__(self, network, commands, environment=()):
        self._processes = []
        common = {name: value for name, value in os.environ.items() if not name.startswith("JHETCC_")}
        common |= {"OMP_NUM_THREADS": "1"} | dict(environment)
        for host, command in enumerate(commands):
            tied = [sys.executable, "-I", "-S", child.__file__, str(os.getpid())]
            self._processes.append(
                subprocess.Popen(
                    [*network.prefix(host), *tied, sys.executable, _MEMBER, *command], env=common, stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, start_new_session=True, text=True,
                )
            )  # fmt: skip
            if command[0] == "sockets" and host == 0:
                self._read(self._processes[0])  # listening
        self.hellos = [self._read(process) for process in self._processes]

    @staticmethod
    def _read(process):
        line = process.stdout.readline()
        if not line:
            raise OSError("a process of the bench ended; its own output says why")
        return json.loads(line)

    def tell(self, *words):
        for process in self._processes:
            process.stdin.write(json.dumps(words) + "\n")
            process.stdin.flush()

    def hear(self):
        return [self._read(process) for process in self._processes]

    def all(self, *words):
        self.tell(*words)
        return self.hear()

    def seconds(self, pattern, size):
        """From when the last began until the last was done."""
        times = self.all("run", pattern, size)
        return max(end for _, end in times) - max(begin for begin, _ in times)

    def close(self):
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def job(network, nics, port, **options):
    """A job of two ranks over the first ``nics`` NICs."""
    addresses = [",".join(network.nic_address(host, k) for host in (0, 1) for k in range(nics))]
    environment = {
        "JHETCC_SECRET": secrets.token_hex(32), "JHETCC_INTERFACE": addresses[0], "JHETCC_TRANSPORT": "tcp",
        "JHETCC_PATHS_PER_NIC": "1", "JHETCC_SPIN_US": "2",
    } | options  # fmt: skip
    coordinator = f"{network.nic_address(0, 0)}:{port}"
    return Players(network, [["rank", coordinator, str(rank)] for rank in (0, 1)], environment)


def sockets(network, nics):
    addresses = [network.nic_address(host, k) for host in (0, 1) for k in range(nics)]
    return Players(network, [["sockets", str(rank), *addresses] for rank in (0, 1)])


class Bench:
    def __init__(self, options):
        self.options = options
        self.network = Rails([options.mbit] * options.links)
        self.rows = []

    def row(self, part, name, value, unit, **more):
        row = {"part": part, "name": name, "value": round(value, 4), "unit": unit} | more
        self.rows.append(row)
        print(f"{part:>6} {name:<58} {value:>10.4g} {unit}", flush=True)
        if self.options.json:
            with open(self.options.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    # -- all links against one, and against plain sockets
    def speed(self):
        o = self.options
        players = {
            "rails": job(self.network, o.links, 7101), "one path": job(self.network, 1, 7102),
            "plain sockets": sockets(self.network, o.links),
        }  # fmt: skip
        watch = Watch([hello["pid"] for one in players.values() for hello in one.hellos])
        times = {(name, pattern): [] for name in players for pattern in ("all_reduce", "send")}
        for turn in range(o.rounds + 1):
            for name, pattern in times:
                took = players[name].seconds(pattern, o.size)
                if turn > 0:  # the first warms up
                    times[name, pattern].append(took)
        busy = watch.foreign()
        for pattern in ("all_reduce", "send"):
            median = {name: statistics.median(times[name, pattern]) for name in players}
            for name, took in median.items():
                self.row("speed", f"{pattern} {name}", o.size / took / 1e6, "MB/s", times=times[name, pattern])
            self.row("speed", f"{pattern} rails / one path", median["one path"] / median["rails"], "times")
            self.row("speed", f"{pattern} rails / plain sockets", 100 * median["plain sockets"] / median["rails"], "%")
        self.row("speed", "processor time of others", 100 * busy, "%")
        for one in players.values():
            one.close()

    # -- a path is lost in the middle of operations, and comes back
    def lost(self, part, take, give):
        o = self.options
        stalls, repeats, threes, backs = [], [], [], []
        for turn in range(o.rounds):
            players = job(self.network, o.links, 7110 + turn)
            link = 1 + turn % (o.links - 1)
            players.all("run", "all_reduce", o.size)
            players.tell("stream", o.size // 4, 6.0 + o.back)
            time.sleep(1.5)
            at = time.clock_gettime(time.CLOCK_MONOTONIC)
            take(turn % 2, link)
            time.sleep(2.5)
            back_at = time.clock_gettime(time.CLOCK_MONOTONIC)
            give(turn % 2, link)
            streams = players.hear()
            events = [event for told in players.all("events") for event in told]
            paths = players.all("paths")
            players.close()
            self._judge(part, streams[0], at, back_at, events, paths, link, (stalls, repeats, threes, backs))
        whole = statistics.median(backs) if backs else float("nan")
        self.row(part, "stall, median", 1e3 * statistics.median(stalls), "ms", all=stalls)
        self.row(part, "stall, longest", 1e3 * max(stalls), "ms")
        if repeats:
            self.row(part, "until its stripes go again, median", 1e3 * statistics.median(repeats), "ms", all=repeats)
        self.row(part, "rate without it / expected share", 100 * statistics.median(threes), "%", all=threes)
        self.row(part, "rate 2 s after its return / before", 100 * whole, "%", all=backs)

    def _judge(self, part, stream, at, back_at, events, paths, link, found):
        stalls, repeats, threes, backs = found
        links = self.options.links
        # Of the path that carried bytes; spare ones are found out when they are probed.
        lost = [
            e for e in events
            if e["event"] == "disconnected" and e["argument"] == link and at <= e["time_ns"] / 1e9 < back_at
        ]  # fmt: skip
        if not lost:
            raise RuntimeError(f"{part}: inconclusive: no path was lost after link {link} was taken; paths {paths}")
        stalls.append(max(event["time_ns"] / 1e9 for event in lost) - at)
        again = [e["time_ns"] / 1e9 for e in events if e["event"] == "resent" and at <= e["time_ns"] / 1e9 < back_at]
        if again:  # the path may have been lost with nothing on it
            repeats.append(min(again) - at)

        def rate(begin, end):
            inside = [(t, sum(b)) for t, b in stream if begin <= t <= end]
            return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

        def moved(begin, end):
            inside = [b[link] for t, b in stream if begin <= t <= end]
            return inside[-1] - inside[0]

        before = rate(at - 1.0, at)
        if moved(at - 1.0, at) == 0 or moved(at + 0.8, back_at) != 0:
            raise RuntimeError(f"{part}: inconclusive: link {link} carried {moved(at - 1.0, at)} bytes before, "
                               f"{moved(at + 0.8, back_at)} after")  # fmt: skip
        threes.append(rate(at + 0.8, back_at) / (before * (links - 1) / links))
        backs.append(rate(back_at + 2.0, back_at + 2.0 + self.options.back) / before)

    def cut(self):
        self.lost("cut", self.network.down, self.network.up)

    def hole(self):
        self.lost("hole", self.network.swallow, self.network.pass_again)

    # -- a link gets slow
    def slow(self):
        o, sums, delays = self.options, [], []
        for turn in range(o.rounds):
            players = job(self.network, o.links, 7130 + turn)
            link = turn % o.links
            players.all("run", "all_reduce", o.size)
            players.tell("stream", o.size // 16, 5.0)
            time.sleep(1.5)
            at = time.clock_gettime(time.CLOCK_MONOTONIC)
            self.network.set_rate(link, o.mbit // 10)
            stream = players.hear()[0]
            self.network.set_rate(link, o.mbit)
            players.close()
            totals = [(t, sum(b), b[link]) for t, b in stream]
            before = [one for one in totals if at - 1.0 <= one[0] <= at]
            full = (before[-1][1] - before[0][1]) / (before[-1][0] - before[0][0])
            after = [one for one in totals if one[0] >= at + 0.5]
            new = (after[-1][1] - after[0][1]) / (after[-1][0] - after[0][0])
            expected = full * (o.links - 0.9) / o.links
            sums.append(new / expected)
            # From when on windows of 0.3 s reach nine tenths of the new sum.
            for k, (t, total, _) in enumerate(totals):
                later = next((one for one in totals[k:] if one[0] >= t + 0.3), None)
                if t >= at and later and (later[1] - total) / (later[0] - t) >= 0.9 * expected:
                    delays.append(t - at)
                    break
            else:
                delays.append(float("inf"))
        self.row("slow", "rate / new sum, from 0.5 s on", 100 * statistics.median(sums), "%", all=sums)
        self.row("slow", "until nine tenths of the new sum", 1e3 * statistics.median(delays), "ms", all=delays)

    def bare(self):
        rails_costs.bare(self)

    def alarms(self):
        rails_costs.alarms(self, job)

    def peers(self):
        peers(self)

    def close(self):
        self.network.close()


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--links", type=int, default=4)
    parser.add_argument("--mbit", type=int, default=200)
    parser.add_argument("--size", type=cases.size_of, default=cases.size_of("64M"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--back", type=float, default=1.5, help="seconds measured after a path's return; default 1.5")
    parser.add_argument("--minutes", type=float, default=10, help="of the part alarms; default 10")
    parser.add_argument("--patience", type=float, default=120, help="seconds for a peer to notice; default 120")
    parser.add_argument("--peers", default=".venv-bench", help="where setup_peers.py put them; default .venv-bench")
    parser.add_argument("--bench-rail", default=rails_costs.RAIL, help="the program of the part bare")
    parser.add_argument("--parts", default=",".join(PARTS), help="list; default %(default)s")
    parser.add_argument("--json", type=pathlib.Path, help="file for JSON lines")
    options = parser.parse_args(arguments)
    options.parts = options.parts.split(",")
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return options


def main(arguments=None):
    options = parse(arguments)
    bench = Bench(options)
    try:
        for part in options.parts:
            getattr(bench, part)()
    finally:
        bench.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
