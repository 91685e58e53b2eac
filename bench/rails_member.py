# SPDX-License-Identifier: Apache-2.0
"""One process of bench/rails.py: a rank of a job, or plain sockets of the same pattern. A JSON line each way.

python bench/rails_member.py rank COORDINATOR RANK
python bench/rails_member.py sockets RANK ADDRESSES OF BOTH HOSTS...
"""

import json
import os
import socket
import sys
import threading
import time

import numpy as np

PORT = 7099


class Rank:
    """A rank of a job of two."""

    def __init__(self, coordinator, rank):
        import jhetcc

        self._comm = jhetcc.init(coordinator, process_id=int(rank), num_processes=2, devices=1)
        self._memory = {}

    def hello(self):
        return {"pid": os.getpid(), "paths": self.paths()}

    def paths(self):
        return self._comm.status()["ranks"][0]["rails"][1 - self._comm.rank]

    def run(self, pattern, size):
        """When one operation began and ended here, by a clock that all processes of the machine share."""
        comm, (mine, out) = self._comm, self._buffers(size)
        comm.barrier()
        begin = time.perf_counter()
        if pattern == "all_reduce":
            comm.all_reduce(mine, out=out)
        elif comm.rank == 0:
            comm.send(mine, 1)
        else:
            comm.recv(out.shape, out.dtype, 0, out=out)
        end = time.perf_counter()
        factor = 2 if pattern == "all_reduce" else 1
        assert (comm.rank == 0 and pattern == "send") or np.array_equal(out, factor * mine)
        return begin, end

    def _buffers(self, size):
        if size not in self._memory:
            self._memory[size] = np.arange(size // 4, dtype=np.int32) % 1013, np.zeros(size // 4, np.int32)
        return self._memory[size]

    def stream(self, size, seconds):
        """Operations back to back for so long; when each ended, and the bytes of every path then. Both stop at the same one."""
        comm, (mine, out) = self._comm, self._buffers(size)
        stop = np.zeros(1, np.int32)
        end, told = time.perf_counter() + seconds, []
        while True:
            comm.all_reduce(mine, out=out)
            assert np.array_equal(out, 2 * mine)
            now = time.perf_counter()
            told.append((now, [path["sent_bytes"] + path["received_bytes"] for path in self.paths()]))
            stop[0] = now > end
            if comm.all_reduce(stop)[0]:
                return told

    def events(self):
        return self._comm._world.process.records()

    def close(self):
        self._comm.close()


class Sockets:
    """One connection a NIC, each of which carries its share of the bytes both ways or one way."""

    def __init__(self, rank, *addresses):
        self._rank, half = int(rank), len(addresses) // 2
        mine, peers = (addresses[:half], addresses[half:]) if self._rank == 0 else (addresses[half:], addresses[:half])
        self._all = []
        if self._rank == 0:
            listeners = [socket.create_server((host, PORT)) for host in mine]
            print(json.dumps("listening"), file=ANSWERS, flush=True)
            self._all = [listener.accept()[0] for listener in listeners]
        else:
            for own, host in zip(mine, peers, strict=True):
                self._all.append(self._connect(host, own))
        for one in self._all:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")

    @staticmethod
    def _connect(host, own):
        for _ in range(500):
            try:
                return socket.create_connection((host, PORT), source_address=(own, 0), timeout=20)
            except ConnectionRefusedError:
                time.sleep(0.01)
        raise ConnectionRefusedError(host)

    def hello(self):
        return {"pid": os.getpid()}

    def run(self, pattern, size):
        """As Rank.run(): what two ranks that share the work must send each other, and no more."""
        self._exchange(1, 1)  # a barrier
        share, begin = size // len(self._all), time.perf_counter()
        if pattern == "all_reduce":
            self._exchange(share // 2, share // 2)
            self._exchange(share // 2, share // 2)
        else:
            self._exchange(*((share, 0) if self._rank == 0 else (0, share)))
            self._exchange(*((0, 1) if self._rank == 0 else (1, 0)))  # taken
        return begin, time.perf_counter()

    def _exchange(self, sent, received):
        """On every connection at once."""
        threads = []
        for one in self._all:
            if sent:
                threads.append(threading.Thread(target=one.sendall, args=(bytes(sent),)))
            if received:
                threads.append(threading.Thread(target=self._receive, args=(one, received)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @staticmethod
    def _receive(one, count):
        place = bytearray(min(count, 1 << 20))
        while count > 0:
            got = one.recv_into(place, min(count, len(place)))
            if got == 0:
                raise ConnectionError("the other side has ended")
            count -= got

    def close(self):
        for one in self._all:
            one.close()


ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")


def main():
    os.dup2(2, 1)  # whatever else is printed is no answer
    kind, *arguments = sys.argv[1:]
    member = {"rank": Rank, "sockets": Sockets}[kind](*arguments)
    print(json.dumps(member.hello()), file=ANSWERS, flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(member, name)(*arguments)), file=ANSWERS, flush=True)
    member.close()


if __name__ == "__main__":
    main()
