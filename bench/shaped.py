# SPDX-License-Identifier: Apache-2.0
"""Measures every algorithm that the planner lists on links of known rates, next to its prediction. Needs root.

    python bench/shaped.py --within 2.5 --json shaped.jsonl
    python bench/shaped.py --networks 2x2@1000,3x2@1000/1000/500 --sizes 16M
    python bench/shaped.py --balanced 400 --sizes 64M

A host is a network namespace, with one link of so many Mbit/s each way; README.md beside this file says more.
"""

import argparse
import contextlib
import json
import os
import pathlib
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cases
from quiet import Watch
from shaped_network import Link, Network

from jhetcc.launch import child

_MEMBER = str(pathlib.Path(__file__).resolve().parent / "shaped_member.py")
_PORT = 7077  # free: process 0 is alone in its namespace
_TEXTS = {
    "all_reduce": "psum(f32[{count}])",
    "all_gather": "all_gather(f32[{part}])",
    "reduce_scatter": "psum_scatter(f32[{ranks},{part}])",
    "broadcast": "broadcast(f32[{count}], root=0)",
}
_CALLS_S, _CALLS_MAX, _END_S = 0.1, 9, 10
_NEAR, _NOISE = 0.10, 0.03
COLUMNS = (
    "network", "operation", "bytes", "algorithm", "predicted_us", "measured_us", "ratio", "quartile_us", "chosen", "fastest",
    "chunk_bytes", "calls", "foreign",
)  # fmt: skip


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--networks", default="2x2@50,2x2@100,2x2@200,3x2@100", metavar="LIST",
        help="HOSTSxRANKS@MBIT, or with a rate for each host, divided by /; default %(default)s",
    )  # fmt: skip
    parser.add_argument("--operations", default="all_reduce,all_gather,reduce_scatter,broadcast", help="list")
    parser.add_argument("--sizes", default="64K,256K,1M,4M", help="list; above 16M of all_reduce only")
    parser.add_argument("--rounds", type=int, default=5, help="each algorithm has a turn in each; default %(default)s")
    parser.add_argument(
        "--within",
        type=float,
        default=4.0,
        help="leave out what is predicted to take so many times the best; inf: nothing",
    )
    parser.add_argument("--balanced", type=int, metavar="MBIT", help="pipelined against sequential instead")
    parser.add_argument("--json", type=pathlib.Path, help="file for JSON lines")
    options = parser.parse_args(arguments)
    options.operations = options.operations.split(",")
    options.sizes = [cases.size_of(text) for text in options.sizes.split(",")]
    if unknown := set(options.operations) - set(_TEXTS):
        parser.error(f"no operation {', '.join(sorted(unknown))}; there are {', '.join(_TEXTS)}")
    return options


def network_of(text):
    """(links, host of each rank, label of each rank's cluster) of a text such as 2x2@1000 or 3x2@1000/1000/500."""
    shape, _, rates = text.partition("@")
    hosts, ranks = (int(part) for part in shape.split("x"))
    rates = [int(rate) for rate in rates.split("/")]
    rates = rates * hosts if len(rates) == 1 else rates
    if hosts < 2 or ranks < 1 or len(rates) != hosts or min(rates) < 1:
        raise ValueError(f"network {text!r}: write HOSTSxRANKS@MBIT or a rate for each host, such as 3x2@1000/1000/500")
    links = [Link(host, hosts, rate, rate) for host, rate in enumerate(rates)]
    if hosts == 2:
        links = [Link(0, 1, min(rates), min(rates))]
    places = [host for host in range(hosts) for _ in range(ranks)]
    return links, places, [f"host{host}" for host in places]


def balanced_network(inside, between):
    """Two clusters of two hosts of one rank in a row: only the two hosts in the middle have a link to the other cluster.

    So the stage before goes towards the middle, the one after away from it, and all three have ways of their own.
    """
    rates = (inside, between, inside)
    links = [Link(host, host + 1, rate, rate) for host, rate in enumerate(rates)]
    return links, [0, 1, 2, 3], ["left", "left", "right", "right"], {1: between, 2: between}


class Job:
    """One process a rank in the namespaces of a network, all told the same at once; ends with the bench.

    Args:
      found: what network_of() returned, or besides what the cards of some ranks can do, Mbit/s: then only these are borders.
    """

    def __init__(self, found):
        links, self._places, self._labels, *cards = found
        self._cards = cards[0] if cards else {}
        self._processes = []
        self._folder = tempfile.TemporaryDirectory(prefix="jhetcc-shaped-")
        self._log = open(os.path.join(self._folder.name, "output"), "w+b")  # noqa: SIM115
        self._network = None
        try:
            self._network = Network(max(self._places) + 1, links)
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self):
        common = {name: value for name, value in os.environ.items() if not name.startswith("JHETCC_")} | {
            "JHETCC_SECRET": secrets.token_hex(32), "JHETCC_PROFILE": "auto", "OMP_NUM_THREADS": "1",
            "JHETCC_CACHE_DIR": self._folder.name, "JHETCC_SPIN_US": "2",
        }  # fmt: skip  # hosts share the processors of this machine: who spins keeps a peer from running
        size, address = len(self._places), f"{self._network.address(0)}:{_PORT}"
        for rank, (place, label) in enumerate(zip(self._places, self._labels, strict=True)):
            tied = [sys.executable, "-I", "-S", child.__file__, str(os.getpid())]
            command = [*self._network.prefix(place), *tied, sys.executable, _MEMBER, address, str(rank), str(size)]
            command.append(json.dumps(self._cards))
            self._processes.append(
                subprocess.Popen(
                    command, env=common | {"JHETCC_CLUSTER": label}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=self._log, start_new_session=True, text=True,
                )
            )  # fmt: skip
        hellos = [self._read(process) for process in self._processes]
        self.pids = [hello["pid"] for hello in hellos]
        self.profile = hellos[0]["profile"]
        if hellos[0]["hosts"] != self._places:
            raise OSError(f"ranks are on hosts {hellos[0]['hosts']}, not {self._places}")

    def _read(self, process):
        line = process.stdout.readline()
        if not line:
            self._log.flush()
            last = pathlib.Path(self._log.name).read_text(errors="replace").strip().splitlines()[-3:]
            code = process.wait(_END_S)
            raise OSError(
                f"rank {self._processes.index(process)} ended with {code}: " + (" | ".join(last) or "no output")
            )
        return json.loads(line)

    def ask(self, *message):
        """The answers of all ranks."""
        try:
            for process in self._processes:
                process.stdin.write(json.dumps(message) + "\n")
                process.stdin.flush()
        except BrokenPipeError:
            pass  # reading says why
        return [self._read(process) for process in self._processes]

    def times(self, text, algorithm, calls):
        """Seconds of each call: from when the last rank began until the last one was done."""
        answers = self.ask("run", text, algorithm, calls)
        return [max(end for _, end in call) - max(begin for begin, _ in call) for call in zip(*answers, strict=True)]

    def close(self):
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.stdin.close()
        deadline = time.monotonic() + _END_S
        for process in self._processes:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        if self._network is not None:
            self._network.close()
        self._log.close()
        self._folder.cleanup()


def measure(job, name, operation, size, options, only=None):
    """Rows of one case: A B C, A B C, ... so that a slow minute of the machine hits all alike."""
    ranks = len(job.pids)
    case = cases.Case.make(operation, size, "float32", "sum", ranks)
    text = _TEXTS[operation].format(count=case.count, part=case.count // ranks, ranks=ranks)
    found = job.ask("candidates", text)[0]
    kept = [one for one in found if one["seconds"] <= options.within * found[0]["seconds"]]
    kept = kept if only is None else [one for one in found if one["name"] in only]
    times = {one["name"]: [] for one in kept}
    watch, calls = Watch(job.pids), {}
    for one in kept:
        first = min(job.times(text, one["name"], 2 if one["seconds"] < _CALLS_S else 1))
        calls[one["name"]] = min(max(int(_CALLS_S / first), 1), _CALLS_MAX)
    for _ in range(options.rounds):
        for algorithm, many in times.items():
            many += job.times(text, algorithm, calls[algorithm])
    foreign = round(watch.foreign(), 3)
    measured = {algorithm: statistics.median(many) for algorithm, many in times.items()}
    best = min(measured, key=lambda algorithm: measured[algorithm])
    rows = []
    for one in kept:
        seconds = measured[one["name"]]
        values = (
            name, operation, case.bytes, one["name"], round(one["seconds"] * 1e6, 1), round(seconds * 1e6, 1),
            round(one["seconds"] / seconds, 3), round(_quartile(times[one["name"]]) * 1e6, 1), one is found[0], one["name"] == best,
            one["chunk"], len(times[one["name"]]), foreign,
        )  # fmt: skip
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def _quartile(many):
    return sorted(many)[len(many) // 4]


def heading():
    return f"{'network':>18} {'operation':>14} {'bytes':>9} {'algorithm':>24} {'predicted':>12} {'measured':>12} {'ratio':>6}"


def table_line(row):
    marks = (" chosen" if row["chosen"] else "") + (" fastest" if row["fastest"] else "")
    return (
        f"{row['network']:>18} {row['operation']:>14} {row['bytes']:>9} {row['algorithm']:>24} {row['predicted_us']:>12.1f} "
        f"{row['measured_us']:>12.1f} {row['ratio']:>6.2f}{marks}"
    )


def summary(rows):
    """Lines: shares of good predictions and of good choices, by medians and by lower quartiles, which others disturb less."""
    lines = []
    for name in ("measured_us", "quartile_us"):
        by_case = {}
        for row in rows:
            by_case.setdefault((row["network"], row["operation"], row["bytes"]), []).append(row)
        near = [row for row in rows if abs(row["predicted_us"] / row[name] - 1) <= _NEAR]
        chosen = [row for row in rows if row["chosen"]]
        lost = [
            next(row[name] for row in many if row["chosen"]) / min(row[name] for row in many)
            for many in by_case.values()
        ]
        good = sum(times <= 1 + _NOISE for times in lost)
        what = "medians" if name == "measured_us" else "lower quartiles"
        lines += [
            f"# {what}: predicted within {_NEAR:.0%}: {_share(len(near), len(rows))} rows, "
            f"{_share(sum(row['chosen'] for row in near), len(chosen))} of those chosen",
            f"# {what}: the fastest was chosen, within {_NOISE:.0%}: {_share(good, len(lost))} cases; at worst {max(lost):.2f} "
            f"times the fastest, {statistics.median(lost):.2f} in the median",
        ]
    foreign = statistics.median(row["foreign"] for row in rows)
    return [*lines, f"# others used {foreign:.0%} of the processors, median over rows"]


def _share(some, of):
    return f"{some} of {of} ({some / of:.0%})"


def grid(options, emit):
    rows = []
    for name in options.networks.split(","):
        job = Job(network_of(name))
        try:
            emit({"kind": "network", "network": name, "profile": job.profile, "load": os.getloadavg()})
            for operation in options.operations:
                for size in options.sizes:
                    if size <= 16 << 20 or operation == "all_reduce":
                        found = measure(job, name, operation, size, options)
                        rows += found
                        for row in found:
                            emit({"kind": "row", **row}, table_line(row))
        finally:
            job.close()
    for line in summary(rows):
        emit({"kind": "summary", "text": line}, line)


def balanced(options, emit):
    """All three stages equally long; and the stage between as long as the two inside together, which share links."""
    for between in (options.balanced, options.balanced // 2):
        name = f"balanced@{options.balanced}/{between}"
        job = Job(balanced_network(options.balanced, between))
        try:
            emit({"kind": "network", "network": name, "profile": job.profile, "load": os.getloadavg()})
            both = ("hierarchical", "hierarchical_sequential")
            for size in options.sizes:
                rows = measure(job, name, "all_reduce", size, options, both)
                for row in rows:
                    emit({"kind": "row", **row}, table_line(row))
                took = {row["algorithm"]: row["measured_us"] for row in rows}
                line = f"# {name}: sequential takes {took[both[1]] / took[both[0]]:.2f} times as long"
                emit({"kind": "summary", "text": line}, line)
        finally:
            job.close()


def main(arguments=None):
    options = parse(arguments)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(options.json, "w")) if options.json else None

        def emit(values, line=None):
            if file:
                print(json.dumps(values), file=file, flush=True)
            if line:
                print(line, flush=True)

        print(heading(), flush=True)
        try:
            (balanced if options.balanced else grid)(options, emit)
        except (OSError, ValueError) as why:
            sys.exit(f"shaped.py: {why}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main()
