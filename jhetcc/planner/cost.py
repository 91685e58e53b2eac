# SPDX-License-Identifier: Apache-2.0
"""Predicted seconds by the alpha-beta model: a message costs its link's alpha and beta a byte; memory by the byte.

Source: R. Hockney, "The communication challenge for MPP", 1994; the split of alpha into a wait and the sender's own
work follows D. Culler et al., "LogP: towards a realistic model of parallel computation", 1993. Ranks of a host share
its link to other hosts. ``Layout.wait`` says what of alpha comes before the bytes of a message.
"""

from __future__ import annotations

from collections import Counter

from .layout import Layout

__all__ = ["OVERHEAD", "agreement_seconds", "all_pairs_seconds", "fan_seconds", "neighbour_seconds", "rounds"]

OVERHEAD = 0.25  # share of alpha that is the sender's own work, so not overlapped by its next message


def rounds(size: int) -> int:
    """Rounds of doubling that reach ``size`` ranks."""
    return (size - 1).bit_length()


def all_pairs_seconds(layout: Layout, nbytes: float) -> float:
    """Every rank sends ``nbytes`` to every other one."""
    if layout.size == 1:
        return 0.0
    worst, hosts = 0.0, Counter(layout.hosts)
    crowd = layout.profile.crowd if len(hosts) > 2 else 1.0
    for host, count in hosts.items():
        near, far = count - 1, layout.size - count
        own_work = OVERHEAD * (near * layout.shm.alpha + far * layout.tcp.alpha)
        bytes_far = count * far * nbytes
        worst = max(worst, own_work + near * nbytes * layout.shm.beta + crowd * bytes_far * layout.beta_of(host))
    return layout.wait(layout.spans_hosts) + worst


def neighbour_seconds(layout: Layout, nbytes: float) -> float:
    """Every rank sends ``nbytes`` to the next one: a round of a ring."""
    if layout.size == 1:
        return 0.0
    pairs = list(zip(layout.hosts, (*layout.hosts[1:], layout.hosts[0]), strict=True))
    out, into = Counter(a for a, b in pairs if a != b), Counter(b for a, b in pairs if a != b)
    far = max((count * layout.beta_of(host) for way in (out, into) for host, count in way.items()), default=0.0)
    own_work = OVERHEAD * layout.slowest.alpha
    wait = layout.wait(layout.spans_hosts)
    return wait + own_work + nbytes * max(layout.shm.beta, far)


def fan_seconds(layout: Layout, root: int, nbytes: float) -> float:
    """One rank sends ``nbytes`` to each other one, or receives from each."""
    if layout.size == 1:
        return 0.0
    near, far = layout.hosts.count(layout.hosts[root]) - 1, Counter(layout.hosts)
    del far[layout.hosts[root]]
    work = OVERHEAD * (near * layout.shm.alpha + far.total() * layout.tcp.alpha)
    bytes_far = max(
        (count * layout.beta_of(host) for host, count in [(layout.hosts[root], far.total()), *far.items()]), default=0.0
    )
    return layout.wait(layout.spans_hosts) + work + nbytes * (near * layout.shm.beta + bytes_far)


def agreement_seconds(layout: Layout) -> float:
    """The dissemination rounds of empty messages."""
    return rounds(layout.size) * layout.slowest.alpha
