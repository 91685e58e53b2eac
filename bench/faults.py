# SPDX-License-Identifier: Apache-2.0
"""Faults at chosen moments of running operations: every result exact, and evidence that the fault hit. Needs root.

    python bench/faults.py --json faults.jsonl
    python bench/faults.py --cells nic_down:middle,flap --repeat 20 --seed 7
    python bench/faults.py --cells nic_down:middle --corrupt
    python bench/faults.py --train --seconds 60
    python bench/faults.py --verbs

A cell is a fault (faults_menu.py) at the first, middle or last chunk of an operation, or between two. It passes with exact, equal results
and evidence; without evidence it is inconclusive. Exit code: 0 all passed, 1 one failed, 3 one was inconclusive. README.md says more.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import faults_menu
from faults_job import Hung, Job
from faults_lab import LabSite, run_in_lab
from faults_network import Site
from faults_train import train

from jhetcc.errors import UnavailableError

OPERATIONS = {
    "all_reduce": 1 << 20,
    "all_gather": 1 << 20,
    "reduce_scatter": 1 << 21,
    "broadcast": 1 << 20,
}  # words of an input
SHOWN = ("operation", "links", "bytes_before", "bytes_after", "lost_ms", "seconds", "undisturbed", "attempts")
VARIANTS = 3
TCP_MBIT, LAB_MBIT = 300, 32
_LAB_S, _CELL_S = 240, 60  # after which the guests are ended
ATTEMPTS = 5  # to hit an operation
PASSED, FAILED, INCONCLUSIVE = "passed", "failed", "inconclusive"
_FIRST_BYTES = 32 << 10
_LINK_BYTES = 8 << 10  # of the operation, over the link that is hit, before it is
_SHARES = {"middle": 0.5, "last": 0.9}
_EARLIER = 0.05  # where a last chunk was missed, the next attempt begins sooner
_WHOLE_S = 3.0  # a job whose paths do not come back within it gives way to a new one
_DURING_MOST = 200


class Grid:
    def __init__(self, options):
        self.options = options
        if options.lab:
            self.site = LabSite([options.mbit] * options.links)
        else:
            self.site = Site([options.mbit] * options.links, wire=options.mbit // 3, seed=options.seed)
        self.job, self.job_key, self.port, self.strike = None, None, 7200, None
        self.reference, self.bytes, self.recent = {}, {}, []

    # -- the job
    def need(self, fault):
        """The healthy paths of a job that has at least three; a path that was lost often comes back late, so there may be a new job."""
        nics = self.site.used(fault.wire)
        key = (nics, tuple(fault.options.items()))
        if self.job is not None and self.job_key != key:
            self.end_job()
        if self.job is None:
            self.port += 1
            self.job, self.job_key, self.recent = Job(self.site, nics, self.port, fault.options), key, []
        end = time.monotonic() + _WHOLE_S * self.site.patience
        while True:
            looks = self.job.look(time.perf_counter())
            healthy = [
                k for k in range(len(looks[0]["paths"]))
                if looks[0]["paths"][k]["tier"] == 0 and all(look["paths"][k]["state"] == "healthy" for look in looks)
            ]  # fmt: skip
            if len(healthy) >= min(self.options.links, 3) and (not fault.wire or self.site.wire_link in healthy):
                return healthy
            if time.monotonic() > end:
                self.end_job()
                return self.need(fault)
            self.job.all("run", "all_reduce", 1 << 12, 0, 1, False)

    def end_job(self, kill=False):
        if self.job is not None:
            self.job.close(kill)
        self.job = None

    def give_up(self, fault):
        """After a job that hung: nothing of it or its fault may reach the next one."""
        if self.strike is not None and self.strike.at:
            with contextlib.suppress(OSError, KeyError):
                fault.heal(self.strike)
        self.strike = None
        self.end_job(kill=True)

    def choose(self, fault, healthy, chance):
        if fault.wire:
            return [self.site.wire_link]
        if fault.links == 0:
            return list(range(self.options.links))
        fresh = sorted(healthy, key=lambda k: (k in self.recent, chance.random()))
        self.recent = (self.recent + fresh[: fault.links])[-2:]
        return fresh[: fault.links]

    # -- one repetition
    def repeat(self, name, position, turn):
        fault = (faults_menu.MENU | faults_menu.CONTROLS)[name]
        row = {"fault": name, "position": position, "turn": turn, "seed": self.options.seed}
        for attempt in range(ATTEMPTS):
            chance = random.Random(f"{self.options.seed}/{name}/{position}/{turn}/{attempt}")
            try:
                outcome, why, more = self.attempt(fault, position, chance, attempt)
            except Hung as hung:
                outcome, why, more = FAILED, str(hung), {}
                self.give_up(fault)
            row |= {"outcome": outcome, "why": why, "attempts": attempt + 1} | more
            if outcome != INCONCLUSIVE:
                break
        return row

    def attempt(self, fault, position, chance, attempt):
        operation = chance.choice(fault.operations or list(OPERATIONS))
        case = (operation, OPERATIONS[operation] // self.site.words_share, chance.randrange(VARIANTS))
        self.site.tune()
        self.strike = None
        healthy = self.need(fault)
        links, host = self.choose(fault, healthy, chance), chance.randrange(2)
        self.strike = one = faults_menu.Strike(self.site, self.job, chance, links, host, position)
        every = range(len(self.site.rates))
        # The fault-free run: its result is the one to be equal to.
        self.job.all("ready", *case)
        then, link_then = self.site.sent(0, every), self.site.both_ways(one.link)
        plain = self.job.all("run", *case, 1, False)
        total, before = self.site.sent(0, every) - then, self.site.both_ways(one.link) - link_then
        self.job.all("ready", *case)
        one.kept["again"] = (*case, fault.during or 1, False)
        corrupt = chance.randrange(2) if self.options.corrupt or fault.corrupts else None
        if position != "between":
            then, link_then = self.site.sent(0, every), self.site.both_ways(one.link)
            for rank in (0, 1):
                self.job.tell("run", *case, 1, rank == corrupt, hosts=[rank])
            share = _SHARES.get(position, 0) - (_EARLIER * attempt if position == "last" else 0)
            wanted = then + (total * share if share else _FIRST_BYTES)
            if not self.site.wait_for(0, every, wanted, 20, self.job.is_answered):
                self.job.hear()
                return INCONCLUSIVE, "the operation was over before the fault", {}
            while (before := self.site.both_ways(one.link) - link_then) < _LINK_BYTES and not self.job.is_answered():
                time.sleep(0)
        one.at = time.perf_counter()
        fault.strike(one)
        if fault.ends:
            return self.ended(fault, one, position, before, case)
        fault.settle(one)
        results = self.during(fault, one, case, corrupt, position)
        fault.finish(one)
        looks = self.job.look(one.at)
        fault.heal(one)
        results += [self.job.all("run", *case, 1, False)]
        return self.judge(fault, one, position, case, before, plain, results, looks)

    def during(self, fault, one, case, corrupt, position):
        """Results of all operations while the fault lasts, the one that was hit first."""
        results = []
        if position != "between" or "results" in one.kept:
            results.append(one.kept.pop("results", None) or self.job.hear())
        if "second" in one.kept:
            one.kept["second_results"] = self.job.hear()
            results.append(one.kept["second_results"])
        elif fault.during:
            words = [("run", *case, fault.during, position == "between" and rank == corrupt) for rank in (0, 1)]
            for rank in (0, 1):
                self.job.tell(*words[rank], hosts=[rank])
            results.append(self.job.hear())
        for _ in range(_DURING_MOST):
            if not getattr(fault, "is_lasting", lambda _: False)(one):
                break
            results.append(self.job.all("run", *case, 1, False))
        return results

    def judge(self, fault, one, position, case, before, plain, results, looks):
        hit = results[0] if position != "between" else None
        lost = [t - one.at for look in looks for t, path in look["lost"] if path in one.links]
        more = {
            "operation": case[0], "links": one.links, "host": one.host, "bytes_before": before,
            "bytes_after": one.quiet[-1][1] - one.quiet[0][1] if one.quiet else None,
            "lost_ms": round(1e3 * min(lost), 2) if lost else None,
            "seconds": round(max(r["end"] for r in hit) - min(r["begin"] for r in hit), 4) if hit else None,
        }  # fmt: skip
        more["undisturbed"] = round(max(r["end"] for r in plain) - min(r["begin"] for r in plain), 4)
        more["checked"] = sum(len(r["ended"]) for pair in [plain, *results] for r in pair)
        if why := self.inexact(case, plain, results) or self.broken(looks):
            self.end_job()
            return FAILED, why, more
        if why := fault.wrong(one, hit, looks):
            return INCONCLUSIVE if self.site.may_look_silent and "without need" in why else FAILED, why, more
        if before < _LINK_BYTES:
            return INCONCLUSIVE, "the link carried nothing before", more
        if hit and max(r["end"] for r in hit) < one.at:
            return INCONCLUSIVE, "the operation was over when the fault came", more
        if why := fault.missing(one, hit, looks):
            return INCONCLUSIVE, why, more
        return PASSED, "", more

    def inexact(self, case, plain, results):
        for pair in [plain, *results]:
            for rank, result in enumerate(pair):
                if result["error"]:
                    return f"rank {rank}: {result['error']['class']}: {result['error']['text']}"
                if result["wrong"]:
                    return f"rank {rank}: {result['wrong']} wrong elements in {case[0]}"
                known = self.reference.setdefault((case, rank), result["hashes"])
                if result["hashes"] != known:
                    return f"rank {rank}: {case[0]} has hashes {result['hashes']}, not {known} as without a fault"
            if case[0] != "reduce_scatter" and pair[0]["hashes"] != pair[1]["hashes"]:
                return f"the ranks' results of {case[0]} differ: {pair[0]['hashes']}, {pair[1]['hashes']}"
        return None

    @staticmethod
    def broken(looks):
        aborts = sum(look["aborts"] for look in looks)
        return f"{aborts} aborts" if aborts else None

    def ended(self, fault, one, position, before, case):
        """The job is to end with one error, in time, and with no wrong result."""
        survivors = [0, 1] if fault.links == 0 else [1 - one.host]
        if position == "between":
            self.job.tell("run", *case, 1, False, hosts=survivors)
        told = {rank: self.job.hear_one(rank, fault.within_s + 15) for rank in survivors}
        took = max(result["end"] for result in told.values()) - one.at
        fault.heal(one)
        if isinstance(fault, faults_menu.StoppedForLong) and not isinstance(fault, faults_menu.Killed):
            if position == "between":
                self.job.tell("run", *case, 1, False, hosts=[one.host])
            late = self.job.hear_one(one.host, 20)
            told_late = {one.host: late}
        else:
            told_late = {}
        self.end_job(kill=isinstance(fault, faults_menu.Killed))
        more = {
            "operation": case[0],
            "links": one.links,
            "host": one.host,
            "bytes_before": before,
            "seconds": round(took, 3),
        }
        more["errors"] = {rank: (r["error"] or {}).get("text", "")[:300] for rank, r in (told | told_late).items()}
        if wrong := sum(result["wrong"] for result in (told | told_late).values()):
            return FAILED, f"{wrong} wrong elements", more
        if all(result["error"] is None and result["end"] < one.at + 0.5 for result in told.values()):
            return INCONCLUSIVE, "the operation was over when the fault came", more
        for rank, result in told.items():
            if result["error"] is None:
                return FAILED, f"rank {rank} got no error", more
            if result["error"]["class"] not in fault.errors or (1 - rank) not in result["error"]["ranks"]:
                return FAILED, f"rank {rank}: {result['error']}", more
        if took > fault.within_s:
            return FAILED, f"the error came after {took:.1f} s", more
        if before < _LINK_BYTES:
            return INCONCLUSIVE, "the link carried nothing before", more
        return PASSED, "", more

    def close(self):
        with contextlib.suppress(Hung):
            self.end_job()
        self.site.close()


def cells_of(text):
    """``nic_down:middle,flap`` as pairs of fault and position; all positions of a fault without one."""
    known, cells = faults_menu.MENU | faults_menu.CONTROLS, []
    for word in text.split(","):
        name, _, position = word.partition(":")
        if name not in known or (position and position not in known[name].positions):
            raise argparse.ArgumentTypeError(
                f"no cell {word!r}; faults: {', '.join(known)}; positions: {', '.join(faults_menu.POSITIONS)}"
            )
        cells += [(name, one) for one in ([position] if position else known[name].positions)]
    return cells


def table(rows):
    """A line a fault: outcomes by position, e.g. 20/20, and what was not passed."""
    lines = [f"{'fault':<22}" + "".join(f"{position:>12}" for position in faults_menu.POSITIONS)]
    for name in dict.fromkeys(row["fault"] for row in rows):
        line = f"{name:<22}"
        for position in faults_menu.POSITIONS:
            here = [row["outcome"] for row in rows if (row["fault"], row["position"]) == (name, position)]
            line += f"{f'{here.count(PASSED)}/{len(here)}' if here else '-':>12}"
        lines.append(line)
    for row in rows:
        if row["outcome"] != PASSED:
            lines.append(f"{row['outcome']}: {row['fault']}:{row['position']} turn {row['turn']}: {row['why']}")
    return "\n".join(lines)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=cells_of, help="FAULT or FAULT:POSITION, ...; default: the whole grid")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--links", type=int, help="default 4, or 3 in the lab")
    parser.add_argument(
        "--mbit", type=int, help=f"of each link, each way; default {TCP_MBIT}, or {LAB_MBIT} in the lab"
    )
    parser.add_argument(
        "--verbs", action="store_true", help="over verbs, in two guests of the RDMA lab (tests/rdma_lab)"
    )
    parser.add_argument("--lab", action="store_true", help=argparse.SUPPRESS)  # inside, in the first guest
    parser.add_argument("--corrupt", action="store_true", help="damage one result: the checker must fail")
    parser.add_argument("--json", type=pathlib.Path, help="file for JSON lines")
    parser.add_argument("--train", action="store_true", help="what failing NICs cost a training, instead of the grid")
    parser.add_argument("--seconds", type=float, default=60, help="of training; default 60")
    parser.add_argument(
        "--every", type=float, default=5, help="seconds from one NIC's failure to the next one's; default 5"
    )
    options = parser.parse_args(arguments)
    is_lab = options.verbs or options.lab
    known = faults_menu.MENU | faults_menu.CONTROLS
    options.cells = options.cells or cells_of(
        ",".join(name for name, fault in faults_menu.MENU.items() if not (is_lab and fault.not_over_verbs))
    )
    for name, _ in options.cells if is_lab else ():
        if known[name].not_over_verbs:
            parser.error(f"{name} is not for --verbs: {known[name].not_over_verbs}")
    options.links = options.links or (3 if is_lab else 4)
    options.mbit = options.mbit or (LAB_MBIT if is_lab else TCP_MBIT)
    return options


def tell(options, row):
    if options.json:
        with open(options.json, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def run_training(options):
    def row(name, value, unit):
        print(f"train {name:<46} {value:>10.4g} {unit}", flush=True)
        tell(options, {"part": "train", "name": name, "value": value, "unit": unit})

    return train(options, row)


def main(arguments=None):
    options = parse(arguments)
    try:
        if options.verbs:
            words = [word for word in arguments or sys.argv[1:] if word != "--verbs"]
            return run_in_lab(
                words, options.links, _LAB_S + _CELL_S * len(options.cells) * options.repeat, options.json
            )
        if options.train:
            return run_training(options)
        grid = Grid(options)
    except (OSError, UnavailableError) as why:
        print(f"faults: {why}", file=sys.stderr)
        return 2
    rows = []
    try:
        for name, position in options.cells:
            for turn in range(options.repeat):
                begun = time.perf_counter()
                row = grid.repeat(name, position, turn)
                rows.append(row)
                words = [row[key] for key in SHOWN if key in row]
                took = time.perf_counter() - begun
                print(f"{name}:{position} {turn}: {row['outcome']} {row['why']} {words} {took:.1f} s", flush=True)
                tell(options, row)
    finally:
        grid.close()
    print(table(rows))
    outcomes = {row["outcome"] for row in rows}
    return 1 if FAILED in outcomes else 3 if INCONCLUSIVE in outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
