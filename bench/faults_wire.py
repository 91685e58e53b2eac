# SPDX-License-Identifier: Apache-2.0
"""A cable made of a process: passes frames between two interfaces, and loses, damages, delays or doubles some. A JSON line each way.

    python -I -S faults_wire.py NAME NAME SEED

A line {"lost": 0.02, ...} sets chances a frame; the answer counts what was done under those before. Faults hit frames of data only, after
their headers: what they do to a connection is its kernel's to mend, as on a real cable.
"""

import heapq
import json
import os
import random
import select
import socket
import sys
import time

_ALL = 3  # every protocol
_OUTGOING = 4
_DATA_FRAME = 400  # longer ones carry data
_HEADERS = 120


def _answer(counts):
    print(json.dumps(counts), flush=True)


def _nothing():
    return {"passed": 0, "lost": 0, "damaged": 0, "late": 0, "twice": 0}


def main():
    names, chance = sys.argv[1:3], random.Random(sys.argv[3])
    ends = []
    for name in names:
        one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        one.bind((name, 0))
        one.setblocking(False)
        ends.append(one)
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    chances, done, later, number = {}, _nothing(), [], 0
    _answer(done)

    def happens(what):
        if chance.random() >= chances.get(what, 0.0):
            return False
        done[what] += 1
        return True

    while True:
        wait = max(0.0, later[0][0] - time.monotonic()) if later else None
        ready = select.select([*ends, sys.stdin], [], [], wait)[0]
        while later and later[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(later)
            _pass(end, frame)
        for end in ready:
            if end is sys.stdin:
                line = os.read(0, 4096)
                if not line:
                    return
                chances = json.loads(line)
                _answer(done)
                done = _nothing()
                continue
            for _ in range(64):
                try:
                    frame, address = end.recvfrom(1 << 16)
                except (BlockingIOError, OSError):
                    break
                if address[2] == _OUTGOING:
                    continue
                target = other[end]
                if len(frame) > _DATA_FRAME and chances:
                    if happens("lost"):
                        continue
                    if happens("damaged"):
                        damaged = bytearray(frame)
                        damaged[chance.randrange(_HEADERS, len(frame))] ^= 1 << chance.randrange(8)
                        frame = bytes(damaged)
                    if happens("twice"):
                        _pass(target, frame)
                    if happens("late"):
                        number += 1
                        moment = time.monotonic() + chance.uniform(0, chances["late_s"])
                        heapq.heappush(later, (moment, number, target, frame))
                        continue
                done["passed"] += 1
                _pass(target, frame)


def _pass(end, frame):
    try:
        end.send(frame)
    except OSError:
        return  # that end is down or full: frames are lost there, as on any cable


if __name__ == "__main__":
    main()
