# SPDX-License-Identifier: Apache-2.0
"""Two hosts joined by several links, and a hand in each that takes links away and gives them back within microseconds. One thread.

Beside the links: one of the control plane alone, and a place outside both hosts where half of a link can vanish to.
"""

import array
import ctypes
import fcntl
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import time

from faults_process import Process, tied
from rails_network import Rails
from shaped_network import MTU, token_bucket

_CLONE_NEWNET = 0x40000000
_GET_FLAGS, _SET_FLAGS, _IFF_UP, _IFF_RUNNING = 0x8913, 0x8914, 1, 0x40
_ETHTOOL, _OFFLOADS = 0x8946, (0x17, 0x1F, 0x24, 0x19, 0x2C)  # checksums, segments of both kinds, pieces, merging
_LOOK_S = 0.0002
_WIRE = str(pathlib.Path(__file__).resolve().parent / "faults_wire.py")
OUTSIDE = 2  # number of the namespace that belongs to no host
_libc = ctypes.CDLL(None, use_errno=True)


def _enter(descriptor):
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


class Site(Rails):
    """Links ``nic0``, ``nic1``, ... with the addresses 10.88.k.1 and 10.88.k.2; ``ctl`` with 10.89.0.1 and 10.89.0.2.

    Args:
      rates: Mbit/s each way, one a link.
      wire: Mbit/s of one more link, the last, that runs through a process (faults_wire.py); 0: none.
      seed: of that process.

    Raises:
      OSError: not root, no such tools, or the kernel refuses.
    """

    transport, patience, grace_s, words_share = "tcp", 1, 0.06, 1
    blur_s = 0.0  # of the other host's clock, which is this one
    may_look_silent = False

    def __init__(self, rates, wire=0, seed=0):
        super().__init__(rates)
        self.wire_link = len(rates)
        self._wire = None
        self._own, self._places, self._sockets, self._tools = os.open("/proc/self/ns/net", os.O_RDONLY), [], [], {}
        try:
            self._holders.append(self._hold())  # OUTSIDE
            self.do(0, f"ip link add ctl type veth peer name ctl netns {self.pid(1)}")
            for host in (0, 1):
                self.do(host, f"ip link set ctl up && ip address add {self.control_address(host)}/24 dev ctl")
            for number in range(3):
                self._places.append(os.open(f"/proc/{self.pid(number)}/ns/net", os.O_RDONLY))
                self._sockets.append(self.socket(number, socket.SOCK_DGRAM))
                self._take_tools(number)
            if wire:
                self._lay_wire(wire, seed)
        except OSError:
            self.close()
            raise

    def _take_tools(self, number):
        """Programs that wait for commands; they remember interfaces by number, so a link that was replaced needs new ones."""
        for tool in ("tc", "ip"):
            if (old := self._tools.pop((number, tool), None)) is not None:
                old.stdin.close()
                old.wait()
            self._tools[number, tool] = subprocess.Popen(
                [*self.prefix(number), tool, "-force", "-batch", "-"],
                stdin=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )

    def _lay_wire(self, mbit, seed):
        number = len(self.rates)
        self.rates.append(mbit)
        for host in (0, 1):
            name = f"nic{number}"
            self.do(host, f"ip link add {name} type veth peer name wire{host} netns {self.pid(OUTSIDE)}")
            self.do(OUTSIDE, f"ip link set wire{host} mtu {MTU} up")
            self.do(host, f"ip link set {name} mtu {MTU} up")
            self.do(host, f"ip address add {self.nic_address(host, number)}/24 dev {name}")
            self.do(host, f"tc qdisc add dev {name} root {token_bucket(mbit)}")
            for place, end in ((host, name), (OUTSIDE, f"wire{host}")):
                for what in _OFFLOADS:  # frames as they would be on a cable, with their checksums
                    value = array.array("B", struct.pack("II", what, 0))
                    request = struct.pack("16sQ16x", end.encode(), value.buffer_info()[0])
                    fcntl.ioctl(self._sockets[place], _ETHTOOL, request)
        self._wire = subprocess.Popen(
            [*self.prefix(OUTSIDE), sys.executable, "-I", "-S", _WIRE, "wire0", "wire1", str(seed)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._wire.stdout.readline()

    def wire(self, **chances):
        """Sets what happens to the frames of that link; what happened to them before, by kind."""
        self._wire.stdin.write(json.dumps(chances) + "\n")
        self._wire.stdin.flush()
        return json.loads(self._wire.stdout.readline())

    @staticmethod
    def control_address(host):
        return f"10.89.0.{host + 1}"

    def used(self, with_wire):
        """How many links a job uses."""
        return self.wire_link + (1 if with_wire else 0)

    def start(self, host, words, environment):
        return Process([*self.prefix(host), *tied(words)], environment)

    @staticmethod
    def ahead(_):
        return 0.0

    def tune(self):
        """All read one clock."""

    def socket(self, host, kind=socket.SOCK_STREAM, family=socket.AF_INET, protocol=0):
        """A socket that belongs to that host."""
        _enter(self._places[host])
        try:
            return socket.socket(family, kind, protocol)
        finally:
            _enter(self._own)

    # -- at once, without a new process
    def _flags(self, host, name):
        flags = fcntl.ioctl(self._sockets[host], _GET_FLAGS, struct.pack("16sH22x", name.encode(), 0))
        return struct.unpack_from("H", flags, 16)[0]

    def settle(self, numbers):
        """Until the system says that these links run, which it does a moment after they do: a job that begins before leaves them out."""
        end = time.perf_counter() + 5
        while not all(self._flags(host, f"nic{k}") & _IFF_RUNNING for host in (0, 1) for k in numbers):
            if time.perf_counter() > end:
                raise OSError(f"links {numbers} do not come up")
            time.sleep(_LOOK_S)

    def switch(self, host, name, up):
        now = self._flags(host, name)
        now = now | _IFF_UP if up else now & ~_IFF_UP
        fcntl.ioctl(self._sockets[host], _SET_FLAGS, struct.pack("16sH22x", name.encode(), now))

    def down(self, host, number):
        self.switch(host, f"nic{number}", False)

    def up(self, host, number):
        self.switch(host, f"nic{number}", True)

    def _tool(self, number, tool, words):
        pipe = self._tools[number, tool].stdin
        pipe.write(words + "\n")
        pipe.flush()

    def ip(self, host, words):
        self._tool(host, "ip", words)

    def _shape(self, host, number, mbit, limit=None):
        self._tool(host, "tc", f"qdisc change dev nic{number} root {token_bucket(mbit, limit)}")

    def swallow(self, host, number, both_ways=True):
        for one in (host, 1 - host) if both_ways else (host,):
            self._shape(one, number, self.rates[number], limit=1)

    def pass_again(self, host, number):
        for one in (host, 1 - host):
            self._shape(one, number, self.rates[number])

    def set_rate(self, number, mbit):
        for host in (0, 1):
            self._shape(host, number, mbit)

    def vanish(self, host, number):
        """This host's end of the link, address and all, is elsewhere from now on; what it had open stays open."""
        name, end = f"nic{number}", time.perf_counter() + 5
        self.ip(host, f"link set {name} netns {self.pid(OUTSIDE)}")
        while name in self.counters(host) and time.perf_counter() < end:
            time.sleep(_LOOK_S)
        self.ip(OUTSIDE, f"link set nic{number} up")

    def reappear(self, host, number):
        self.do(OUTSIDE, f"ip link set nic{number} netns {self.pid(host)}")
        self.do(host, f"tc qdisc add dev nic{number} root {token_bucket(self.rates[number])}")
        self.do(host, f"ip link set nic{number} mtu {MTU} up")
        self.do(host, f"ip address add {self.nic_address(host, number)}/24 dev nic{number}")
        for one in (host, OUTSIDE):
            self._take_tools(one)

    # -- what went over
    def counters(self, host):
        """Bytes received and sent by each interface of a host."""
        found = {}
        with open(f"/proc/{self.pid(host)}/net/dev", encoding="ascii") as file:
            for line in file.readlines()[2:]:
                name, _, numbers = line.partition(":")
                words = numbers.split()
                found[name.strip()] = int(words[0]), int(words[8])
        return found

    def sent(self, host, numbers):
        """Bytes that these NICs of a host have sent."""
        now = self.counters(host)
        return sum(now[f"nic{k}"][1] for k in numbers if f"nic{k}" in now)

    def both_ways(self, number):
        """Bytes that both ends of a link have sent."""
        return self.sent(0, [number]) + self.sent(1, [number])

    def wait_for(self, host, numbers, count, seconds, is_over=lambda: False):
        """Until these NICs have sent this many bytes in all; whether they have, before ``is_over()`` or the time."""
        end = time.perf_counter() + seconds
        while self.sent(host, numbers) < count:
            if is_over() or time.perf_counter() > end:
                return False
            time.sleep(_LOOK_S)
        return True

    def listening(self, host):
        """Addresses and ports at which processes of a host listen."""
        found = []
        with open(f"/proc/{self.pid(host)}/net/tcp", encoding="ascii") as file:
            for line in file.readlines()[1:]:
                words = line.split()
                if words[3] == "0A":
                    address, port = words[1].split(":")
                    found.append((socket.inet_ntoa(struct.pack("<I", int(address, 16))), int(port, 16)))
        return found

    def close(self):
        if self._wire is not None:
            self._wire.stdin.close()
            self._wire.wait()
            self._wire.stdout.close()
            self._wire = None
        for tool in self._tools.values():
            tool.stdin.close()
        for tool in self._tools.values():
            tool.wait()
        for one in self._sockets:
            one.close()
        for descriptor in self._places:
            os.close(descriptor)
        self._tools, self._places, self._sockets = {}, [], []
        super().close()
