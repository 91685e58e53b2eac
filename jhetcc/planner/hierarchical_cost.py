# SPDX-License-Identifier: Apache-2.0
"""Predicted seconds of a hierarchical plan, and the chunk size that makes them least.

The stages are a small marked graph: per cluster its first stage, what it sends and receives, what it reduces, and its
last stage, with rings of scratch between them as edges with tokens. The first chunk takes the longest path; the others
follow at the pace of the slowest cycle: a ring, a NIC, or a cluster whose memory or library does both its stages.
Source: the alpha-beta model of ``cost.py``; cycle ratios of marked graphs: F. Commoner et al., "Marked directed
graphs", 1971.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from ..schedule import Operation, cycle_ratio, longest_path
from .clusters import ClusterShape
from .common import RING_SLOTS
from .cost import OVERHEAD, agreement_seconds, rounds
from .hierarchical import Basis, calls_libraries
from .layout import Layout
from .load import Load, Local, load
from .profile import Link

__all__ = ["bandwidths", "chunk_sizes", "nic_bandwidths", "seconds", "sequential_chunk"]

_SCRATCH_BYTES = 64 << 20  # what a rank's rings may take
_FIRST, _SEND, _ADD, _GIVE, _LAST, _INSIDE, _OUT, _INTO = range(8)  # nodes of a cluster


def cross_link(layout: Layout) -> Link:
    return layout.profile.tcp if layout.spans_hosts else layout.profile.shm


@lru_cache(maxsize=128)
def nic_bandwidths(layout: Layout) -> list[list[float]]:
    """Bytes a second of each NIC of each cluster; of a cluster that names none, one number: its hosts' links together."""
    result = []
    for shape in layout.clusters or ():
        hosts = {layout.hosts[rank] for rank in shape.ranks}
        total = (
            shape.size / layout.shm.beta if not layout.spans_hosts else sum(1 / layout.beta_of(host) for host in hosts)
        )
        result.append([nic.bandwidth for nic in shape.nics] or [total])
    return result


def bandwidths(layout: Layout) -> list[Fraction]:
    """Of each cluster, all its NICs together; exact, for shares follow them."""
    return [Fraction(max(1, round(sum(nics)))) for nics in nic_bandwidths(layout)]


def _unit(operation: Operation) -> int:
    return math.lcm(64, operation.itemsize)


def _rounded(operation: Operation, nbytes: int) -> int:
    unit = _unit(operation)
    return max(unit, -(-nbytes // unit) * unit)


def sequential_chunk(operation: Operation, basis: Basis) -> int:
    """A chunk that holds the longest piece, so that the stages come one after the other."""
    return _rounded(operation, load(operation, basis).longest)


def chunk_sizes(operation: Operation, basis: Basis) -> list[int]:
    """What is worth trying: 64 KiB to 4 MiB, as far as the rings fit a rank's scratch; always one."""
    found = load(operation, basis)
    most = max((max(local.pieces.values(), default=0) for local in found.first + found.last), default=0)
    rings = RING_SLOTS * max(1, most) * max(shape.size + len(basis.clusters) for shape in basis.clusters)
    sizes = [_rounded(operation, 1 << power) for power in range(16, 23)]
    return [sizes[0], *(size for size in sizes[1:] if size < 2 * found.longest and rings * size <= _SCRATCH_BYTES)]


def _local_seconds(
    layout: Layout, number: int, local: Local, operation: Operation, chunks: int, message: float
) -> tuple[float, float]:
    """(latency, busy seconds a chunk) of a stage inside a cluster; a sender's own work is no latency."""
    assert layout.clusters is not None
    shape, profile = layout.clusters[number], layout.profile
    if not local.nbytes and not local.single:
        return 0.0, 0.0
    between = _spans(layout, shape)
    link = profile.tcp if between else profile.shm
    hops = max(local.single.values(), default=0) / chunks * link.beta
    work = OVERHEAD * link.alpha
    latency = layout.wait(between, message) - work
    if not local.nbytes:
        return latency, work + hops
    each = local.nbytes / chunks
    native = shape.native(operation.reduction, operation.dtype) if operation.reduction != "none" else shape.vendor
    if native and shape.vendor is not None:
        library = profile.library(shape.vendor.name)
        calls, a_byte = sum(local.pieces.values()), library.reduce if local.reduces else library.move
        return 0.0, calls * library.alpha + each * a_byte + hops
    most = max(local.by_root.values())
    moved = _moved(shape, local) / chunks
    count = max(sum(local.pieces.values()), (shape.size - 1) * max(local.pieces.values()))
    busy = moved * link.beta + count * work + hops
    return latency, busy + (shape.size * most / chunks * profile.reduce if local.reduces else 0.0)


def _spans(layout: Layout, shape: ClusterShape) -> bool:
    return len({layout.hosts[rank] for rank in shape.ranks}) > 1


def _moved(shape: ClusterShape, local: Local) -> int:
    """Bytes that the busiest member sends or receives in a stage."""
    least = min(local.by_root[rank] for rank in shape.ranks)
    return max(local.nbytes - least, (shape.size - 1) * max(local.by_root.values(), default=0))


def _moved_at_once(shape: ClusterShape, first: Local, last: Local) -> int:
    """Bytes that the busiest direction of a member's link takes in both stages: first to the borders, last from them."""
    ways = []
    for rank in shape.ranks:
        far = shape.size - 1
        ways += [
            first.nbytes - first.by_root[rank] + far * last.by_root[rank],
            far * first.by_root[rank] + last.nbytes - last.by_root[rank],
        ]
    return max(ways)


def seconds(operation: Operation, layout: Layout, basis: Basis, chunk: int) -> float:
    """Predicted seconds with one chunk size."""
    found, many = load(operation, basis), len(basis.clusters)
    agreed = 0.0
    if operation.reduction == "none" or operation.name == "reduce" or calls_libraries(operation, basis.clusters):
        agreed = agreement_seconds(layout)
        if many > 1:
            agreed = 2 * layout.profile.shm.alpha + rounds(many) * cross_link(layout).alpha
    if not found.longest:
        return agreed
    chunks = max(1, -(-found.longest // chunk))
    cost, latency = [0.0] * (8 * many), [0.0] * (8 * many)
    for number in range(many):
        _fill_cluster(operation, layout, basis, found, number, chunks, cost, latency)
    path, tokens = _edges(found, many)
    through = longest_path(8 * many, path, [a + b for a, b in zip(cost, latency, strict=True)])
    if chunks == 1:
        return agreed + through
    rings = cycle_ratio(8 * many, tokens, [a + b for a, b in zip(cost, latency, strict=True)])
    return agreed + through + (chunks - 1) * max(rings, _busiest(cost, many))


def _fill_cluster(
    operation, layout: Layout, basis: Basis, found: Load, number: int, chunks: int, cost, latency
) -> None:
    at, shape, profile = 8 * number, basis.clusters[number], layout.profile
    message = found.longest / chunks
    for node, local in ((_FIRST, found.first[number]), (_LAST, found.last[number])):
        latency[at + node], cost[at + node] = _local_seconds(layout, number, local, operation, chunks, message)
    owned = max((found.owned[rank] for rank in shape.ranks), default=0) / chunks
    if len(basis.clusters) > 1 and owned:
        if basis.border and shape.vendor is not None:
            library = profile.library(shape.vendor.name)
            latency[at + _ADD], cost[at + _ADD] = library.alpha, owned * library.reduce
        else:
            cost[at + _ADD] = owned * len(basis.clusters) * profile.reduce
    cost[at + _LAST] += found.copied / chunks * profile.copy
    work = OVERHEAD * cross_link(layout).alpha
    crowds = [profile.crowd if layout.spans_hosts and _is_crowded(pairs, number) else 1.0 for pairs in found.pairs]
    for nic, bandwidth in enumerate(nic_bandwidths(layout)[number]):
        nics = range(nic, nic + 1) if shape.nics else range(shape.size)  # ranks share a link that no NIC is named for
        # Of each phase: seconds that bytes take, and that the messages of one border take, going out and coming in.
        out, into = (
            [
                crowds[phase] * sum(way[number, one, phase] for one in nics) / chunks / bandwidth
                + max(count[number, one, phase] for one in nics) * work
                for phase in (0, 1)
            ]
            for way, count in ((found.out, found.sent), (found.into, found.taken))
        )
        for phase, node in ((0, _SEND), (1, _GIVE)):
            busy = max(out[phase], into[phase])
            cost[at + node] = max(cost[at + node], busy)
            latency[at + node] = layout.wait(layout.spans_hosts, message) - work if cost[at + node] else 0.0
        for node, way in ((_OUT, out), (_INTO, into)):
            cost[at + node] = max(cost[at + node], sum(way))
    # One thing does both stages inside: a library, or the ranks' cores. These also add between clusters; and within one
    # host, or where every rank sends its own without a border, they move what crosses as well.
    cost[at + _INSIDE] = cost[at + _FIRST] + cost[at + _LAST]
    first, last = found.first[number], found.last[number]
    if (
        first.reduces
        and last.nbytes
        and _spans(layout, shape)
        and not shape.native(operation.reduction, operation.dtype)
    ):
        # Links do both at once where one stage's direction is not the other's.
        twice = _moved(shape, first) + _moved(shape, last) - _moved_at_once(shape, first, last)
        cost[at + _INSIDE] -= twice / chunks * profile.tcp.beta
    own = not shape.native(operation.reduction, operation.dtype) and (operation.reduction != "none" or not shape.vendor)
    if own or basis.border:
        cost[at + _INSIDE] += cost[at + _ADD]
    straight = any(local.single for local in (found.first[number], found.last[number])) or found.copied
    if own and not shape.nics and (straight or not layout.spans_hosts):
        cost[at + _INSIDE] += max(cost[at + _OUT], cost[at + _INTO])


def _is_crowded(pairs: set[tuple[int, int]], number: int) -> bool:
    """Whether a cluster sends to several others while several send to it."""
    return min(sum(a == number for a, _ in pairs), sum(b == number for _, b in pairs)) > 1


def _edges(found: Load, many: int) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
    """The way of a chunk, and that way with the rings that bound it."""
    path: list[tuple[int, int]] = []
    for number in range(many):
        at = 8 * number
        path += [(at + a, at + b) for a, b in ((_FIRST, _SEND), (_SEND, _ADD), (_ADD, _GIVE), (_GIVE, _LAST))]
    path += [(8 * a + _SEND, 8 * b + _SEND + 1) for a, b in found.pairs[0]]
    path += [(8 * a + _GIVE, 8 * b + _LAST) for a, b in found.pairs[1]]
    return path, [(a, b, 0) for a, b in path] + [(b, a, RING_SLOTS) for a, b in path]


def _busiest(cost: list[float], many: int) -> float:
    """Seconds a chunk that the busiest thing needs."""
    worst = 0.0
    for at in range(0, 8 * many, 8):
        worst = max(worst, *(cost[at + node] for node in (_INSIDE, _ADD, _OUT, _INTO)))
    return worst
