# SPDX-License-Identifier: Apache-2.0
"""Network namespaces as hosts, joined by veth links that a test takes away and gives back. They need root."""

import contextlib
import os
import shutil
import subprocess
import sys
import time

from processes import Pool

_HOLD = "import sys; print('ready', flush=True); sys.stdin.read()"


class Hosts:
    """Namespaces that live as long as this object; each counts as a host for jhetcc."""

    def __init__(self, count=2):
        self.count, self._holders = count, []
        try:
            for _ in range(count):
                self._holders.append(self._hold())
            for number in range(count):
                self.do(number, "ip link set lo up")
        except OSError:
            self.close()
            raise

    def _hold(self):
        holder = subprocess.Popen(
            ["unshare", "--net", sys.executable, "-I", "-S", "-c", _HOLD],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        said = holder.stdout.readline().strip().decode()
        if said != "ready":
            holder.kill()
            holder.wait()
            raise OSError(f"no network namespace: {said}")
        return holder

    def prefix(self, number):
        return ("nsenter", f"--net=/proc/{self._holders[number].pid}/ns/net")

    def do(self, number, command):
        done = subprocess.run(
            [*self.prefix(number), "sh", "-ec", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise OSError(f"{command}: {done.stderr.strip()}")
        return done.stdout

    def join(self, a, b, name, other, *, addresses=(), mbit=None):
        """A link between two: the name of its end on each, and "host/length" of addresses (a's, b's), several by spaces."""
        self.do(a, f"ip link add {name} type veth peer name {other} netns {self._holders[b].pid}")
        for number, end, hosts in zip((a, b), (name, other), addresses or ("", ""), strict=True):
            if mbit:
                self.do(number, f"tc qdisc add dev {end} root tbf rate {mbit}mbit burst 128kb latency 20ms")
            for host in hosts.split():
                self.do(number, f"ip address add {host} dev {end} {'nodad' if ':' in host else ''}")
            self.do(number, f"ip link set {end} up")

    def settle(self):
        """Waits until the system says of every link that has a carrier that it runs: it does so a moment later."""
        end = time.monotonic() + 10
        for number in range(self.count):
            while any({"NO-CARRIER", "LOWER_UP"} <= flags for flags in self._flags(number)):
                assert time.monotonic() < end, self.do(number, "ip link")
                time.sleep(0.01)

    def _flags(self, number):
        links = self.do(number, "ip -o link show up").splitlines()
        return [set(line.partition("<")[2].partition(">")[0].split(",")) for line in links]

    def pool(self, **how):
        self.settle()
        return Pool((1,) * self.count, prefixes=[self.prefix(number) for number in range(self.count)], **how)

    def close(self):
        for holder in self._holders:
            holder.stdin.close()
        for holder in self._holders:
            holder.wait()
            holder.stdout.close()
        self._holders = []


def missing():
    """Why there can be no namespaces here, or None."""
    tools = [name for name in ("unshare", "nsenter", "ip", "tc") if not shutil.which(name)]
    if os.geteuid() != 0:
        return "network namespaces need root"
    if tools:
        return "network namespaces need " + ", ".join(tools)
    with contextlib.suppress(OSError):
        Hosts(1).close()
        return None
    return "this kernel allows no network namespaces"
