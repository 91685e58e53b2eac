# SPDX-License-Identifier: Apache-2.0
"""Schedules as marked graphs: is there a run that never gets stuck, and how long do pipelined chunks take.

Nodes are starts and completions of steps; an edge with t tokens says that iteration i waits for iteration i - t.
Edges: a step's completion after its start; dependencies; a message's completion after its partner's start and
completion (rendezvous, the strictest an engine may be); at most ``WINDOW`` iterations of a send or receive under way;
iterations in order; a native call's completion after the starts of all members, and a rank's native calls one after
the other (a library that blocks, the strictest again). A marked graph is live if and only if every cycle holds a token.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping

from .program import Program, ScheduleError
from .value import KIND_NAMES, NATIVE_REDUCE, RECV, SEND, WHOLE, Circle, Schedule

__all__ = ["WINDOW", "check_live", "check_marked_graph", "cycle_ratio", "longest_path", "pipelined_seconds"]

WINDOW = 8  # iterations of one send or receive step under way at once

Edge = tuple[int, int, int]  # from, to, tokens


def check_live(program: Program) -> None:
    """Fires every start and completion of the unrolled events, sends waiting for their receives.

    Raises:
      ScheduleError: it gets stuck; the message names the event that waits.
    """
    count = len(program.events)
    after: list[list[int]] = [[] for _ in range(2 * count)]
    missing = [0] * (2 * count)

    def edge(a: int, b: int) -> None:
        after[a].append(b)
        missing[b] += 1

    for number, event in enumerate(program.events):
        start, end = 2 * number, 2 * number + 1
        edge(start, end)
        for on in program.waits[number]:
            edge(2 * on + 1, start)
        if event.iteration:
            edge(start - 2, start)
        if event.kind in (SEND, RECV):
            partner = program.partner[number]
            edge(2 * partner, end)
            if event.kind == SEND:
                edge(2 * partner + 1, end)
            if event.iteration >= WINDOW:
                edge(end - 2 * WINDOW, start)
    for call in program.calls:
        for one in call:
            for other in call:
                edge(2 * other, 2 * one + 1)
    for events in program.native.values():
        for one, following in itertools.pairwise(events):
            edge(2 * one + 1, 2 * following)
    ready = deque(node for node in range(2 * count) if not missing[node])
    fired = 0
    while ready:
        node = ready.popleft()
        fired += 1
        for other in after[node]:
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    if fired < 2 * count:
        stuck = next(node for node in range(2 * count) if missing[node])
        verb = "complete" if stuck % 2 else "start"
        raise ScheduleError(f"{program.events[stuck // 2].text()} can never {verb}: the waits form a cycle")


def _marked_graph(schedules: Mapping[int, Schedule]) -> tuple[list[tuple[int, int]], list[Edge], list[tuple[int, int]]]:
    """(rank, step) of each pair of nodes, edges, and edges that stand for all iterations of a step of several."""
    steps = [(rank, step) for rank, s in schedules.items() for step in range(s.steps)]
    number = {key: 2 * i for i, key in enumerate(steps)}
    edges: list[Edge] = []
    whole: list[tuple[int, int]] = []
    ends: dict[tuple[int, int, int, int], tuple[int, int]] = {}
    lags: dict[int, int] = {}
    calls: dict[Circle, dict[int, list[int]]] = {}
    for rank, step in steps:
        s, start = schedules[rank], number[rank, step]
        edges.append((start, start + 1, 0))
        edges += [(start, start, 1), (start + 1, start + 1, 1)]
        for on, distance in s.dependencies(step):
            end = number[rank, on] + 1
            if distance == WHOLE and s.iterations(on) > 1:
                whole.append((end, start))
            edges.append((end, start, max(distance, 0)))
        kind, peer = int(s.kind[step]), int(s.peer[step])
        if kind in (SEND, RECV):
            edges.append((start + 1, start, WINDOW))
            way = (rank, peer) if kind == SEND else (peer, rank)
            ends[(kind, *way, int(s.stream[step]))] = (rank, step)
    for rank, s in schedules.items():
        circles = s.circles
        native = [(number[rank, step], circles[int(s.stream[step])]) for step in _native_steps(s)]
        for start, circle in native:
            lags[start] = lags[start + 1] = circle.lag
            calls.setdefault(circle, {}).setdefault(rank, []).append(start)
        following = [start for start, _ in native[1:] + native[:1]]
        edges += [
            (start + 1, other, (other <= start) + lags[start] - lags[other])
            for (start, _), other in zip(native, following, strict=True)
        ]
    for circle, by_rank in calls.items():
        if set(by_rank) != set(circle.members) or len({len(steps) for steps in by_rank.values()}) > 1:
            raise ScheduleError(f"the members of native circle {circle} make different calls")
        for members in zip(*by_rank.values(), strict=True):
            edges += [(a, b + 1, 0) for a in members for b in members]
    for (kind, *way), key in ends.items():
        other = ends.get((RECV if kind == SEND else SEND, *way))  # type: ignore[call-overload]
        if other is None:
            raise ScheduleError(f"message from {way[0]} to {way[1]} in stream {way[2]} has one side only")
        edges.append((number[other], number[key] + 1, 0))
        if kind == SEND:
            edges.append((number[other] + 1, number[key] + 1, 0))
    return steps, edges, whole


def _counted_anew(count: int, edges: list[Edge]) -> list[Edge]:
    """The same graph with each node's iterations counted from another one, so that no edge has less than no token.

    A lag in the native order gives such edges; tokens of cycles stay as they are.
    """
    shift = [0] * count
    for _ in range(count + 1):
        changed = False
        for a, b, tokens in edges:
            if shift[a] - tokens > shift[b]:
                shift[b], changed = shift[a] - tokens, True
        if not changed:
            return [(a, b, tokens + shift[b] - shift[a]) for a, b, tokens in edges]
    raise ScheduleError("the native order and the waits form a cycle with less than no token")


def _native_steps(s: Schedule) -> list[int]:
    return [step for step, kind in enumerate(s.kind.tolist()) if kind >= NATIVE_REDUCE]


def check_marked_graph(schedules: Mapping[int, Schedule]) -> None:
    """Checks liveness without unrolling: cost grows with steps, not with chunks.

    A dependency on all iterations of a step must lie on no cycle at all; every other cycle must hold a token.

    Raises:
      ScheduleError: a cycle without a token; the message names a step on it.
    """
    steps, edges, whole = _marked_graph(schedules)
    count = 2 * len(steps)
    edges = _counted_anew(count, edges)
    stuck = _on_cycle(count, [(a, b) for a, b, tokens in edges if not tokens])
    if stuck is None and whole:
        component = _components(count, [(a, b) for a, b, _ in edges])
        stuck = next((a for a, b in whole if component[a] == component[b]), None)
    if stuck is not None:
        rank, step = steps[stuck // 2]
        kind = KIND_NAMES[int(schedules[rank].kind[step])]
        raise ScheduleError(f"rank {rank} step {step} ({kind}) lies on a cycle of waits without a token")


def _on_cycle(count: int, edges: list[tuple[int, int]]) -> int | None:
    after: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for a, b in edges:
        after[a].append(b)
        missing[b] += 1
    ready = [node for node in range(count) if not missing[node]]
    while ready:
        for other in after[ready.pop()]:
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    return next((node for node in range(count) if missing[node]), None)


def _components(count: int, edges: list[tuple[int, int]]) -> list[int]:
    """Number of each node's strongly connected component (two passes, without recursion)."""
    after: list[list[int]] = [[] for _ in range(count)]
    back: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        after[a].append(b)
        back[b].append(a)
    seen, finished = [False] * count, []
    for root in range(count):
        stack = [] if seen[root] else [(root, iter(after[root]))]
        seen[root] = True
        while stack:
            node, rest = stack[-1]
            fresh = next((other for other in rest if not seen[other]), None)
            if fresh is None:
                finished.append(node)
                stack.pop()
            else:
                seen[fresh] = True
                stack.append((fresh, iter(after[fresh])))
    component = [-1] * count
    for root in reversed(finished):
        todo = [root] if component[root] < 0 else []
        component[root] = root if todo else component[root]
        while todo:
            for other in back[todo.pop()]:
                if component[other] < 0:
                    component[other] = root
                    todo.append(other)
    return component


def cycle_ratio(count: int, edges: list[tuple[int, int, int]], cost: list[float]) -> float:
    """The largest (sum of node costs) / (tokens) over all cycles: seconds an iteration when pipelined.

    Args:
      count: nodes.
      edges: (from, to, tokens); every cycle holds a token.
      cost: seconds of each node.
    """
    low, high = 0.0, sum(cost)
    for _ in range(40):
        middle = (low + high) / 2
        if _positive_cycle(count, edges, cost, middle):
            low = middle
        else:
            high = middle
    return high


def _positive_cycle(count: int, edges: list[tuple[int, int, int]], cost: list[float], ratio: float) -> bool:
    longest = [0.0] * count
    for _ in range(count + 1):
        changed = False
        for a, b, tokens in edges:
            value = longest[a] + cost[a] - ratio * tokens
            if value > longest[b] + 1e-15:
                longest[b], changed = value, True
        if not changed:
            return False
    return True


def pipelined_seconds(schedules: Mapping[int, Schedule], seconds: Callable[[Schedule, int], float]) -> float:
    """Estimated time of an operation: the first chunk's way through the graph, then the pace of the slowest cycle.

    Args:
      schedules: of all ranks.
      seconds: of one iteration of (schedule, step).
    """
    steps, edges, _ = _marked_graph(schedules)
    cost = [0.0] * (2 * len(steps))
    for i, (rank, step) in enumerate(steps):
        # A message moves once both sides have started.
        at = 2 * i + (schedules[rank].kind[step] == RECV)
        cost[at] = seconds(schedules[rank], step)
    count = max((schedules[rank].iterations(step) for rank, step in steps), default=1)
    first = longest_path(len(cost), [(a, b) for a, b, tokens in edges if not tokens], cost)
    if count == 1:
        return first
    return first + (count - 1) * cycle_ratio(len(cost), edges, cost)


def longest_path(count: int, edges: list[tuple[int, int]], cost: list[float]) -> float:
    """The largest sum of node costs along any path; the edges form no cycle."""
    after: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for a, b in edges:
        after[a].append(b)
        missing[b] += 1
    ready, longest = [node for node in range(count) if not missing[node]], [0.0] * count
    while ready:
        node = ready.pop()
        for other in after[node]:
            longest[other] = max(longest[other], longest[node] + cost[node])
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    return max((longest[node] + cost[node] for node in range(count)), default=0.0)
