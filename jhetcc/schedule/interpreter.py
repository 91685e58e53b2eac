# SPDX-License-Identifier: Apache-2.0
"""Runs the schedules of all ranks at once: on terms to prove them, or on numbers as the engine's oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .expected import ZERO, contributions
from .graph import check_live
from .operation import DTYPES, OPS, Operation
from .program import Event, Program, ScheduleError
from .value import COPY, INPUT, OUTPUT, RECV, REDUCE, SCRATCH, SEND, Schedule
from .values import numpy_dtype, reduce_terms

__all__ = ["Proof", "ScheduleError", "prove", "run"]

Operations = Operation | Mapping[int, Operation]
Schedules = Sequence[Schedule] | Mapping[int, Schedule]

_UNDEFINED, _ZERO_TERM = 0, 1


@dataclass(frozen=True)
class Proof:
    """What was proven besides being right.

    Attributes:
      events: iterations of all steps of all ranks.
      orders: the orders of ranks in which elements are reduced.
    """

    events: int
    orders: frozenset[tuple[int, ...]]


def prove(operation: Operations, schedules: Schedules, *, in_place: bool | None = None) -> Proof:
    """Proves that schedules do an operation, in every legal interleaving.

    Every output element holds exactly the right contributions once, reduced in one order on all ranks, f16 and bf16 in
    one step; nothing is read that nothing wrote; no two accesses race; every message has two sides of one length; it
    never gets stuck; each rank's completion depends on each rank's start (not for point to point).

    Args:
      operation: what they should do; for point to point one for each rank.
      schedules: of each rank, by rank; for point to point a mapping may leave ranks out.
      in_place: whether input and output are the same memory; None proves both where their sizes are equal.

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
    before = program.before()
    for same in (False, True) if in_place is None else (in_place,):
        if same and in_place is None and not any(s.input_bytes == s.output_bytes for s in held.values()):
            continue
        _check_races(program, before, same)
        orders |= _check_terms(program, operations, same)
    return Proof(len(program.events), frozenset(orders))


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
        result = reduce_terms(terms, dtype, ops[s.op], s.size if event.final and ops[s.op] == "mean" else 0)
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
        memory = memories[event.rank]

        def slot(place, length=event.length, memory=memory):
            buffer, offset = place
            return memory[buffer][offset // unit : (offset + length) // unit]

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
    for rank, heard in program.heard().items():
        if heard != everybody:
            missing = [r for r in program.schedules if not heard >> r & 1]
            raise ScheduleError(f"rank {rank} can complete before ranks {missing} have started")


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


class _Terms:
    """Terms by number: equal terms have equal numbers."""

    def __init__(self):
        self.numbers: dict[tuple, int] = {}
        self.terms: list[tuple] = [("undefined",), ("zero",)]

    def number(self, term: tuple) -> int:
        if term not in self.numbers:
            self.numbers[term] = len(self.terms)
            self.terms.append(term)
        return self.numbers[term]

    def leaves(self, number: int, top: bool = True) -> list[tuple[int, int]]:
        """The contributions in a term, in the order they were reduced; only the outermost reduction is final."""
        kind, *rest = self.terms[number]
        if kind == "input":
            return [(rest[0], rest[1])]
        if kind != "reduce":
            raise ScheduleError(f"a reduction holds {kind}")
        if rest[0] != top:
            raise ScheduleError("a reduction is final before it is complete, or complete and not final")
        return [leaf for part in rest[1:] for leaf in self.leaves(part, False)]


def _check_terms(program: Program, operations: Mapping[int, Operation], same: bool) -> set[tuple[int, ...]]:
    unit = next(iter(operations.values())).itemsize
    terms, memories = _Terms(), {}
    for rank, s in program.schedules.items():
        for name in ("length", "target_offset", "source_offset"):
            if np.any(getattr(s, name) % unit):
                raise ScheduleError(f"rank {rank}: a {name} splits an element of {unit} bytes")
        own = [terms.number(("input", rank, e)) for e in range(s.input_bytes // unit)]
        memories[rank] = _memory(s, np.array(own, np.int64), same, _UNDEFINED, np.int64, unit)
        memories[rank][SCRATCH] = np.full(-(-s.scratch_bytes // unit), _UNDEFINED, np.int64)

    def reduce(event: Event, sources: list[np.ndarray]) -> np.ndarray:
        rows = zip(*(source.tolist() for source in sources), strict=True)
        return np.array([terms.number(("reduce", event.final, *row)) for row in rows], np.int64)

    def look(event: Event, value: np.ndarray) -> None:
        if np.any(value == _UNDEFINED):
            raise ScheduleError(f"{event.text()} reads what nothing wrote")

    _execute(program, program.order, memories, unit, reduce, _ZERO_TERM, look)
    orders: set[tuple[int, ...]] = set()
    agreed: dict[int, int] = {}
    for rank, operation in operations.items():
        wanted = contributions(operation, program.schedules[rank].size, rank)
        for e, (number, pairs) in enumerate(zip(memories[rank][OUTPUT].tolist(), wanted, strict=True)):
            where = f"{operation.text()}: rank {rank} output element {e}"
            order = _check_element(terms, operation, number, pairs, where)
            if order:
                orders.add(order)
            if operation.is_all_reduce and agreed.setdefault(e, number) != number:
                raise ScheduleError(f"{where} is reduced in another order than on the first rank")
    return orders


def _check_element(terms: _Terms, operation: Operation, number: int, pairs, where: str) -> tuple[int, ...]:
    if number == _UNDEFINED:
        raise ScheduleError(f"{where}: nothing wrote it")
    if pairs == ZERO:
        if number != _ZERO_TERM:
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
    if operation.dtype in ("f16", "bf16") and len(terms.terms[number]) != 2 + len(pairs):
        raise ScheduleError(f"{where}: {operation.dtype} must be reduced in one step")
    return tuple(rank for rank, _ in leaves)
