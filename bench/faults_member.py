# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/faults.py: joins a job of two, then runs and checks the operations that it is told. A JSON line each way.

python bench/faults_member.py COORDINATOR RANK
"""

import hashlib
import json
import os
import sys
import time

import numpy as np

import jhetcc
from jhetcc.errors import Error


def inputs(rank, words, variant):
    """No two elements of a rank are equal, nor those of two ranks at one place."""
    return np.arange(words, dtype=np.int64) * (2 * rank + 3) + (variant + 1 << rank)


def expected(operation, rank, size, words, variant):
    """What this rank must get, element by element."""
    every = [inputs(one, words, variant) for one in range(size)]
    if operation == "all_reduce":
        return sum(every[1:], start=every[0])
    if operation == "all_gather":
        return np.stack(every)
    if operation == "reduce_scatter":
        part = words // size
        return sum(every[1:], start=every[0])[rank * part : (rank + 1) * part]
    if operation == "broadcast":
        return every[0]
    raise ValueError(operation)


class Rank:
    def __init__(self, coordinator, rank):
        self._comm = jhetcc.init(coordinator, process_id=int(rank), num_processes=2, devices=1, timeout=30)
        self._known = {}

    def hello(self):
        return {"pid": os.getpid(), "paths": self.paths()}

    def paths(self):
        return self._comm.status()["ranks"][0]["rails"][1 - self._comm.rank]

    def _case(self, *case):
        if case not in self._known:
            operation, words, variant = case
            rank, size = self._comm.rank, self._comm.size
            right = expected(operation, rank, size, words, variant)
            data = inputs(rank, words, variant)
            data = data.reshape(size, -1) if operation == "reduce_scatter" else data
            self._known = {case: (data, right, np.empty_like(right))}
        return self._known[case]

    def ready(self, operation, words, variant):
        """Makes what the next run() needs; afterwards both ranks are at the same point."""
        self._case(operation, words, variant)
        self._comm.barrier()
        return True

    def run(self, operation, words, variant, count, corrupt):
        """Operations one after the other: when they began and ended, wrong elements, a hash of all bits, and an error's class and text.

        Args:
          corrupt: damages one element of the last result before it is checked.
        """
        data, right, out = self._case(operation, words, variant)
        begin, wrong, hashes, ended = time.perf_counter(), 0, set(), []
        error = None
        try:
            for turn in range(count):
                out.fill(-1)
                if operation == "broadcast":
                    self._comm.broadcast(data, root=0, out=out)
                else:
                    getattr(self._comm, operation)(data, out=out)
                ended.append(time.perf_counter())
                if corrupt and turn == count - 1:
                    out.flat[out.size // 3] ^= 1 << 17
                wrong += int(np.count_nonzero(out != right))
                hashes.add(hashlib.sha256(out).hexdigest()[:16])
        except Error as why:
            error = {"class": type(why).__name__, "ranks": list(why.ranks), "text": str(why)}
        now = time.perf_counter()
        return {"begin": begin, "ended": ended, "end": now, "wrong": wrong, "hashes": sorted(hashes), "error": error}

    def look(self, since):
        """Paths now, losses of paths since a moment, and counters."""
        lost = [
            (event["time_ns"] / 1e9, event["argument"])
            for event in self._comm._world.process.records()
            if event["event"] == "disconnected" and event["time_ns"] / 1e9 >= since
        ]
        return {"paths": self.paths(), "lost": lost, "aborts": self._comm.status()["counters"]["aborts"]}

    def close(self):
        self._comm.close()


ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")


def main():
    os.dup2(2, 1)  # whatever else is printed is no answer
    member = Rank(*sys.argv[1:])
    print(json.dumps(member.hello()), file=ANSWERS, flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(member, name)(*arguments)), file=ANSWERS, flush=True)
    member.close()


if __name__ == "__main__":
    main()
