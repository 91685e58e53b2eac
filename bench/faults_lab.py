# SPDX-License-Identifier: Apache-2.0
"""The two guests of the RDMA lab (tests/rdma_lab) as the hosts of bench/faults.py, which then runs in the first one; and how it gets there.

NICs have netem here, and adapters on top of it: what a link does to frames is done to RDMA.
"""

import contextlib
import itertools
import json
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from faults_hand import Hand

import jhetcc

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAB = ROOT / "tests" / "rdma_lab" / "lab.sh"
PORT = 7100
_LOOK_S, _SHOW_S, _SETTLE_S = 0.015, 1.0, 10
_CONNECT_S = 120
_PINGS = 8
_QUEUE_FRAMES = 2000


class RemoteProcess:
    """Like a process here; its pipes are a socket, which is also the ``stdin`` and ``stdout`` of the one there."""

    def __init__(self, hand, address, name, words, environment):
        self._hand, self._name = hand, name
        self._socket = socket.create_connection(address, timeout=_CONNECT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall((json.dumps(["start", name, words, environment]) + "\n").encode())
        while self._socket.recv(1) != b"\n":
            continue
        self._socket.settimeout(None)
        self.stdout = self.stdin = self

    # -- as a pipe
    def fileno(self):
        return self._socket.fileno()

    def write(self, data):
        self._socket.sendall(data)

    # -- as a process
    def send_signal(self, number):
        self._hand.signal(self._name, int(number))

    def kill(self):
        self.send_signal(9)

    def wait(self, seconds=5.0):
        if (code := self._hand.wait(self._name, seconds)) is None:
            raise subprocess.TimeoutExpired(self._name, seconds)
        return code

    def output(self):
        return self._hand.output(self._name)

    def end_input(self):
        self._socket.shutdown(socket.SHUT_WR)

    def close(self):
        self._socket.close()
        self._hand.forget(self._name)


class RemoteHand:
    """A Hand of the other guest: the same calls, one at a time."""

    def __init__(self, address):
        self._lock, end = threading.Lock(), time.monotonic() + _CONNECT_S
        while True:
            try:
                connection = socket.create_connection(address, timeout=_CONNECT_S)
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._lines = connection, connection.makefile("rw")
        self._lines.write('["commands"]\n')
        self._lines.flush()

    def __getattr__(self, name):
        def call(*arguments):
            with self._lock:
                self._lines.write(json.dumps([name, *arguments]) + "\n")
                self._lines.flush()
                line = self._lines.readline()
            if not line:
                raise OSError("the other guest's hand is gone")
            return json.loads(line)

        return call

    def close(self):
        self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class LabSite:
    """As faults_network.Site, of which it has all that faults use. NIC k of host h is ``nic<k>`` with 10.9.k.h+1.

    Args:
      rates: Mbit/s each way, one a link.
    """

    transport, patience, grace_s, words_share = "verbs", 4, 0.3, 8
    # A path whose bytes wait for a processor for 200 ms cannot be told from a silent one.
    may_look_silent = True

    def __init__(self, rates):
        self.rates, self._names, self._chances, self._then = list(rates), itertools.count(), {}, None
        links = len(rates)
        self._driver = f"10.9.{links + 1}.2"
        self._hands = [Hand(links)]
        self._hands.append(RemoteHand((self._driver, PORT)))
        self._ahead = 0.0
        for host in (0, 1):
            for link in range(links):
                self._shape(host, link)
        self.tune()

    # -- who and where
    @staticmethod
    def nic_address(host, number):
        return f"10.9.{number}.{host + 1}"

    def control_address(self, host):
        return f"10.9.{len(self.rates)}.{host + 1}"

    def used(self, _):
        """How many links a job uses."""
        return len(self.rates)

    @property
    def wire_link(self):
        """The one whose frames are hit."""
        return len(self.rates) - 1

    def start(self, host, words, environment):
        if host == 0:
            return self._hands[0].start(next(self._names), words, environment)
        name = str(next(self._names))
        return RemoteProcess(self._hands[1], (self._driver, PORT), name, words, environment)

    # -- one clock
    def tune(self):
        """Measures by how much the other guest's clock is ahead: no more wrong than half of the fastest answer took."""
        best = None
        for _ in range(_PINGS):
            then = time.perf_counter()
            there = self._hands[1].clock()
            now = time.perf_counter()
            if best is None or now - then < best[0]:
                best = now - then, there - (then + now) / 2
        self.blur_s, self._ahead = best

    def ahead(self, host):
        return self._ahead if host else 0.0

    # -- faults
    def _netem(self, link, **what):
        settings = {
            "rate": f"{self.rates[link]}mbit",
            "loss": "0%",
            "duplicate": "0%",
            "corrupt": "0%",
            "delay": "0ms",
        } | what
        return f"limit {_QUEUE_FRAMES} " + " ".join(f"{key} {value}" for key, value in settings.items())

    def _shape(self, host, link, **what):
        self._hands[host].tool("tc", f"qdisc replace dev nic{link} root netem {self._netem(link, **what)}")

    def switch(self, host, name, up):
        self._hands[host].switch(name, up)

    def down(self, host, number):
        self.switch(host, f"nic{number}", False)

    def up(self, host, number):
        self.switch(host, f"nic{number}", True)

    def settle(self, numbers):
        """Until both guests say that these links run."""
        end = time.perf_counter() + _SETTLE_S
        while not all(hand.runs(f"nic{k}") for hand in self._hands for k in numbers):
            if time.perf_counter() > end:
                raise OSError(f"links {numbers} do not come up")
            time.sleep(_LOOK_S)

    def ip(self, host, words):
        self._hands[host].tool("ip", words)

    def swallow(self, host, number, both_ways=True):
        for one in (host, 1 - host) if both_ways else (host,):
            self._shape(one, number, loss="100%")

    def pass_again(self, host, number):
        for one in (host, 1 - host):
            self._shape(one, number)

    def wire(self, **chances):
        """Sets what happens to frames of the last link; what happened to them before, by kind, both ends together."""
        link, now = self.wire_link, [hand.mended(self.wire_link) for hand in self._hands]
        done = {key: sum(n[key] - t[key] for n, t in zip(now, self._then or now, strict=True)) for key in now[0]}
        was, self._chances, self._then = self._chances, chances, now
        what = {"loss": f"{100 * chances.get('lost', 0):g}%", "corrupt": f"{100 * chances.get('damaged', 0):g}%"}
        what["duplicate"] = f"{100 * chances.get('twice', 0):g}%"
        if late := chances.get("late_s"):
            what["delay"] = f"{500 * late:g}ms {500 * late:g}ms"
        for host in (0, 1):
            self._shape(host, link, **what)
        found = {
            "lost": done["drops"],
            "damaged": done["out_of_seq_request"] + done["rcvd_seq_err"],
            "twice": done["duplicate_request"],
            "late": done["packets"],
        }
        return {kind: count if kind in was else 0 for kind, count in found.items()}

    # -- what went over
    def counters(self, host):
        return self._hands[host].counters()

    def sent(self, host, numbers):
        now = self.counters(host)
        return sum(now[f"nic{k}"][1] for k in numbers)

    def both_ways(self, number):
        """Bytes that have arrived at both ends: what an adapter sends again into a dead link does not."""
        return sum(self.counters(host)[f"nic{number}"][0] for host in (0, 1))

    def wait_for(self, host, numbers, count, seconds, is_over=lambda: False):
        end = time.perf_counter() + seconds
        while self.sent(host, numbers) < count:
            if is_over() or time.perf_counter() > end:
                return False
            time.sleep(_LOOK_S)
        return True

    def listening(self, host):
        return self._hands[host].listening()

    def socket(self, _, kind=socket.SOCK_STREAM):
        """Strangers come from the first guest, to both."""
        return socket.socket(socket.AF_INET, kind)

    def close(self):
        for hand in self._hands:
            hand.close()


def run_in_lab(words, links, seconds, rows=None):
    """Boots both guests and runs the bench in the first one; its exit code.

    Args:
      words: its arguments.
      links: between the guests.
      seconds: after which they are ended.
      rows: file for JSON lines.

    Raises:
      OSError: there is no lab here.
    """
    found = subprocess.run([str(LAB), "found"], capture_output=True, text=True)
    if found.returncode:
        raise OSError(found.stdout.strip())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the guests end with this process
    with tempfile.TemporaryDirectory(prefix="faults-lab.", dir="/var/tmp") as directory:
        out, words = pathlib.Path(directory), [*words, "--json", "/lab-out/rows.jsonl"]
        bench, python = shlex.quote(str(ROOT / "bench")), f"exec {shlex.quote(sys.executable)} -u"
        command = (
            f"export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={shlex.quote(str(pathlib.Path(jhetcc.__file__).parents[1]))}\n"
            f"[ $LAB_HOST = 1 ] && {python} {bench}/faults.py --lab {shlex.join(words)}\n"
            f"{python} {bench}/faults_hand.py {links} {PORT}"
        )
        asked = [str(LAB), "run", "-H", "2", "-n", str(links + 2), "-t", str(seconds), "--", "bash", "-c", command]
        guests = subprocess.Popen(
            asked, env=os.environ | {"LAB_DIR": directory}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        shown = 0
        try:
            while guests.poll() is None:
                shown = _show(out / "host1.log", shown)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    guests.wait(_SHOW_S)
        finally:
            guests.terminate()
            rest = guests.communicate()[0]
        _show(out / "host1.log", shown)
        if rows is not None and (out / "rows.jsonl").exists():
            with open(rows, "a", encoding="utf-8") as file:
                file.write((out / "rows.jsonl").read_text())
        if guests.returncode not in (0, 1, 3):
            print(rest, file=sys.stderr)
        return guests.returncode


def _show(path, shown):
    """Prints what a file holds beyond that many bytes; how many it holds."""
    if not path.exists():
        return shown
    with open(path, "rb") as file:
        file.seek(shown)
        data = file.read()
    sys.stdout.write(data.decode(errors="replace"))
    sys.stdout.flush()
    return shown + len(data)
