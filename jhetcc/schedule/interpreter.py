# SPDX-License-Identifier: Apache-2.0
"""Runs the schedules of all ranks at once: on terms to prove them, or on numbers as the engine's oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .expected import ZERO, contributions
from .graph import check_live
from .operation import DTYPES, OPS, Operation
from .program import Event, Program, ScheduleError
from .terms import UNDEFINED, ZERO_TERM, Terms
from .value import (
    COPY,
    INPUT,
    NATIVE_ALL_REDUCE,
    NATIVE_BROADCAST,
    NATIVE_REDUCE,
    OUTPUT,
    RECV,
    REDUCE,
    SCRATCH,
    SEND,
    Schedule,
)
from .values import numpy_dtype, reduce_terms

__all__ = ["Proof", "ScheduleError", "prove", "run"]

Operations = Operation | Mapping[int, Operation]
Schedules = Sequence[Schedule] | Mapping[int, Schedule]


@dataclass(frozen=True)
class Proof:
    """What was proven besides being right.

    Attributes:
      events: iterations of all steps of all ranks.
      orders: the orders of ranks in which elements are reduced.
      terms: of each rank and output element, how it was reduced: ``("input", rank, element)``, ``("zero",)``,
        ``("reduce", final, ...)``, or ``("native", ...)`` with the members' contributions in the circle's order. Equal
        terms are equal bits, so plans that promise the same bits have equal terms.
    """

    events: int
    orders: frozenset[tuple[int, ...]]
    terms: Mapping[int, tuple] = field(default_factory=dict, repr=False)


def prove(operation: Operations, schedules: Schedules, *, in_place: bool | None = None, uniform: bool = False) -> Proof:
    """Proves that schedules do an operation, in every legal interleaving.

    Every output element holds exactly the right contributions once, reduced in one order on all ranks, what rounds f16
    and bf16 in one step (whose operands may be reductions by a vendor's library); nothing is read that nothing wrote; no two
    accesses race; every message has two sides of one length, every native call all its members; it never gets stuck;
    each rank's completion, and each of its native calls, depends on each rank's start (not for point to point).

    Args:
      operation: what they should do; for point to point one for each rank.
      schedules: of each rank, by rank; for point to point a mapping may leave ranks out.
      in_place: whether input and output are the same memory; None proves both where their sizes are equal.
      uniform: whether the vendors' libraries promise that an all-reduce has the same bits on all members.

    Raises:
      ScheduleError: what is wrong, and where.

    Example:
      >>> from jhetcc.planner import Layout, plan
      >>> p = plan(Operation("psum", "f32", (5,)), Layout.local(2))
      >>> sorted(prove(p.operation, p.expand_all()).orders)
      [(0, 1)]
    """
    held = _by_rank(schedules)
    operations = {rank: operation if isinstance(operation, Operation) else operation[rank] for rank in held}
    for rank, schedule in held.items():
        _check_header(operations[rank], rank, schedule, held)
    program = Program(held)
    check_live(program)
    if not next(iter(operations.values())).is_point_to_point:
        _check_agreement(program)
    orders: set[tuple[int, ...]] = set()
    terms: dict[int, tuple] = {}
    before = program.before()
    for same in (False, True) if in_place is None else (in_place,):
        if same and in_place is None and not any(s.input_bytes == s.output_bytes for s in held.values()):
            continue
        _check_races(program, before, same)
        found, terms = _check_terms(program, operations, same, uniform)
        orders |= found
    return Proof(len(program.events), frozenset(orders), terms)


def run(
    operation: Operations,
    schedules: Schedules,
    inputs: Mapping[int, np.ndarray] | Sequence[np.ndarray],
    *,
    in_place: bool = False,
    seed: int | None = None,
) -> dict[int, np.ndarray]:
    """The outputs of all ranks, bit for bit as the engine gives them.

    Args:
      operation: what the schedules do; for point to point one for each rank.
      schedules: of each rank.
      inputs: of each rank, an array of the operation's dtype and number of elements.
      in_place: whether input and output are the same memory.
      seed: draws another legal interleaving.

    Returns:
      rank -> flat array of the operation's dtype.

    Raises:
      ScheduleError: the schedules cannot run.
    """
    held = _by_rank(schedules)
    program = Program(held)
    memories = {}
    for rank, s in held.items():
        data = np.frombuffer(np.ascontiguousarray(inputs[rank]).tobytes(), np.uint8)
        if len(data) != s.input_bytes:
            raise ScheduleError(f"rank {rank}: the input has {len(data)} bytes, the schedule wants {s.input_bytes}")
        memories[rank] = _memory(s, data, in_place, 0xA5, np.uint8, 1)
    names = {number: name for name, (_, number) in DTYPES.items()}
    ops = {number: name for name, number in OPS.items()}

    def reduce(event: Event, sources: list[np.ndarray]) -> np.ndarray:
        s = held[event.rank]
        dtype = names[s.type]
        terms = [np.frombuffer(source.tobytes(), numpy_dtype(dtype)) for source in sources]
        divisor = s.size if event.final and ops[s.op] == "mean" else 0  # a library sums
        result = reduce_terms(terms, dtype, ops[s.op], divisor)
        return np.frombuffer(result.tobytes(), np.uint8)

    _execute(program, program.order if seed is None else program.shuffled(seed), memories, 1, reduce, 0)
    outputs = {}
    for rank in held:
        one = operation if isinstance(operation, Operation) else operation[rank]
        kind = numpy_dtype(one.dtype) if one.dtype else np.dtype(np.uint8)
        outputs[rank] = np.frombuffer(memories[rank][OUTPUT].tobytes(), kind)
    return outputs


def _by_rank(schedules: Schedules) -> dict[int, Schedule]:
    return dict(schedules) if isinstance(schedules, Mapping) else dict(enumerate(schedules))


def _memory(s: Schedule, data: np.ndarray, same: bool, undefined: int, dtype, unit: int) -> list[np.ndarray]:
    """[input, output, scratch] of a rank; input and output are one array in place."""
    source = np.array(data, dtype)
    both = same and s.input_bytes == s.output_bytes
    output = source if both else np.full(s.output_bytes // unit, undefined, dtype)
    return [source, output, np.full(s.scratch_bytes // unit, undefined, dtype)]


def _execute(program: Program, order, memories, unit: int, reduce, zero, look=None) -> None:
    """Runs the events in an order; ``look(event, value)`` sees every value that is read."""
    flying: dict[int, np.ndarray] = {}
    for number in order:
        event = program.events[number]

        def slot(place, event=event):
            buffer, offset = place
            return memories[event.rank][buffer][offset // unit : (offset + event.length) // unit]

        if number in program.call_of:
            events = program.calls[program.call_of[number]]
            if number == events[0]:
                _execute_native([program.events[one] for one in events], slot, reduce, look)
            continue
        arrived = [flying.pop(program.partner[number])] if event.kind == RECV else []
        read = arrived or [slot(place) for place in event.sources]
        if look is not None:
            for value in read:
                look(event, value)
        if event.kind == SEND:  # a sent message may be copied away at once, or be read as late as its send completes
            flying[number] = read[0].copy()
            continue
        assert event.target is not None
        # A fill reads nothing and writes zeros; the others have one value.
        result = reduce(event, read) if event.kind == REDUCE else [*read, zero][0]
        slot(event.target)[...] = np.array(result)


def _execute_native(members: list[Event], slot, reduce, look) -> None:
    """One call of a vendor's library: all sources are read, then all targets are written."""
    reading = [(event, [np.array(slot(place, event)) for place in event.sources]) for event in members]
    for event, values in reading:
        if look is not None:
            for value in values:
                look(event, value)
    values = [value for _, found in reading for value in found]
    for event in members:
        if event.target is not None:
            slot(event.target, event)[...] = values[0] if event.kind == NATIVE_BROADCAST else reduce(event, values)


def _check_header(operation: Operation, rank: int, s: Schedule, held: Mapping[int, Schedule]) -> None:
    wanted = (operation.input_bytes(s.size), operation.output_bytes(s.size))
    if (s.input_bytes, s.output_bytes) != wanted:
        raise ScheduleError(f"rank {rank}: input and output bytes are {s.input_bytes}, {s.output_bytes}, not {wanted}")
    number = DTYPES[operation.dtype][1] if operation.dtype in DTYPES else 0
    if (s.type, s.op) != (number, OPS[operation.reduction]):
        raise ScheduleError(f"rank {rank}: type {s.type} and op {s.op} are not those of {operation.text()}")
    first = next(iter(held.values()))
    if (s.size, s.chunk_bytes, s.plan_hash) != (first.size, first.chunk_bytes, first.plan_hash):
        raise ScheduleError(f"rank {rank}: size, chunk or plan hash differ from rank {first.rank}'s")
    if not operation.is_point_to_point and len(held) != s.size:
        raise ScheduleError(f"schedules of {len(held)} ranks are not those of all {s.size}")


def _check_agreement(program: Program) -> None:
    everybody = sum(1 << rank for rank in program.schedules)
    completed, native = program.heard()
    found = [(f"rank {rank} can complete", heard) for rank, heard in completed.items()]
    found += [(f"{program.events[event].text()} can be called", heard) for event, heard in native.items()]
    for what, heard in found:
        if heard != everybody:
            missing = [r for r in program.schedules if not heard >> r & 1]
            raise ScheduleError(f"{what} before ranks {missing} have started")


def _check_races(program: Program, before: list[int], same: bool) -> None:
    for rank, s in program.schedules.items():
        both = same and s.input_bytes == s.output_bytes
        rows: list[tuple[int, int, int, int, int]] = []  # memory, begin, end, event, write
        for number, event in enumerate(program.events):
            if event.rank != rank or not event.length:
                continue
            places = [(place, 0) for place in event.sources] + ([] if event.target is None else [(event.target, 1)])
            spans = [(INPUT if both and place[0] == OUTPUT else place[0], place[1], write) for place, write in places]
            if event.kind == COPY and spans[0][:2] == spans[1][:2]:
                continue  # onto itself: moves nothing
            if event.kind == NATIVE_BROADCAST and len(spans) == 2 and spans[0][:2] == spans[1][:2]:
                spans.pop()  # in place at the root: only read
            rows += [(buffer, offset, offset + event.length, number, write) for buffer, offset, write in spans]
        if not rows:
            continue
        memory, begin, end, number, write = (np.array(column) for column in zip(*rows, strict=True))
        for i in range(len(rows)):
            clash = (memory[i + 1 :] == memory[i]) & (begin[i + 1 :] < end[i]) & (end[i + 1 :] > begin[i])
            for j in (np.flatnonzero(clash & ((write[i + 1 :] | write[i]) == 1)) + i + 1).tolist():
                a, b = int(number[i]), int(number[j])
                if a == b:
                    if begin[i] != begin[j]:
                        raise ScheduleError(f"{program.events[a].text()}: target and source overlap in part")
                elif not (before[b] >> a & 1 or before[a] >> b & 1):
                    place = ("input", "output", "scratch")[int(memory[i])]
                    raise ScheduleError(
                        f"{program.events[a].text()} and {program.events[b].text()} race on {place} bytes "
                        f"{max(begin[i], begin[j])} to {min(end[i], end[j])}{', in place' if both else ''}"
                    )


def _check_terms(
    program: Program, operations: Mapping[int, Operation], same: bool, uniform: bool
) -> tuple[set[tuple[int, ...]], dict[int, tuple]]:
    unit = next(iter(operations.values())).itemsize
    terms, memories = Terms(), {}
    for rank, s in program.schedules.items():
        for name in ("length", "target_offset", "source_offset"):
            if np.any(getattr(s, name) % unit):
                raise ScheduleError(f"rank {rank}: a {name} splits an element of {unit} bytes")
        own = [terms.number(("input", rank, e)) for e in range(s.input_bytes // unit)]
        memories[rank] = _memory(s, np.array(own, np.int64), same, UNDEFINED, np.int64, unit)
        memories[rank][SCRATCH] = np.full(-(-s.scratch_bytes // unit), UNDEFINED, np.int64)

    def reduce(event: Event, sources: list[np.ndarray]) -> np.ndarray:
        rows = zip(*(source.tolist() for source in sources), strict=True)
        head: tuple = ("reduce", event.final)
        if event.kind >= NATIVE_REDUCE:
            own = event.kind == NATIVE_ALL_REDUCE and not uniform  # then each member may have bits of its own
            head = ("native", event.rank if own else None)
        return np.array([terms.number((*head, *row)) for row in rows], np.int64)

    def look(event: Event, value: np.ndarray) -> None:
        if np.any(value == UNDEFINED):
            raise ScheduleError(f"{event.text()} reads what nothing wrote")

    _execute(program, program.order, memories, unit, reduce, ZERO_TERM, look)
    orders: set[tuple[int, ...]] = set()
    agreed: dict[tuple[int, int], int] = {}
    for rank, operation in operations.items():
        wanted = contributions(operation, program.schedules[rank].size, rank)
        for e, (number, pairs) in enumerate(zip(memories[rank][OUTPUT].tolist(), wanted, strict=True)):
            where = f"{operation.text()}: rank {rank} output element {e}"
            order = _check_element(terms, operation, number, pairs, where)
            if order:
                orders.add(order)
            group = rank % (operation.columns or 1)
            if operation.is_all_reduce and agreed.setdefault((group, e), number) != number:
                raise ScheduleError(f"{where} is reduced in another order than on the first rank")
    whole = {rank: tuple(terms.whole(n) for n in memories[rank][OUTPUT].tolist()) for rank in operations}
    return orders, whole


def _check_element(terms: Terms, operation: Operation, number: int, pairs, where: str) -> tuple[int, ...]:
    if number == UNDEFINED:
        raise ScheduleError(f"{where}: nothing wrote it")
    if pairs == ZERO:
        if number != ZERO_TERM:
            raise ScheduleError(f"{where} is {terms.terms[number]}, not zero")
        return ()
    if operation.reduction == "none" or len(pairs) == 1:
        if terms.terms[number] != ("input", *pairs[0]):
            raise ScheduleError(f"{where} is {terms.terms[number]}, not element {pairs[0][1]} of rank {pairs[0][0]}")
        return ()
    try:
        leaves = terms.leaves(number)
    except ScheduleError as error:
        raise ScheduleError(f"{where}: {error}") from None
    if sorted(leaves) != sorted(pairs):
        raise ScheduleError(f"{where} holds (rank, element) {leaves}, not {list(pairs)}")
    if operation.reduction == "mean" and terms.terms[number][0] != "reduce":
        raise ScheduleError(f"{where}: nothing divided the mean")
    if operation.rounds_once and terms.stores_partial(number):
        raise ScheduleError(f"{where}: {operation.dtype} must be reduced in one step")
    return tuple(rank for rank, _ in leaves)
