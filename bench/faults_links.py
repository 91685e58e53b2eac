# SPDX-License-Identifier: Apache-2.0
"""What bench/faults.py does to links under a running job, how it takes that back, and what proves that it hit."""

import threading
import time
from dataclasses import dataclass, field

QUIET_BYTES = 4096  # address requests and knocks at a lost link; a chunk is longer
POSITIONS = ("first", "middle", "last", "between")


@dataclass
class Strike:
    """One fault on one job.

    Attributes:
      links: numbers of those that it may take.
      host: at whose end.
      position: first, middle, last or between.
      at: when it was done.
      quiet: bytes over the link once it was taken, and when that was counted.
      kept: what heal() and the evidence need.
    """

    site: object
    job: object
    random: object
    links: list
    host: int
    position: str
    at: float = 0.0
    quiet: list = field(default_factory=list)
    kept: dict = field(default_factory=dict)

    @property
    def link(self):
        return self.links[0]


class Fault:
    """A path is lost in the middle, the rest goes on.

    Attributes:
      links: how many it takes.
      during: further operations while it lasts.
      loses: the paths of these links are lost, and nothing else is.
      ends: the job ends with an error instead.
      wire: it needs the link in user space.
      positions: where it makes sense.
      options: JHETCC_* of the job.
      operations: those that it is tried on; empty: all.
      corrupts: one result is damaged, which the checker has to find.
      not_over_verbs: why it cannot be done there.
    """

    links, during, loses, ends, wire, positions, options, operations = 1, 2, True, False, False, POSITIONS, {}, ()
    corrupts, not_over_verbs = False, ""

    def strike(self, one):
        raise NotImplementedError

    def heal(self, one):
        raise NotImplementedError

    def count(self, one):
        """Bytes that could not go over the link if it is as it should be."""
        return sum(one.site.both_ways(link) for link in one.links)

    def settle(self, one):
        """After it was struck: from here on nothing may move."""
        time.sleep(max(0.0, one.at + one.site.grace_s - time.perf_counter()))
        one.quiet.append((time.perf_counter(), self.count(one)))

    def finish(self, one):
        """Before it is taken back."""
        one.quiet.append((time.perf_counter(), self.count(one)))

    def missing(self, one, results, looks):
        """What of the evidence is not there, or None.

        Args:
          results: of the operation that was to be hit, one a rank; None: between operations.
          looks: paths and losses, one a rank.
        """
        if self.loses:
            for link in one.links:
                lost = [t for look in looks for t, path in look["lost"] if path == link]
                if not lost:
                    return f"the path of link {link} was not lost"
                if results and min(lost) > max(result["end"] for result in results):
                    return f"the path of link {link} was lost after the operation"
        (_, then), (_, now) = one.quiet[0], one.quiet[-1]
        if now - then > QUIET_BYTES:
            return f"{now - then} bytes went over links {one.links} that were gone"
        return None

    def wrong(self, one, results, looks):
        """What is not as it should be, besides values and errors, or None."""
        if self.loses:
            return None
        # A spare that carries nothing may find a slow link silent when it is probed.
        used = {path["path"] for look in looks for path in look["paths"] if path["tier"] == 0} - set(
            one.kept.get("may_lose", ())
        )
        lost = sorted({path for look in looks for _, path in look["lost"] if path in used})
        why = [path["last_event"] for look in looks for path in look["paths"] if path["path"] in lost]
        return f"paths {lost} were lost without need: {why}" if lost else None


class NicDown(Fault):
    def strike(self, one):
        one.site.down(one.host, one.link)

    def heal(self, one):
        one.site.up(one.host, one.link)


class BlackHole(Fault):
    def strike(self, one):
        one.site.swallow(one.host, one.link)

    def heal(self, one):
        one.site.pass_again(one.host, one.link)


class OneWay(BlackHole):
    """What one host sends is swallowed; what it is sent arrives."""

    def strike(self, one):
        one.site.swallow(one.host, one.link, both_ways=False)

    def count(self, one):
        return one.site.sent(one.host, one.links)


class AddressRemoved(Fault):
    def _words(self, one):
        return f"{one.site.nic_address(one.host, one.link)}/24 dev nic{one.link}"

    def strike(self, one):
        one.site.ip(one.host, "address del " + self._words(one))

    def heal(self, one):
        one.site.ip(one.host, "address add " + self._words(one))

    def count(self, one):
        return one.site.sent(
            one.host, one.links
        )  # the peer's system may repeat a closed socket's last window; none acknowledges it


class HalfOpen(Fault):
    """The other host's end is gone without a last word to its peer; connections here stay open."""

    not_over_verbs = "soft-RoCE takes no adapter from a process that has it open"

    def strike(self, one):
        one.site.vanish(one.host, one.link)

    def heal(self, one):
        one.site.reappear(one.host, one.link)

    def count(self, one):
        return one.site.sent(0, one.links) + one.site.sent(1, one.links)  # the end that is left


class Flap(Fault):
    """Down and up again, three times."""

    def strike(self, one):
        one.kept["times"] = [one.random.uniform(0.1, 0.4) for _ in range(6)]
        one.kept["moved"] = 0
        one.site.down(one.host, one.link)
        one.kept["thread"] = threading.Thread(target=self._go_on, args=(one,))
        one.kept["thread"].start()

    def _go_on(self, one):
        times = one.kept["times"]
        for turn in range(0, len(times), 2):
            if turn:
                one.site.down(one.host, one.link)
            time.sleep(one.site.grace_s)
            then = self.count(one)
            time.sleep(times[turn])
            one.kept["moved"] += self.count(one) - then
            one.site.up(one.host, one.link)
            time.sleep(times[turn + 1])

    def settle(self, one):
        pass

    def is_lasting(self, one):
        return one.kept["thread"].is_alive()

    def finish(self, one):
        one.kept["thread"].join()
        one.quiet = [(0, 0), (0, one.kept["moved"])]

    def heal(self, one):
        one.kept["thread"].join()


class TwoInTurn(Fault):
    """A second NIC goes in a later operation, while the first is still away."""

    links = 2

    def strike(self, one):
        one.site.down(one.host, one.links[0])

    def settle(self, one):
        if one.position == "between":
            one.job.tell("run", *one.kept["again"])
        one.kept["results"] = one.job.hear()
        one.job.tell("run", *one.kept["again"])
        one.site.wait_for(0, one.links[1:], one.site.sent(0, one.links[1:]) + (64 << 10), 5, one.job.is_answered)
        one.kept["second"] = time.perf_counter()
        one.site.down(1 - one.host, one.links[1])
        time.sleep(one.site.grace_s)
        one.quiet.append((time.perf_counter(), self.count(one)))

    def heal(self, one):
        one.site.up(one.host, one.links[0])
        one.site.up(1 - one.host, one.links[1])

    def missing(self, one, results, looks):
        ends = max(result["end"] for result in one.kept["second_results"])
        lost = [t for look in looks for t, path in look["lost"] if path == one.links[1]]
        if not lost or min(lost) > ends or one.kept["second"] > ends:
            return f"the path of link {one.links[1]} was not lost during its operation"
        first = [t for look in looks for t, path in look["lost"] if path == one.links[0]]
        if not first or (results and min(first) > max(result["end"] for result in results)):
            return f"the path of link {one.links[0]} was not lost during its operation"
        (_, then), (_, now) = one.quiet[0], one.quiet[-1]
        return f"{now - then} bytes went over links that were gone" if now - then > QUIET_BYTES else None


class DuringReplay(Fault):
    """A second path goes within milliseconds of the first, while what the first had is sent again."""

    links, positions = 2, ("first", "middle", "last")

    def strike(self, one):
        one.site.down(one.host, one.links[0])
        time.sleep(one.random.uniform(0.0, 0.002))
        one.site.down(one.random.randrange(2), one.links[1])

    def heal(self, one):
        for host in (0, 1):
            for link in one.links:
                one.site.up(host, link)

    def missing(self, one, results, looks):
        why = super().missing(one, results, looks)
        if why:
            return why
        first, second = (min(t for look in looks for t, path in look["lost"] if path == k) for k in one.links)
        return f"the losses were {abs(second - first) * 1e3:.0f} ms apart" if abs(second - first) > 0.05 else None


class AllAndBack(Fault):
    """Every link goes, and comes back within the time that a rank waits for that."""

    links, during, positions = 0, 0, ("middle",)

    def strike(self, one):
        for link in one.links:
            one.site.down(one.host, link)
        time.sleep(one.site.grace_s)
        one.quiet.append((0, self.count(one)))
        time.sleep(0.5)
        one.quiet.append((0, self.count(one)))
        for link in one.links:
            one.site.up(one.host, link)

    def settle(self, one):
        pass

    def finish(self, one):
        pass

    def heal(self, one):
        pass


class RateCut(Fault):
    """A tenth of its rate is left."""

    loses, during = False, 3
    not_over_verbs = "emulated guests do not fill a link that is fast enough for the adapters' 67 ms without an answer"

    def strike(self, one):
        one.site.set_rate(one.link, max(1, one.site.rates[one.link] // 10))

    def heal(self, one):
        one.site.set_rate(one.link, one.site.rates[one.link])

    def count(self, one):
        return max(one.site.sent(host, one.links) for host in (0, 1))

    def missing(self, one, results, looks):
        (begin, then), (end, now) = one.quiet[0], one.quiet[-1]
        rate, slow = (now - then) / (end - begin), one.site.rates[one.link] * 125_000 / 10
        if now == then:
            return "nothing went over the slow link"
        return f"it carried {rate / 1e6:.1f} MB/s of {slow / 1e6:.1f}" if rate > 1.5 * slow else None


class RateBack(RateCut):
    """The full rate is back after some operations: within three seconds of work the link carries its share again."""

    during, positions, operations = 24, ("middle",), ("all_reduce",)
    _WITHIN_S, _SHARE = 3.0, 0.5

    def heal(self, one):
        super().heal(one)
        others = [k for k in range(len(one.site.rates)) if k != one.link]
        end, share = time.perf_counter() + self._WITHIN_S, 0.0
        while share < self._SHARE and time.perf_counter() < end:
            then = one.site.both_ways(one.link), sum(one.site.both_ways(k) for k in others)
            one.job.all("run", *one.kept["again"])
            now = one.site.both_ways(one.link), sum(one.site.both_ways(k) for k in others)
            # Links that are not part of the job carry nothing.
            share = (now[0] - then[0]) / max(1.0, (now[1] - then[1]) / one.kept["others"])
        one.kept["share"] = share

    def strike(self, one):
        one.kept["others"] = sum(path["tier"] == 0 for path in one.job.hello[0]["paths"]) - 1
        super().strike(one)

    def wrong(self, one, results, looks):
        if why := super().wrong(one, results, looks):
            return why
        share = one.kept["share"]
        return (
            f"its rate is back for {self._WITHIN_S:g} s, and it carries {share:.1%} of what others do"
            if share < self._SHARE
            else None
        )
