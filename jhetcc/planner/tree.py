# SPDX-License-Identifier: Apache-2.0
"""Binomial tree: broadcast in log2(n) rounds, pipelined by chunk; every rank sends on what it has.

Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005,
section 4.2 (short messages); the pipelining by chunk as in any store-and-forward tree.
"""

from __future__ import annotations

from collections import Counter

from ..schedule import Builder, Operation, Plan, Schedule
from .common import agreement
from .cost import OVERHEAD, agreement_seconds, rounds
from .layout import Layout

__all__ = ["build", "fits", "seconds"]


def fits(operation: Operation, size: int) -> str | None:
    """Why this method does not fit, or None."""
    if operation.name != "broadcast":
        return "it is a broadcast"
    if size < 3:
        return "a tree has three ranks at least"
    return "it has no elements" if operation.nbytes == 0 else None


def build(plan: Plan, rank: int) -> Schedule:
    b = Builder(plan, rank)
    root = plan.operation.root or 0
    place = (rank - root) % b.size  # the root is number 0 of the tree
    agreement(b)
    length = b.input_bytes
    below = rounds(b.size)
    have: list[int] = []
    if place:
        below = (place & -place).bit_length() - 1
        parent = (place - (1 << below) + root) % b.size
        have = [b.recv(parent, b.output(), length)]
    source = b.output() if place else b.input()
    for bit in reversed(range(below)):  # the largest subtree first
        if place + (1 << bit) < b.size:
            b.send((place + (1 << bit) + root) % b.size, source, length, after=have)
    if not place:
        b.copy(b.output(), b.input(), length)
    return b.finish()


def seconds(operation: Operation, layout: Layout, chunk: int) -> float:
    """Predicted seconds: the first chunk goes down the tree, the others follow at the pace of the busiest rank or link."""
    size, nbytes, root = layout.size, operation.nbytes, operation.root or 0
    first = min(nbytes, chunk)
    arrived, near, out, into = [0.0] * size, [0] * size, Counter[int](), Counter[int]()
    for place in range(size):
        rank, sent = (place + root) % size, arrived[place]
        below = (place & -place).bit_length() - 1 if place else rounds(size)
        for child in (place + (1 << bit) for bit in reversed(range(below))):
            if child < size:
                peer = (child + root) % size
                link, a, b = layout.link(rank, peer), layout.hosts[rank], layout.hosts[peer]
                a_byte = link.beta if a == b else max(layout.beta_of(a), layout.beta_of(b))
                sent += OVERHEAD * link.alpha + first * a_byte
                arrived[child] = sent + layout.wait(a != b) - OVERHEAD * link.alpha
                if a == b:
                    near[place] += 1
                else:
                    out[a] += 1
                    into[b] += 1
    far = max((count * layout.beta_of(host) for way in (out, into) for host, count in way.items()), default=0.0)
    pace = max(max(near) * layout.shm.beta, far)
    return agreement_seconds(layout) + max(arrived) + (nbytes - first) * pace + nbytes * layout.copy
