# SPDX-License-Identifier: Apache-2.0
"""Network namespaces joined by links of given rates. They live as long as processes of their own, which end with the bench.

A process in a namespace counts as a host for jhetcc. The rate is kept by a token bucket at the sending end of each link; delay is
what the kernel takes, for it cannot be added without netem, which many kernels lack.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

_HOLD = "import sys; print('ready', flush=True); sys.stdin.read()"
MTU = 9000
_SLOW_MBIT = 200
_QUEUE_S = 0.02  # of bytes that may wait for a link; where senders meet they lose packets, as at a switch
_QUEUE_LEAST = 512 << 10


def token_bucket(mbit, limit=None, mtu=MTU):
    """What ``tc qdisc`` calls a link of this rate that keeps some 20 ms of bytes (or ``limit``) and loses the rest."""
    burst = max(mtu * 10 // 9, mbit * 125 // 10)  # 0.1 ms: idle links save up no more than that, or one frame
    limit = limit or max(_QUEUE_LEAST, int(mbit * 125_000 * _QUEUE_S))
    return f"tbf rate {mbit}mbit burst {burst}b limit {limit}"


@dataclass(frozen=True)
class Link:
    """Between two namespaces by number, Mbit/s each way; the number after the last namespace is the hub."""

    a: int
    b: int
    there: int
    back: int


class Network:
    """Namespaces with one address each; pairs that no link joins reach each other by those between, the shortest way.

    Args:
      count: of namespaces, without a hub.
      links: at most one a pair; all are joined.

    Raises:
      OSError: not root, no such tools, or the kernel refuses.
    """

    def __init__(self, count, links):
        missing = [name for name in ("unshare", "nsenter", "ip", "tc") if not shutil.which(name)]
        if os.geteuid() != 0 or missing:
            raise OSError("network namespaces need root" + "".join(f" and {name}" for name in missing))
        self.count, self._holders = count, []
        try:
            for _ in range(count + any(count in (link.a, link.b) for link in links)):
                self._holders.append(self._hold())
            for number in range(len(self._holders)):
                self._prepare(number)
            for link in links:
                self._join(link)
            for number in range(count):
                self._route(number, links)
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

    def address(self, number):
        return f"10.77.0.{number + 1}"

    def pid(self, number):
        """Of the process that keeps a namespace."""
        return self._holders[number].pid

    def prefix(self, number):
        """What to put in front of a command that shall run in a namespace; it stays the same process."""
        return ["nsenter", f"--net=/proc/{self._holders[number].pid}/ns/net"]

    def do(self, number, command):
        """Runs a shell command in a namespace."""
        done = subprocess.run(
            [*self.prefix(number), "sh", "-c", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise OSError(f"{command}: {done.stderr.strip()}")

    def _join(self, link):
        to_b, to_a = f"to{link.b}", f"to{link.a}"
        self.do(link.a, f"ip link add {to_b} type veth peer name {to_a} netns {self._holders[link.b].pid}")
        # On slow links a long frame that an idle bucket saved up would be a large part of a short message.
        mtu = MTU if min(link.there, link.back) > _SLOW_MBIT else 1500
        for number, name, mbit in ((link.a, to_b, link.there), (link.b, to_a, link.back)):
            self.do(number, f"ip link set {name} mtu {mtu} up")
            self.do(number, f"ip address add {self.address(number)}/32 dev {name}")
            self.do(number, f"tc qdisc add dev {name} root {token_bucket(mbit, mtu=mtu)}")
            peer = self.address(link.a + link.b - number)
            self.do(number, f"ip route add {peer} dev {name} src {self.address(number)}")

    def _prepare(self, number):
        self.do(number, "ip link set lo up && echo 1 > /proc/sys/net/ipv4/ip_forward")

    def _route(self, target, links):
        """The way to one namespace, on all others that no link joins with it: breadth first, from where it is."""
        after, place, reached = [target], self.address(target), {target}
        for number in after:
            for link in links:
                if number in (link.a, link.b) and (one := link.a + link.b - number) not in reached:
                    if number != target:
                        hop = f"via {self.address(number)} dev to{number} src {self.address(one)}"
                        self.do(one, f"ip route add {place} {hop}")
                    reached.add(one)
                    after.append(one)

    def close(self):
        for holder in self._holders:
            holder.stdin.close()
        for holder in self._holders:
            holder.wait()
            holder.stdout.close()
        self._holders = []
