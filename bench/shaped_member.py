# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/shaped.py: joins the job, then plans and times what it is told, a JSON line each way.

    python bench/shaped_member.py COORDINATOR RANK RANKS CARDS

CARDS: {"RANK": Mbit/s, ...} of the ranks that have a card to other clusters, in JSON; {} where nothing is known of
cards. Every algorithm has a communicator of its own, which is given that plan; so one job measures all of them in turns.
"""

import dataclasses
import json
import os
import sys
import time

import numpy as np

import jhetcc
from jhetcc.planner import Nic, plan
from jhetcc.planner.choice import rated
from jhetcc.schedule import Operation
from jhetcc.world import state
from jhetcc.world.measuring import Room

_TOGETHER_S = 0.005


class Rank:
    """What one process holds: the job, a communicator for each algorithm, the buffers of the case under way."""

    def __init__(self, coordinator, rank, ranks, cards):
        self._comm = jhetcc.init(coordinator, process_id=rank, num_processes=ranks, devices=1)
        self._layout = _with_cards(self._comm.layout, {int(one): mbit for one, mbit in cards.items()})
        self._rooms, self._calls, self._text, self._memory = {}, {}, "", []

    def hello(self):
        layout = self._layout
        return {"pid": os.getpid(), "hosts": layout.hosts, "profile": json.loads(layout.profile.to_json())}

    def candidates(self, text):
        """Those that the planner lists, the one that it takes first."""
        found = rated(Operation.parse(text), self._layout)
        return [{"name": one.name, "seconds": one.seconds, "chunk": one.chunk_bytes} for one in found]

    def run(self, text, algorithm, calls):
        """When each call began and ended here, by a clock that all processes of the machine share.

        Args:
          algorithm: name, or name/bytes of a chunk.
        """
        if text != self._text:
            self._text, self._calls = text, {}
            operation = Operation.parse(text)
            sizes = operation.input_bytes(self._comm.size), operation.output_bytes(self._comm.size)
            self._memory = [np.full(size, 0x3F, np.uint8) for size in sizes]
        if algorithm not in self._calls:
            self._calls[algorithm] = self._call(text, algorithm)
        call, found = self._calls[algorithm], []
        places = [tuple(x for one in self._memory for x in (one.ctypes.data, one.nbytes))]
        for _ in range(calls):
            # Who began when it left a barrier would be ahead, and its bytes in front of the last word of that barrier.
            latest = self._comm.all_reduce(np.array([time.perf_counter()]), "max")[0]
            time.sleep(max(0.0, latest + _TOGETHER_S - time.perf_counter()))
            begin = time.perf_counter()
            call.run(places)
            found.append((begin, time.perf_counter()))
        return found

    def _call(self, text, algorithm):
        if algorithm not in self._rooms:
            self._rooms[algorithm] = Room(state.current(), f"shaped {algorithm}", range(self._comm.size))
        comm = self._rooms[algorithm].comm
        name, _, chunk = algorithm.partition("/")
        made = plan(Operation.parse(text), self._layout, algorithm=name, chunk_bytes=int(chunk) if chunk else None)
        schedule = made.expand(comm.rank)
        state.current().process.answer_plan(comm.name, comm.epoch, text, [(comm.rank, schedule.to_bytes())], None)
        return comm._raw_call(text)


def _with_cards(layout, cards):
    if not cards:
        return layout
    shapes = [
        dataclasses.replace(shape, nics=tuple(Nic(cards[one] * 125e3, (one,)) for one in shape.ranks if one in cards))
        for shape in layout.clusters
    ]
    return dataclasses.replace(layout, clusters=tuple(shapes))


def main():
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no answer
    coordinator, rank, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    member = Rank(coordinator, rank, ranks, json.loads(sys.argv[4]))
    print(json.dumps(member.hello()), file=answers, flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(member, name)(*arguments)), file=answers, flush=True)
    member._comm.close()


if __name__ == "__main__":
    main()
