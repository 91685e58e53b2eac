# SPDX-License-Identifier: Apache-2.0
"""Measures every operation over sizes, ranks and peers, interleaved in one run; prints the columns of nccl-tests.

    python bench/collectives.py --sizes 4:256M:4 --operations all_reduce,all_gather --ranks 2,4
    python bench/collectives.py --targets
    python bench/collectives.py --peers jhetcc,mpich --json rows.jsonl --plot speed.png

README.md beside this file says how to read what comes out.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cases
import rows as results
import targets
from peers import PEERS, PeerError, Team
from quiet import Watch, wait_until_quiet
from shaped_network import Link, Network

_CALLS_MIN, _CALLS_MAX = 3, 2000


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="4K,64K,1M,16M,64M", help="list, or first:last:factor; default %(default)s")
    parser.add_argument("--operations", default="all_reduce", help=f"list, or all; of {','.join(cases.OPERATIONS)}")
    parser.add_argument("--dtypes", default="float32", help="list of numpy names and bfloat16")
    parser.add_argument("--reductions", default="sum", help=f"list of {','.join(cases.REDUCTIONS)}")
    parser.add_argument("--ranks", default="2", help="list, e.g. 2,4")
    parser.add_argument("--peers", default="all", help=f"list, or all, or none (ours only); of {','.join(PEERS)}")
    parser.add_argument("--modes", default="raw,jit,jit donated,jit loop,plain jit", help="list; default %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="each peer has a turn in each round; default %(default)s")
    parser.add_argument("--seconds", type=float, default=0.3, help=f"of calls a turn, at least {_CALLS_MIN} calls")
    parser.add_argument(
        "--quiet-below", type=float, default=0.05, help="foreign share of the processors, 1 switches the wait off"
    )
    parser.add_argument(
        "--quiet-wait", type=float, default=20.0, help="seconds to wait for a quiet machine before a turn"
    )
    parser.add_argument("--retries", type=int, default=3, help="turns repeated when the machine was busy; then marked")
    parser.add_argument("--installed", default=".venv-bench", help="where setup_peers.py put the peers")
    parser.add_argument(
        "--json", type=pathlib.Path, help="file for JSON lines; - for standard output instead of the table"
    )
    parser.add_argument("--plot", type=pathlib.Path, help="file for a PNG")
    parser.add_argument(
        "--link", type=int, metavar="MBIT", help="half of the ranks on each of two hosts with one such link; needs root"
    )
    parser.add_argument("--targets", action="store_true", help="measure what the targets need and print them")
    options = parser.parse_args(arguments)
    if options.targets:
        options.sizes, options.operations, options.ranks = ",".join(map(str, targets.SIZES)), "all_reduce", "2,4"
        options.dtypes, options.reductions = "float32", "sum"
    _expand(parser, options)
    return options


def _expand(parser, options):
    """Lists out of the texts; a name that does not exist is refused."""

    def chosen(text, known, what):
        names = list(known) if text == "all" else [name.strip() for name in text.split(",")]
        if unknown := [name for name in names if name not in known]:
            parser.error(f"no {what} {', '.join(unknown)}; there are {', '.join(known)}")
        return names

    ours = [name for name, peer in PEERS.items() if peer.ours]
    options.peers = ours if options.peers == "none" else chosen(options.peers, PEERS, "peer")
    options.modes = chosen(options.modes, ("raw", "jit", "jit donated", "jit loop", "plain jit"), "mode")
    options.operations = chosen(options.operations, cases.OPERATIONS, "operation")
    options.reductions = chosen(options.reductions, cases.REDUCTIONS, "reduction")
    options.dtypes = options.dtypes.split(",")
    try:
        options.ranks = [int(text) for text in options.ranks.split(",")]
        if ":" in options.sizes:
            first, last, factor = options.sizes.split(":")
            options.sizes = cases.sizes_between(cases.size_of(first), cases.size_of(last), int(factor))
        else:
            options.sizes = [cases.size_of(text) for text in options.sizes.split(",")]
        for dtype in options.dtypes:
            cases.dtype_of(dtype)
    except (ValueError, TypeError) as why:
        parser.error(str(why))
    if options.link is not None and (options.link < 1 or any(ranks % 2 for ranks in options.ranks)):
        parser.error("--link is a positive rate, and half of the ranks are on each host")
    if min(options.ranks) < 1 or min(options.sizes) < 1 or options.rounds < 1 or options.retries < 0:
        parser.error("ranks, sizes and rounds are positive")


def all_cases(options, ranks):
    found = [
        cases.Case.make(operation, size, dtype, reduction, ranks)
        for operation in options.operations
        for dtype in options.dtypes
        for reduction in options.reductions
        for size in options.sizes
    ]
    found = [case for case in found if case.reduction != "mean" or cases.dtype_of(case.dtype).kind not in "iu"]
    return list(dict.fromkeys(found))  # rounding up and operations without a reduction make equals


class Sweep:
    """All cases on one number of ranks."""

    def __init__(self, options, say):
        self._options, self._say = options, say
        self.teams, self.versions, self._said, self._hosts = [], {}, set(), None

    def start(self, ranks):
        if rate := self._options.link:
            self._hosts = Network(2, [Link(0, 1, rate, rate)])
        for number, name in enumerate(self._options.peers):
            peer = PEERS[name]
            if not set(peer.modes) & set(self._options.modes):
                continue
            team = Team(peer, ranks, self._options.installed, self._hosts, number)
            try:
                team.start()
            except PeerError as why:
                self._say(f"{name} ({peer.what}) is left out on {ranks} ranks: {why}")
                continue
            self.teams.append(team)
            self.versions[name] = team.versions

    def close(self):
        for team in self.teams:
            team.close()
        self.teams = []
        if self._hosts:
            self._hosts.close()

    def _drop(self, team, why):
        self._say(f"{team.peer.name} is left out from here on: {why}")
        self.teams.remove(team)
        team.close()

    def run(self, case):
        """Rows of one case: A B C, A B C, ... so that a slow minute of the machine hits all alike."""
        turns = []
        for team in list(self.teams):
            for mode in team.peer.modes:
                if mode in self._options.modes and team in self.teams:
                    calls = self._calls(team, case, mode)
                    turns += [(team, mode, calls, [])] if calls else []
        for number in range(self._options.rounds):
            for team, mode, calls, rounds in turns:
                if team not in self.teams:
                    continue
                try:
                    rounds.append(self._turn(team, case, mode, calls, check=number == 0))
                except PeerError as why:
                    self._drop(team, why)
        for team in list(self.teams):
            try:
                team.forget()
            except PeerError as why:
                self._drop(team, why)
        return [results.make_row(team.peer.name, mode, case, rounds) for team, mode, _, rounds in turns if rounds]

    def _calls(self, team, case, mode):
        """How many calls fill a turn; 0 where the peer has no such operation."""
        try:
            answers = team.measure(case, mode, _CALLS_MIN, True)
            if isinstance(answers, str):
                if "no mode" not in answers and (team.peer.name, answers) not in self._said:
                    self._said.add((team.peer.name, answers))
                    self._say(f"{team.peer.name}: {answers}")
                return 0
            if max(answer["mean_us"] for answer in answers) < 1e3:
                answers = team.measure(case, mode, 20 * _CALLS_MIN, False)
        except PeerError as why:
            self._drop(team, why)
            return 0
        per_call = max(sum(answer["each_us"]) / len(answer["each_us"]) for answer in answers) / 1e6
        repeats = max(answer["repeats"] for answer in answers)
        return min(max(int(self._options.seconds / (per_call * repeats)), _CALLS_MIN), _CALLS_MAX)

    def _turn(self, team, case, mode, calls, check):
        """One batch on a quiet machine, or the quietest of the tries."""
        options, best = self._options, None
        pids = [pid for each in self.teams for pid in each.pids]
        for _ in range(options.retries + 1):
            if options.quiet_below < 1:
                wait_until_quiet(pids, options.quiet_below, options.quiet_wait)
            watch = Watch(pids)
            answers = team.measure(case, mode, calls, check)
            foreign = watch.foreign()
            if best is None or foreign < best[1]:
                best = (answers, foreign, foreign < options.quiet_below or options.quiet_below >= 1)
            if best[2]:
                break
        return best


def context(options):
    """What the rows depend on besides the columns."""
    with open("/proc/cpuinfo") as file:
        model = next(
            (line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.machine()
        )
    with open("/proc/sys/net/ipv4/tcp_congestion_control") as file:
        congestion = file.read().strip()
    return {
        "kind": "context",
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "options": {
            key: str(value) if isinstance(value, pathlib.Path) else value for key, value in vars(options).items()
        },
        "host": {
            "cpu": model,
            "cpus": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "tcp_congestion_control": congestion,
            "load": os.getloadavg(),
        },
        "environment": {
            key: value
            for key, value in os.environ.items()
            if key.startswith(("JHETCC_", "XLA_", "JAX_", "CCL_", "MALLOC_"))
        },
    }


def main(arguments=None):
    options = parse(arguments)
    to_stdout = str(options.json) == "-"
    for path in (options.json, options.plot):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
    file = sys.stdout if to_stdout else open(options.json, "w") if options.json else None  # noqa: SIM115
    found = []

    def say(text):
        print(f"# {text}", file=sys.stderr, flush=True)

    def emit(line):
        if file:
            print(line, file=file, flush=True)

    emit(json.dumps(context(options)))
    if not to_stdout:
        every = [case for ranks in options.ranks for case in all_cases(options, ranks)]
        print(results.heading(results.bound_text(every)), flush=True)
    for ranks in options.ranks:
        sweep = Sweep(options, say)
        try:
            sweep.start(ranks)
            emit(json.dumps({"kind": "peers", "ranks": ranks, "versions": sweep.versions}))
            for case in all_cases(options, ranks):
                for row in sweep.run(case):
                    found.append(row)
                    emit(results.json_line(row))
                    if not to_stdout:
                        print(results.table_line(row), flush=True)
        finally:
            sweep.close()
    if options.targets:
        print("\n".join(targets.report(found)), file=sys.stderr if to_stdout else sys.stdout, flush=True)
    if options.plot:
        results.plot(found, options.plot)
    if file and not to_stdout:
        file.close()
    sys.exit(1 if any(row["wrong"] and PEERS[row["peer"]].ours for row in found) else 0)


if __name__ == "__main__":
    main()
