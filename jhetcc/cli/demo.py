# SPDX-License-Identifier: Apache-2.0
"""``jhetcc demo failover``: trains over several NICs while they are taken away and given back, and shows that nothing else changes."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import secrets
import selectors
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jhetcc.cli.demo_hosts import Hosts, Loopback, Namespaces
from jhetcc.cli.demo_picture import COLOURS, Curve, Mark, Panel, svg
from jhetcc.errors import InternalError, ResourceError, UnavailableError
from jhetcc.launch import child

# When (as a share of all steps), what, and which link. Whatever is taken comes back before the end, so that the job is whole again.
PLAYS = (
    (0.15, "down", 1), (0.30, "give", 1), (0.38, "swallow", 2), (0.55, "give", 2), (0.60, "down", 0), (0.64, "down", 1),
    (0.75, "give", 0), (0.80, "give", 1),
)  # fmt: skip
_SILENT_S = 60.0
_END_S = 15.0
_BAR = 24


@dataclass
class Trained:
    """What one run of the job was."""

    steps: list[list[dict[str, Any]]] = field(default_factory=lambda: [[], []])
    ends: list[dict[str, Any]] = field(default_factory=lambda: [{}, {}])
    marks: list[tuple[float, str, bool, int]] = field(default_factory=list)  # when, what, whether back, the link

    @property
    def begin(self) -> float:
        return self.steps[0][0]["time"] - self.steps[0][0]["seconds"]

    @property
    def digests(self) -> set[str]:
        return {end["digest"] for end in self.ends}

    @property
    def losses(self) -> list[float]:
        return [step["loss"] for step in self.steps[0]]


class Job:
    """Two processes, one a host. Ends them whatever happens."""

    def __init__(self, hosts: Hosts, seed: int, steps: int):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JHETCC_") and k != "XLA_FLAGS"}
        environment |= {
            "JAX_PLATFORMS": "cpu",
            "OMP_NUM_THREADS": "1",
            "JHETCC_COORDINATOR": hosts.coordinator(),
            "JHETCC_NUM_PROCESSES": "2",
            "JHETCC_INTERFACE": hosts.interface(),
            "JHETCC_TRANSPORT": "tcp",
            "JHETCC_PATHS_PER_NIC": "1",
            "JHETCC_SECRET": secrets.token_hex(32),
        }
        self._processes, self._logs, self._rest = [], [], [b"", b""]
        self._selector = selectors.DefaultSelector()
        for host in (0, 1):
            tied = [sys.executable, "-I", "-S", child.__file__, str(os.getpid())]
            words = [sys.executable, "-P", "-m", "jhetcc.cli.demo_member", str(seed), str(steps)]
            log = tempfile.TemporaryFile()  # noqa: SIM115 - until the job ends
            self._logs.append(log)
            process = subprocess.Popen(
                [*hosts.prefix(host), *tied, *words],
                env=environment | {"JHETCC_PROCESS_ID": str(host)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                bufsize=0,
            )
            self._processes.append(process)
            self._selector.register(process.stdout, selectors.EVENT_READ, host)  # type: ignore[arg-type]

    def tell(self, word: Any) -> None:
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write((json.dumps(word) + "\n").encode())

    def words(self):
        """Pairs of host and what its process says, until both have ended."""
        open_ones = {0, 1}
        while open_ones:
            ready = self._selector.select(_SILENT_S)
            if not ready:
                raise InternalError(
                    f"the training stands still: {self._outputs()}", code="demo_failed", scope="process"
                )
            for key, _ in ready:
                host, data = key.data, os.read(key.fd, 1 << 16)
                if not data:
                    self._selector.unregister(key.fileobj)
                    open_ones.discard(host)
                    if code := self._processes[host].wait():
                        why = f"the process of host {host} ended with {code}: {self._outputs()}"
                        raise InternalError(why, code="demo_failed", scope="process")
                *lines, self._rest[host] = (self._rest[host] + data).split(b"\n")
                for line in lines:
                    yield host, json.loads(line)

    def _outputs(self) -> str:
        texts = []
        for log in self._logs:
            log.seek(0)
            texts.append(log.read().decode(errors="replace")[-2000:])
        return "\n".join(texts)

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.stdin.close()
            if process.poll() is None:
                process.kill()
            process.wait(_END_S)
            process.stdout.close()
        for log in self._logs:
            log.close()
        self._selector.close()


class View:
    """A few lines that are drawn anew on a terminal, else one line now and then."""

    def __init__(self, name: str, steps: int, links: int):
        self._name, self._steps, self._links = name, steps, links
        self._is_terminal, self._drawn, self._last = sys.stdout.isatty(), 0, 0.0
        self._before: dict[str, Any] | None = None

    def show(self, word: dict[str, Any]) -> None:
        if word["time"] - self._last < (0.2 if self._is_terminal else 1.0):
            return
        seconds, self._last = word["time"] - self._last, word["time"]
        before, self._before = self._before, word
        if before is None:
            return
        head = f"{self._name}: step {word['step'] + 1:4}/{self._steps}  loss {word['loss']:.4f}  {1e3 * word['seconds']:5.0f} ms"
        rates = [
            (now["bytes"] - then["bytes"]) / seconds for now, then in zip(word["paths"], before["paths"], strict=True)
        ]
        if not self._is_terminal:
            shown = "  ".join(
                f"{path['state']} {rate / 1e6:.0f} MB/s" for path, rate in zip(word["paths"], rates, strict=True)
            )
            print(f"{head}  {shown}", flush=True)
            return
        most = max([*rates, 1.0])
        lines = [head]
        for number, (path, rate) in enumerate(zip(word["paths"], rates, strict=True)):
            bar = "#" * round(_BAR * rate / most)
            lines.append(
                f"  path {number} {path['state']:<9} {rate / 1e6:7.1f} MB/s {bar:<{_BAR}} losses {path['losses']}"
            )
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        print(up + "\n".join("\x1b[K" + line for line in lines), flush=True)
        self._drawn = len(lines)

    def say(self, text: str) -> None:
        print(("\x1b[K" if self._is_terminal else "") + text, flush=True)
        self._drawn = 0


def train(job: Job, hosts: Hosts, steps: int, plays, view: View) -> Trained:
    """Lets the job run to its end, and plays faults at their steps."""
    trained, left = Trained(), sorted(plays)
    for host, word in job.words():
        if "digest" in word:
            trained.ends[host] = word
            continue
        trained.steps[host].append(word)
        if host == 1:
            continue
        view.show(word)
        while left and word["step"] >= left[0][0] * steps:
            _, what, link = left.pop(0)
            if link >= hosts.links:
                continue
            moment = time.perf_counter()
            if what == "give":
                hosts.give(link)
                text = f"path {link}: given back"
            else:
                text = f"path {link}: {hosts.take(link, what)}"
            trained.marks.append((moment, text, what == "give", link))
            view.say(f"  {text}")
    return trained


def missed(trained: Trained, links: int, is_shaped: bool = True) -> list[str]:
    """Which of the links that were taken away were not lost, or carried nothing before or nothing after their return.

    Without shaped links shares say little: there it is enough that the path is healthy again.
    """
    missing, steps = [], trained.steps[0]
    for link in range(links):
        taken = [moment for moment, _, is_back, number in trained.marks if number == link and not is_back]
        given = [moment for moment, _, is_back, number in trained.marks if number == link and is_back]
        if not taken:
            continue

        def moved(begin: float, end: float, link: int = link) -> int:
            inside = [step["paths"][link]["bytes"] for step in steps if begin <= step["time"] <= end]
            return inside[-1] - inside[0] if inside else 0

        last = steps[-1]["time"]
        if steps[-1]["paths"][link]["losses"] == 0:
            missing.append(f"path {link} was never lost")
        if is_shaped and moved(0, taken[0]) == 0:
            missing.append(f"path {link} carried nothing before it was taken away")
        if not is_shaped:
            if steps[-1]["paths"][link]["state"] != "healthy":
                missing.append(f"path {link} did not come back")
        elif moved((given or taken)[-1], last) == 0:
            missing.append(f"path {link} carried nothing after its return")
    return missing


def picture(title: str, quiet: Trained, shaken: Trained, links: int) -> str:
    begin, steps = shaken.begin, shaken.steps[0]
    rates = []
    for link in range(links):
        points = [
            (
                now["time"] - begin,
                (now["paths"][link]["bytes"] - then["paths"][link]["bytes"]) / 1e6 / (now["time"] - then["time"]),
            )
            for then, now in itertools.pairwise(steps[1:])
        ]
        rates.append(Curve(f"path {link}", points, COLOURS[link % len(COLOURS)]))
    times = [(step["time"] - begin, 1e3 * step["seconds"]) for step in steps[1:]]
    here = [(step["time"] - begin, step["loss"]) for step in steps]
    # The undisturbed run at the same steps: where the two agree bit by bit, one curve covers the other.
    there = [(step["time"] - begin, loss) for step, loss in zip(steps, quiet.losses, strict=True)]
    panels = [
        Panel("MB/s of each path", rates),
        Panel("ms of each step", [Curve("step time", times, COLOURS[0])]),
        Panel("loss", [Curve("undisturbed", there, COLOURS[1]), Curve("with faults", here, COLOURS[0], dashes=True)]),
    ]
    marks = [Mark(moment - begin, text, is_back) for moment, text, is_back, _ in shaken.marks]
    return svg(title, panels, marks)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="jhetcc demo",
        description="failover: trains a small model over several NICs while they are taken away and given back.",
    )
    parser.add_argument("what", choices=["failover"])
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--links", type=int, default=4)
    parser.add_argument("--mbit", type=int, default=200, help="Mbit/s of each link, each way; default 200")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--loopback", action="store_true", help="addresses of loopback instead of namespaces, even as root"
    )
    parser.add_argument("--svg", metavar="FILE", default="failover.svg", help="the picture; default failover.svg")
    values = parser.parse_args(arguments)
    if values.links < 3 or values.steps < 20:
        parser.error(
            "at least 3 links and 20 steps: two links are away at once, and each carries bytes before and after"
        )
    return values


def run(arguments: list[str]) -> int:
    values = parse(arguments)
    job: Job | None = None
    hosts: Hosts
    if values.loopback or os.geteuid() != 0:
        hosts = Loopback(values.links, lambda word: job.tell(word) if job else None)
    else:
        try:
            hosts = Namespaces(values.links, values.mbit)
        except UnavailableError as why:
            print(f"{why}; addresses of loopback instead", flush=True)
            hosts = Loopback(values.links, lambda word: job.tell(word) if job else None)
    runs = []
    try:
        print(f"two processes on {hosts.about}; first undisturbed, then with faults", flush=True)
        for name, plays in (("undisturbed", ()), ("with faults", PLAYS)):
            job = Job(hosts, values.seed, values.steps)
            try:
                runs.append(train(job, hosts, values.steps, plays, View(name, values.steps, values.links)))
            finally:
                job.close()
    finally:
        hosts.close()
    return report(values, hosts, *runs)


def report(values: argparse.Namespace, hosts: Hosts, quiet: Trained, shaken: Trained) -> int:
    """Writes the picture and says what was found; the exit code."""
    try:
        Path(values.svg).write_text(
            picture(f"{values.steps} training steps on {hosts.about}", quiet, shaken, hosts.links), encoding="utf-8"
        )
    except OSError as why:
        raise ResourceError(f"--svg {values.svg}: {why.strerror}", code="resource", scope="process") from why
    wrong = missed(shaken, hosts.links, isinstance(hosts, Namespaces))
    if len(quiet.digests | shaken.digests) != 1:
        wrong.append(f"the weights differ: undisturbed {sorted(quiet.digests)}, with faults {sorted(shaken.digests)}")
    if quiet.losses != shaken.losses:
        wrong.append("the losses of the steps differ")
    if aborts := sum(end["aborts"] for end in shaken.ends):
        wrong.append(f"{aborts} operations were given up")
    for line in wrong:
        print(f"check failed: {line}", flush=True)
    times = [[step["seconds"] for step in one.steps[0][1:]] for one in (quiet, shaken)]
    lost = sum(path["losses"] for path in shaken.steps[0][-1]["paths"])
    mean = [1e3 * sum(one) / len(one) for one in times]
    print(f"{values.steps} steps each, none failed; {lost} paths were lost and came back; picture: {values.svg}")
    print(f"mean step {mean[0]:.0f} ms undisturbed, {mean[1]:.0f} ms with faults; longest {1e3 * max(times[1]):.0f} ms")
    if not wrong:
        print("check passed: weights bit-identical to the undisturbed run's, on both ranks")
    return 1 if wrong else 0
