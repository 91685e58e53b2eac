# SPDX-License-Identifier: Apache-2.0
"""Why an operation is planned as it is, as a value: candidates, borders, stages, bytes on every link, bounced bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..schedule import SEND, Operation, Plan
from .choice import HIERARCHICAL, Candidate, basis, plan, rated
from .clusters import ClusterShape
from .layout import Layout
from .load import load
from .pieces import cluster_of
from .profile import Profile

__all__ = ["Border", "Link", "Report", "explain"]

_COUNT_RANKS = 64  # more ranks of a flat plan are not expanded just to count


@dataclass(frozen=True)
class Border:
    """A border rank of a plan: which NIC it serves, and the share of its cluster's bytes that goes there."""

    cluster: int
    rank: int
    nic: str
    share: float


@dataclass(frozen=True)
class Link:
    """Bytes from one place to another: NICs of clusters, or clusters, or hosts, by name."""

    source: str
    target: str
    nbytes: int


@dataclass(frozen=True)
class Report:
    """What ``explain`` found.

    Attributes:
      plan: the choice.
      candidates: the methods that fit, the fastest first.
      stages: one line each.
      borders: of a hierarchical plan, else empty.
      links: bytes between clusters (between hosts where there are none); None where too many ranks to count.
      bounced_bytes: of these, those that go through host memory because a NIC cannot reach the device's.
      costs: which ones were predicted with.
    """

    plan: Plan
    candidates: tuple[Candidate, ...]
    stages: tuple[str, ...]
    borders: tuple[Border, ...]
    links: tuple[Link, ...] | None
    bounced_bytes: int
    costs: str

    def text(self) -> str:
        """For people, a line for each fact."""
        lines = []
        for one in self.candidates:
            mark = "*" if one.name == self.plan.algorithm else " "
            lines.append(
                f"{mark} {one.name:31} {one.seconds * 1e6:12.1f} us predicted, chunks of {one.chunk_bytes} bytes"
            )
        lines += [f"  costs: {self.costs}", str(self.plan)]
        lines += [f"  stage: {stage}" for stage in self.stages]
        for one in self.borders:
            lines.append(
                f"  border of cluster {one.cluster}: rank {one.rank} by {one.nic}, {one.share:.1%} of its bytes"
            )
        if self.links is None:
            lines.append(f"  bytes per link: not counted for more than {_COUNT_RANKS} ranks")
        else:
            lines += [f"  link {one.source} -> {one.target}: {one.nbytes} bytes" for one in self.links]
        lines.append(f"  bounced through host memory: {self.bounced_bytes} bytes")
        return "\n".join(lines)


def explain(
    operation: Operation, layout: Layout, *, algorithm: str | None = None, chunk_bytes: int | None = None
) -> Report:
    """Plans an operation and says why so.

    Args:
      operation: what is asked.
      layout: the machines, with clusters or without.
      algorithm: forces a method by name.
      chunk_bytes: forces the bytes of one iteration.

    Raises:
      ValueError: as ``plan``.

    Example:
      >>> explain(Operation("psum", "f32", (4,)), Layout.local(2)).links
      ()
    """
    chosen = plan(operation, layout, algorithm=algorithm, chunk_bytes=chunk_bytes)
    found = tuple(rated(operation, layout))
    costs = "built-in" if layout.profile == Profile() else f"profile {layout.profile.hash:016x}"
    if chosen.algorithm in HIERARCHICAL:
        return Report(chosen, found, *_hierarchical(chosen, layout), costs)
    links = _flat_links(chosen, layout)
    columns = operation.columns
    among = "all ranks at once" if columns is None else f"the ranks of each of {columns} columns"
    stages = [f"between {among}, by our own transports"]
    stages += [f"cluster {n}: {shape.why_none}" for n, shape in enumerate(layout.clusters or ()) if shape.why_none]
    return Report(chosen, found, tuple(stages), (), links, _bounced(links, layout), costs)


def _hierarchical(chosen: Plan, layout: Layout):
    operation, clusters = chosen.operation, layout.clusters or ()
    made = basis(chosen.algorithm, operation, layout)
    work = load(operation, made)
    names = [_nic_names(number, shape) for number, shape in enumerate(clusters)]
    through: Counter[tuple[int, int]] = Counter()
    for (number, nic, _), nbytes in (*work.out.items(), *work.into.items()):
        through[number, nic] += nbytes
    borders = []
    for number, shape in enumerate(clusters):
        whole = sum(nbytes for (one, _), nbytes in through.items() if one == number)
        for nic, rank in enumerate(shape.borders):
            if through[number, nic]:
                borders.append(Border(number, rank, names[number][nic], through[number, nic] / whole))
    links = tuple(
        Link(f"cluster {a} {names[a][x]}", f"cluster {b} {names[b][y]}", nbytes)
        for (a, x, b, y), nbytes in sorted(work.links.items())
    )
    bounced = sum(
        nbytes
        for (a, x, b, y), nbytes in work.links.items()
        if not (_direct(clusters[a], x) and _direct(clusters[b], y))
    )
    stages = [f"cluster {n}: {_inside(operation, shape)}" for n, shape in enumerate(clusters)]
    return (*_with_cross(operation, stages, made.border),), tuple(borders), links, bounced


def _inside(operation: Operation, shape: ClusterShape) -> str:
    if shape.size == 1:
        return "one rank, nothing to do"
    reducing = operation.reduction != "none"
    native = shape.native(operation.reduction, operation.dtype) if reducing else shape.vendor is not None
    moves = operation.name in ("gather", "scatter", "ppermute", "all_to_all", "barrier")
    if native and shape.vendor is not None and not moves:
        return f"{shape.size} ranks by {shape.vendor.name}"
    return f"{shape.size} ranks by our own schedule" + (f": {shape.why_none}" if shape.why_none else "")


def _with_cross(operation: Operation, stages: list[str], border: bool) -> list[str]:
    cross = "copied from border to border"
    if operation.name == "barrier":
        cross = "rounds among the first borders"
    elif operation.reduction != "none":
        cross = (
            "reduced by the owners' libraries over border communicators"
            if border
            else "reduced at the owner's border, in cluster order"
        )
    return stages if len(stages) == 1 else [*stages, f"between {len(stages)} clusters: {cross}"]


def _nic_names(number: int, shape: ClusterShape) -> list[str]:
    if not shape.nics:
        return [f"rank {rank}'s path" for rank in shape.ranks]
    return [nic.name or f"NIC {at}" for at, nic in enumerate(shape.nics)]


def _direct(shape: ClusterShape, nic: int) -> bool:
    return not shape.nics or shape.nics[nic].direct


def _flat_links(chosen: Plan, layout: Layout) -> tuple[Link, ...] | None:
    if layout.size > _COUNT_RANKS or chosen.operation.is_point_to_point:
        return None if layout.size > _COUNT_RANKS else ()
    among = layout.clusters if layout.clusters is not None and len(layout.clusters) > 1 else None
    where = list(layout.hosts) if among is None else cluster_of(among, layout.size)
    name = "host" if among is None else "cluster"
    found: Counter[tuple[int, int]] = Counter()
    for schedule in chosen.expand_all():
        for step in (schedule.kind == SEND).nonzero()[0].tolist():
            found[where[schedule.rank], where[int(schedule.peer[step])]] += int(schedule.length[step])
    return tuple(
        Link(f"{name} {a}", f"{name} {b}", nbytes) for (a, b), nbytes in sorted(found.items()) if a != b and nbytes
    )


def _bounced(links: tuple[Link, ...] | None, layout: Layout) -> int:
    """A flat plan's bytes that touch a cluster none of whose NICs reaches its devices' memory."""
    clusters = layout.clusters or ()
    bad = {
        f"cluster {n}" for n, shape in enumerate(clusters) if shape.nics and not all(nic.direct for nic in shape.nics)
    }
    if len(clusters) == 1:  # then links are between hosts
        return sum(link.nbytes for link in links or ()) if bad else 0
    return sum(link.nbytes for link in links or () if link.source in bad or link.target in bad)
