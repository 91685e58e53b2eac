# SPDX-License-Identifier: Apache-2.0
"""One process of a peer: connects to the bench, says who it is, and measures what it is told until the connection ends.

    python bench/member.py SOCKET KIND RANK RANKS [name=value ...]      (RANK "mpi": MPI knows)

Waiting for the next command is a blocking read, so a peer whose turn it is not uses no processor.
"""

import importlib
import json
import os
import socket
import sys
import time
import traceback

sys.path[0] = os.path.dirname(os.path.abspath(__file__))
import cases  # noqa: E402

_PLAYERS = {
    "jhetcc_raw": "players_raw:Jhetcc",
    "mpi": "players_raw:Mpi",
    "oneccl": "player_oneccl:OneCcl",
    "copy": "players_raw:Copy",
    "sockets": "players_raw:Sockets",
    "jhetcc_jit": "players_jax:Jhetcc",
    "gloo": "players_jax:Gloo",
    "mpi4jax": "players_jax:Mpi4jax",
    "add": "players_jax:Add",
}


class Measurements:
    """Runs the commands; keeps the last case prepared, so that rounds over the same case do not pay for it again."""

    def __init__(self, player):
        self._player = player
        self._key = None
        self._step = None

    def measure(self, case, mode, calls, check):
        if self._key != (case, mode):
            self._key = self._step = None
            self._step = self._player.prepare(case, mode)
            self._key = (case, mode)
        wrong = None
        if check:
            wrong = cases.count_wrong(case, self._player.rank, self._player.once(case, mode, self._step))
        clock, step, times = time.perf_counter_ns, self._step, []
        step()
        step()  # brings the ranks together
        begin = before = clock()
        for _ in range(calls):
            step()
            now = clock()
            times.append(now - before)
            before = now
        repeats = self._player.operations_per_call(mode)
        return {
            "wrong": wrong,
            "mean_us": (before - begin) / 1e3 / calls / repeats,
            "each_us": [round(one / 1e3 / repeats, 3) for one in times],
            "repeats": repeats,
            "note": self._player.note,
        }

    def forget(self):
        self._key = self._step = None


def serve(connection, player):
    stream = connection.makefile("rw", encoding="utf-8")

    def answer(message):
        stream.write(json.dumps(message) + "\n")
        stream.flush()

    answer({"rank": player.rank, "pid": os.getpid(), "versions": player.versions})
    measurements = Measurements(player)
    for line in stream:
        command = json.loads(line)
        try:
            if command["do"] == "forget":
                measurements.forget()
                answer({})
            else:
                answer(
                    measurements.measure(
                        cases.Case(**command["case"]), command["mode"], command["calls"], command["check"]
                    )
                )
        except NotImplementedError as why:
            answer({"unsupported": str(why)})
        except Exception:
            answer({"failed": traceback.format_exc()})


def main():
    address, kind, rank, ranks, *pairs = sys.argv[1:]
    settings = dict(pair.split("=", 1) for pair in pairs)
    module, _, name = _PLAYERS[kind].partition(":")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        try:
            player = getattr(importlib.import_module(module), name)(rank, int(ranks), **settings)
        except Exception:
            connection.sendall(json.dumps({"failed": traceback.format_exc()}).encode() + b"\n")
            sys.exit(1)
        serve(connection, player)
        player.close()


if __name__ == "__main__":
    main()
