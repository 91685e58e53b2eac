# SPDX-License-Identifier: Apache-2.0
"""Direct exchange: every byte travels once, straight from its contributor to who needs it.

The method for everything that moves data without reducing it, for reduce and psum_scatter, and (in
``direct_reduce.py``) for all-reduce. A reduction happens in one step at the owner, in rank order, so it fits every
dtype.
Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005,
sections 4.1 and 4.3 (the pairwise and the long-message forms).

In place. Input and output may be the same memory. Where a rank both sends from and receives into the same range,
waiting for the send before receiving would be a cycle of waits between the ranks, so one side of each pair receives
into a scratch ring.
"""

from __future__ import annotations

from ..schedule import Builder, Operation, Place, Plan, Schedule
from .common import RING_SLOTS, agreement, needs_no_messages, owner_reduce
from .cost import agreement_seconds, all_pairs_seconds, fan_seconds
from .layout import Layout

__all__ = ["build", "fits", "seconds"]


def fits(operation: Operation, size: int) -> str | None:
    """Why this method does not fit, or None."""
    return "all-reduces have one_shot and two_shot" if operation.is_all_reduce else None


def build(plan: Plan, rank: int) -> Schedule:
    b = Builder(plan, rank)
    name = plan.operation.name
    if name in ("send", "recv", "sendrecv"):
        _point_to_point(b)
    elif name == "ppermute":
        _ppermute(b)
    elif b.size == 1 and plan.operation.lengths is None:
        needs_no_messages(b)
    else:
        _BUILD[name](b)
    return b.finish()


def exchange(b: Builder, peer: int, source: Place, target: Place, length: int) -> None:
    """Sends to and receives from a peer that does the same, where source and target are the same range in place."""
    sent = b.send(peer, source, length)
    # Of each pair one side receives beside its source; its taking the message lets the other side receive in place.
    if (b.rank < peer) == ((b.rank + peer) % 2 == 1):
        _receive_beside(b, peer, target, length, sent)
    else:
        b.recv(peer, target, length, after=[sent])


def _receive_beside(b: Builder, peer: int, target: Place, length: int, sent: int) -> None:
    place = b.ring(length, RING_SLOTS)
    recv = b.recv(peer, place, length)
    copied = b.copy(target, place, length, after=[recv, sent])
    b.reuse(recv, place, copied)


def _all_to_all(b: Builder) -> None:
    block = b.input_bytes // b.size
    if not block:
        return agreement(b)
    for peer in b.others():
        exchange(b, peer, b.input(peer * block), b.output(peer * block), block)
    b.copy(b.output(b.rank * block), b.input(b.rank * block), block)


def _rows(b: Builder) -> list[tuple[int, int]]:
    """(offset, length) in bytes of each rank's part of the gathered whole."""
    operation = b.operation
    if operation.lengths is None:
        each = operation.nbytes if operation.name != "scatter" else operation.nbytes // b.size
        return [(rank * each, each) for rank in range(b.size)]
    result, begin = [], 0
    for rows in operation.lengths:
        result.append((begin, rows * operation.row_bytes))
        begin += rows * operation.row_bytes
    return result


def _all_gather(b: Builder) -> None:
    rows = _rows(b)
    if not b.output_bytes:
        return agreement(b)
    own_begin, own = rows[b.rank]
    # Empty contributions travel too: they tell that their rank has started.
    for peer in b.others():
        b.send(peer, b.input(), own)
    for peer in b.others():
        b.recv(peer, b.output(rows[peer][0]), rows[peer][1])
    if own:
        b.copy(b.output(own_begin), b.input(), own)


def _root(b: Builder) -> int:
    assert b.operation.root is not None  # the operation was checked
    return b.operation.root


def _gather(b: Builder) -> None:
    rows = _rows(b)
    own_begin, own = rows[b.rank]
    agreement(b)
    if b.rank != _root(b):
        sent = [b.send(_root(b), b.input(), own)] if own else []
        if b.output_bytes:
            b.fill(b.output(), b.output_bytes, after=[(step, -1) for step in sent])
        return
    for peer in b.others():
        if rows[peer][1]:
            b.recv(peer, b.output(rows[peer][0]), rows[peer][1])
    if own:
        b.copy(b.output(own_begin), b.input(), own)


def _scatter(b: Builder) -> None:
    rows = _rows(b)
    begin, own = rows[b.rank]
    agreement(b)
    sent: list[int] = []
    if b.rank == _root(b):
        for peer in b.others():
            if rows[peer][1]:
                sent.append(b.send(peer, b.input(rows[peer][0]), rows[peer][1]))
        if own:
            b.copy(b.output(), b.input(begin), own)
    elif own:
        b.recv(_root(b), b.output(), own)
    if b.output_bytes > own:
        b.fill(b.output(own), b.output_bytes - own, after=[(step, -1) for step in sent])


def _broadcast(b: Builder) -> None:
    agreement(b)
    if not b.input_bytes:
        return
    if b.rank != _root(b):
        b.recv(_root(b), b.output(), b.input_bytes)
        return
    for peer in b.others():
        b.send(peer, b.input(), b.input_bytes)
    b.copy(b.output(), b.input(), b.input_bytes)


def _reduce(b: Builder) -> None:
    agreement(b)
    if not b.input_bytes:
        return
    if b.rank == _root(b):
        owner_reduce(b, b.input(), b.output(), b.input_bytes)
        return
    sent = b.send(_root(b), b.input(), b.input_bytes)
    b.fill(b.output(), b.output_bytes, after=[sent])


def _psum_scatter(b: Builder) -> None:
    block = b.output_bytes
    if not block:
        return agreement(b)
    for peer in b.others():
        b.send(peer, b.input(peer * block), block)
    owner_reduce(b, b.input(b.rank * block), b.output(), block)


def _ppermute(b: Builder) -> None:
    to = dict(b.operation.perm or ()).get(b.rank)
    source = {dst: src for src, dst in b.operation.perm or ()}.get(b.rank)
    agreement(b)
    _pass_on(b, to, source)


def _pass_on(b: Builder, to: int | None, source: int | None) -> None:
    """Sends the whole input to one rank and receives the whole output from another; zeros without a source."""
    length = b.input_bytes
    if not length:
        return
    if to == b.rank:  # then it is its own source too
        b.copy(b.output(), b.input(), length)
    elif to is not None and to == source and not b.operation.is_point_to_point:
        exchange(b, to, b.input(), b.output(), length)
    else:
        sent = b.send(to, b.input(), length) if to is not None else None
        if source is None:
            b.fill(b.output(), length, after=[] if sent is None else [sent])
        elif sent is None:
            b.recv(source, b.output(), length)
        else:
            _receive_beside(b, source, b.output(), length, sent)


def _point_to_point(b: Builder) -> None:
    operation = b.operation
    to, source = operation.to, operation.from_
    if b.rank in (to, source) and to != source:
        raise ValueError(f"{operation.text()} on rank {b.rank}: only sendrecv, with itself on both sides, can do that")
    if to == b.rank:
        if b.input_bytes:
            b.copy(b.output(), b.input(), b.input_bytes)
        return
    sent = None if to is None else b.send(to, b.input(), b.input_bytes)
    if source is None:
        return
    if sent is None:
        b.recv(source, b.output(), b.output_bytes)
    else:
        _receive_beside(b, source, b.output(), b.output_bytes, sent)


_BUILD = {
    "all_to_all": _all_to_all,
    "all_gather": _all_gather,
    "gather": _gather,
    "scatter": _scatter,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "psum_scatter": _psum_scatter,
    "barrier": agreement,
}


def seconds(operation: Operation, layout: Layout, chunk: int) -> float:
    """Predicted seconds."""
    size, name, nbytes = layout.size, operation.name, operation.nbytes
    if size == 1:
        return operation.output_bytes(1) * layout.copy
    if name == "barrier":
        return agreement_seconds(layout)
    wait = layout.wait(layout.spans_hosts)
    if name in ("send", "recv", "sendrecv"):
        return wait + nbytes * (layout.slowest.beta + (layout.copy if name == "sendrecv" else 0))
    if name == "ppermute":
        return agreement_seconds(layout) + wait + nbytes * (layout.slowest.beta + layout.copy)
    if name == "all_gather":
        return all_pairs_seconds(layout, nbytes) + nbytes * layout.copy
    if name == "all_to_all":
        return all_pairs_seconds(layout, nbytes / size) + nbytes / 2 * layout.copy
    if name == "psum_scatter":
        return all_pairs_seconds(layout, nbytes / size) + nbytes * layout.reduce
    each = nbytes / size if name == "scatter" else nbytes
    memory = size * nbytes * layout.reduce if name == "reduce" else operation.output_bytes(size) * layout.copy
    return agreement_seconds(layout) + fan_seconds(layout, operation.root or 0, each) + memory
