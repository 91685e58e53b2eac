# SPDX-License-Identifier: Apache-2.0
"""What bench/faults.py does to one guest of the RDMA lab, in that guest. In the second one it serves the first:

    python faults_hand.py LINKS PORT

A connection says one JSON line: ["commands"], then a line each way a command; or ["start", NAME, WORDS, ENVIRONMENT], then
it belongs to that process.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time

from faults_process import Process, tied

_GET_FLAGS, _SET_FLAGS, _IFF_UP, _IFF_RUNNING = 0x8913, 0x8914, 1, 0x40
_EVIDENCE = ("out_of_seq_request", "duplicate_request", "rcvd_seq_err")
CONTROL, DRIVER, MTU = "ctl", "drv", 9000


class Hand:
    """Args:
    links: how many NICs carry data: ``nic0``, ...; two more follow, ``ctl`` for the job's control plane and ``drv`` for this.
    port: where it listens, which is no port of the job.
    """

    def __init__(self, links, port=0):
        self.links, self._own_port = links, port
        self._socket, self._tools, self._processes = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), {}, {}
        names = [f"nic{k}" for k in range(links)] + [CONTROL, DRIVER]
        if "LAB_HOST" in os.environ and "eth0" in self.counters():
            for number, name in enumerate(names):
                words = f"ip link set eth{number} down && ip link set eth{number} name {name} && ip link set {name} mtu {MTU} up"
                subprocess.run(["sh", "-c", words], check=True)
        for tool in ("tc", "ip"):
            self._tools[tool] = subprocess.Popen([tool, "-force", "-batch", "-"], stdin=subprocess.PIPE, text=True)

    def clock(self):
        return time.perf_counter()

    def tool(self, tool, words):
        pipe = self._tools[tool].stdin
        pipe.write(words + "\n")
        pipe.flush()

    def _flags(self, name):
        flags = fcntl.ioctl(self._socket, _GET_FLAGS, struct.pack("16sH22x", name.encode(), 0))
        return struct.unpack_from("H", flags, 16)[0]

    def runs(self, name):
        return bool(self._flags(name) & _IFF_RUNNING)

    def switch(self, name, up):
        now = self._flags(name)
        now = now | _IFF_UP if up else now & ~_IFF_UP
        fcntl.ioctl(self._socket, _SET_FLAGS, struct.pack("16sH22x", name.encode(), now))

    def counters(self):
        """Bytes received and sent by each interface."""
        found = {}
        with open("/proc/net/dev", encoding="ascii") as file:
            for line in file.readlines()[2:]:
                name, _, numbers = line.partition(":")
                words = numbers.split()
                found[name.strip()] = int(words[0]), int(words[8])
        return found

    def mended(self, number):
        """What an adapter counts of frames out of order and doubled, and what the link below it passed on and lost."""
        counters = pathlib.Path(f"/sys/class/infiniband/rxe{number}/ports/1/hw_counters")
        found = {name: int((counters / name).read_text()) for name in _EVIDENCE}
        told = subprocess.run(
            ["tc", "-s", "-j", "qdisc", "show", "dev", f"nic{number}", "root"], capture_output=True, check=True
        )
        (qdisc,) = json.loads(told.stdout)
        return found | {"drops": qdisc["drops"], "packets": qdisc["packets"]}

    def listening(self):
        """Addresses and ports at which processes of this guest listen."""
        found = []
        with open("/proc/net/tcp", encoding="ascii") as file:
            for line in file.readlines()[1:]:
                words = line.split()
                if words[3] == "0A":
                    address, port = words[1].split(":")
                    found.append((socket.inet_ntoa(struct.pack("<I", int(address, 16))), int(port, 16)))
        return [one for one in found if one[1] != self._own_port]

    # -- processes of the job
    def start(self, name, words, environment, both=None):
        self._processes[name] = Process(tied(words), environment, both)
        return self._processes[name]

    def signal(self, name, number):
        self._processes[name].send_signal(number)

    def wait(self, name, seconds):
        try:
            return self._processes[name].wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def output(self, name):
        return self._processes[name].output()

    def forget(self, name):
        self._processes.pop(name).close()

    def close(self):
        for tool in self._tools.values():
            tool.stdin.close()
            tool.wait()
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._socket.close()


def _line(connection):
    """One line, and no byte behind it: that may be another process's."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise OSError("the connection ended")
        line += byte
    return json.loads(line)


def _greet(hand, connection):
    """Whether it is for commands; otherwise it is given away."""
    kind, *words = _line(connection)
    if kind == "commands":
        return True
    name, command, environment = words
    hand.start(name, command, environment, connection)
    connection.sendall(b"started\n")
    connection.close()
    return False


def serve(hand, port):
    """Until the connection for commands ends. One thread, for the kernel ends what a thread started with it."""
    with contextlib.closing(socket.create_server(("", port))) as listener:
        commands = None
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is listener:
                        connection = listener.accept()[0]
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        if _greet(hand, connection):
                            commands = connection.makefile("rw")
                            selector.register(connection, selectors.EVENT_READ)
                        continue
                    line = commands.readline()
                    if not line:
                        return
                    name, *arguments = json.loads(line)
                    commands.write(json.dumps(getattr(hand, name)(*arguments)) + "\n")
                    commands.flush()


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    links, port = map(int, sys.argv[1:])
    hand = Hand(links, port)
    try:
        serve(hand, port)
    finally:
        hand.close()


if __name__ == "__main__":
    main()
