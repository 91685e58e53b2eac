# SPDX-License-Identifier: Apache-2.0
"""All faults of bench/faults.py by name: those of links (faults_links.py), and here those of processes, strangers and frames."""

import contextlib
import os
import signal
import socket
import time

from faults_links import (
    POSITIONS,
    AddressRemoved,
    AllAndBack,
    BlackHole,
    DuringReplay,
    Fault,
    Flap,
    HalfOpen,
    NicDown,
    OneWay,
    RateBack,
    RateCut,
    Strike,
    TwoInTurn,
)  # fmt: skip

__all__ = ["CONTROLS", "MENU", "POSITIONS", "Killed", "StoppedForLong", "Strike"]
_STOP_S = 0.2


class Stopped(Fault):
    """A process does not run for 200 ms: nobody is to take that for a fault."""

    loses = False

    def strike(self, one):
        one.job.signal(one.host, signal.SIGSTOP)
        time.sleep(_STOP_S)
        one.job.signal(one.host, signal.SIGCONT)

    def heal(self, one):
        pass

    def missing(self, one, results, looks):
        if results and max(result["end"] for result in results) < one.at + _STOP_S:
            return "the operation was over before the process went on"
        return None


class StoppedForLong(Fault):
    """A process does not run for longer than an operation may take: an error that names it, in time, and nothing wrong later."""

    ends, during, loses, options = True, 0, False, {"JHETCC_OPERATION_TIMEOUT": "1500ms", "JHETCC_WARN_AFTER": "1s"}
    errors, within_s = ("OperationTimeoutError", "PeerLostError"), 6.0

    def strike(self, one):
        one.job.signal(one.host, signal.SIGSTOP)

    def heal(self, one):
        one.job.signal(one.host, signal.SIGCONT)


class Killed(StoppedForLong):
    options, errors, within_s = {}, ("PeerLostError",), 5.0

    def strike(self, one):
        one.job.signal(one.host, signal.SIGKILL)

    def heal(self, one):
        pass


class AllGone(Fault):
    """Every link goes for good: one error on both ranks, 10 s after."""

    links, ends, during, loses, positions = 0, True, 0, False, ("middle",)
    errors, within_s = ("PeerLostError",), 13.0

    def strike(self, one):
        for link in one.links:
            one.site.down(one.host, link)

    def heal(self, one):
        for link in one.links:
            one.site.up(one.host, link)
        one.site.settle(one.links)


class Scanner(Fault):
    """Strangers at every port: some say nothing, some half a word, some rubbish, some a length of 4 GiB."""

    loses, during = False, 1
    _SAYS = (b"", b"GET / HTTP/1.0\r\n\r\n", b"\x00" * 3, b"\xff" * 4096, b"\xff\xff\xff\xff" + b"\x00" * 60)

    def strike(self, one):
        sockets, said = [], 0
        for host in (0, 1):
            for address, port in one.site.listening(host):
                for words in (*self._SAYS, os.urandom(512)):
                    stranger = one.site.socket(1 - host)
                    stranger.settimeout(1)
                    with contextlib.suppress(OSError):
                        stranger.connect((address, port))
                        stranger.sendall(words)
                        said += 1
                    sockets.append(stranger)
        one.kept["sockets"], one.kept["said"] = sockets, said
        for stranger in sockets[::2]:
            with contextlib.suppress(OSError):
                stranger.shutdown(socket.SHUT_RDWR)

    def heal(self, one):
        for stranger in one.kept["sockets"]:
            stranger.close()

    def missing(self, one, results, looks):
        return None if one.kept["said"] else "no stranger reached a port"


class CoordinatorGone(Fault):
    """Nobody reaches the job's meeting place any more."""

    loses = False

    def strike(self, one):
        one.site.switch(one.host, "ctl", False)

    def heal(self, one):
        one.site.switch(one.host, "ctl", True)

    def count(self, one):
        return one.site.counters(0)["ctl"][1] + one.site.counters(1)["ctl"][1]


class Nothing(Fault):
    """A control: nothing is done, so no evidence can be found."""

    def strike(self, one):
        pass

    def heal(self, one):
        pass


class Corrupted(NicDown):
    """A control: a bit of one result is damaged, so the checker must fail."""

    corrupts = True


class OnWire(Fault):
    """What a bad cable does to frames, on the one link that runs through a process: the kernels' checks and repeats must do."""

    loses, wire, during, chances, counted = False, True, 2, {}, ""

    def strike(self, one):
        one.site.wire(**self.chances)

    def heal(self, one):
        one.site.wire()

    def finish(self, one):
        one.kept["done"] = one.site.wire()
        # A kernel that sends again and again may be silent for as long as a dead one.
        one.kept["may_lose"] = one.links

    def settle(self, one):
        pass

    def missing(self, one, results, looks):
        return None if one.kept["done"][self.counted] else "no frame was hit"


class Loss(OnWire):
    chances, counted = {"lost": 0.02}, "lost"


class Corrupt(OnWire):
    chances, counted = {"damaged": 0.02}, "damaged"


class Jitter(OnWire):
    chances, counted = {"late": 0.2, "late_s": 0.02}, "late"


class Twice(OnWire):
    chances, counted = {"twice": 0.2, "late": 0.05, "late_s": 0.005}, "twice"


MENU = {
    "nic_down": NicDown(), "black_hole": BlackHole(), "one_way": OneWay(), "address_removed": AddressRemoved(), "flap": Flap(),
    "rate_cut": RateCut(), "rate_back": RateBack(), "two_in_turn": TwoInTurn(), "during_replay": DuringReplay(), "half_open": HalfOpen(),
    "all_and_back": AllAndBack(), "all_gone": AllGone(), "peer_killed": Killed(), "peer_stopped": Stopped(),
    "peer_stopped_for_long": StoppedForLong(), "scanner": Scanner(), "coordinator_gone": CoordinatorGone(), "loss": Loss(),
    "corrupt_frames": Corrupt(), "jitter": Jitter(), "twice": Twice(),
}  # fmt: skip
CONTROLS = {"nothing": Nothing(), "corrupted": Corrupted()}
