# SPDX-License-Identifier: Apache-2.0
"""The part of bench/faults.py that trains: what a NIC that fails every few seconds costs, beyond the rate that is lost with it."""

import statistics
import time

from jhetcc.cli import demo
from jhetcc.cli.demo_hosts import Namespaces

AWAY_S = 2.5


def play(hosts, seed, steps, every_s=0.0, away=None):
    """Trains so many steps; a NIC in turn goes every so many seconds for half of that, or one of them is away all the time.

    Returns:
      The run; and when NICs were taken and given back.
    """
    trained, job, moments, link = demo.Trained(), demo.Job(hosts, seed, steps), [], None
    if away is not None:
        hosts.take(away, "down")
    try:
        following, turn = None, 0
        for host, word in job.words():
            if "digest" in word:
                trained.ends[host] = word
                continue
            trained.steps[host].append(word)
            if host or not every_s:
                continue
            now = time.perf_counter()
            following = following or now + every_s / 2
            is_near_end = word["step"] > steps - 1 - 2 * every_s / max(word["seconds"], 1e-3)
            if now < following or (link is None and is_near_end):
                continue
            following += every_s / 2
            if link is None:
                link, turn = turn % hosts.links, turn + 1
                hosts.take(link, "down")
            else:
                hosts.give(link)
                link = None
            moments.append((now, link))
    finally:
        job.close()
        if away is not None:
            hosts.give(away)
        if link is not None:
            hosts.give(link)
    return trained, moments


def times(trained):
    return [step["seconds"] for step in trained.steps[0][5:]]


def healthy(step):
    return sum(path["state"] == "healthy" for path in step["paths"])


def around_changes(steps, counts, links):
    """What the steps in which a path was lost or came back took beyond the steady ones of this run, as a share of all.

    Runs one after the other see a busy machine differently; steps of one run, less so.
    """
    changed = {k for k in range(1, len(counts)) if counts[k] != counts[k - 1]}
    near = changed | {k - 1 for k in changed} | {k + 1 for k in changed}
    steady = {
        is_whole: statistics.mean(
            step["seconds"] for k, step in enumerate(steps) if k not in near and (counts[k] == links) == is_whole
        )
        for is_whole in (True, False)
    }
    usual = [steady[count == links] for count in counts]
    return sum(steps[k]["seconds"] - usual[k] for k in near if k < len(steps)) / sum(usual)


def train(options, row):
    """Undisturbed runs before and after, one with a link away all the time, and one with faults; row(name, value, unit) prints."""
    hosts = Namespaces(options.links, options.mbit)
    try:
        probe, _ = play(hosts, options.seed, 60)
        steps = max(60, round(options.seconds / statistics.mean(times(probe))))
        quiet, _ = play(hosts, options.seed, steps)
        fewer, _ = play(hosts, options.seed, steps // 3, away=1)
        shaken, moments = play(hosts, options.seed, steps, every_s=options.every)
        again, _ = play(hosts, options.seed, steps // 3)
    finally:
        hosts.close()
    losses = sum(path["losses"] for path in shaken.steps[0][-1]["paths"])
    taken = sum(link is not None for _, link in moments)
    aborts = sum(end["aborts"] for end in shaken.ends)
    same = len(quiet.digests | shaken.digests) == 1 and quiet.losses == shaken.losses
    # A step counts as one of the whole set of links if all paths were healthy at its begin and its end.
    whole, less = statistics.mean(times(quiet) + times(again)), statistics.mean(times(fewer))
    spent = shaken.steps[0][5:]
    counts = [healthy(step) for step in spent]
    expected = sum(whole if count == options.links else less for count in counts)
    actual = sum(step["seconds"] for step in spent)
    row("steps", len(shaken.steps[0]), "steps")
    row("failed steps", steps - len(shaken.steps[0]) + aborts, "steps")
    row("NICs that failed", taken, "times")
    row("paths lost", losses, "times")
    row("weights bit-identical to the undisturbed run", float(same), "")
    row("step, all links", 1e3 * whole, "ms")
    row(
        "the same before and after",
        100 * (statistics.mean(times(again)) / statistics.mean(times(quiet)) - 1),
        "% apart",
    )
    row("step, one link less", 1e3 * less, "ms")
    row("step, a NIC failing now and then", 1e3 * actual / len(spent), "ms")
    row("steps without one link", 100 * sum(count < options.links for count in counts) / len(counts), "%")
    row("cost beyond the lost rate, by those runs", 100 * (actual / expected - 1), "%")
    row("cost of losses and returns, by steps between", 100 * around_changes(spent, counts, options.links), "%")
    is_hit = taken > 0 and losses >= taken
    return 0 if same and not aborts and is_hit else 1 if is_hit else 3
