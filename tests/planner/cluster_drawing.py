# SPDX-License-Identifier: Apache-2.0
"""Draws clusters: any sizes, interleaved numbering, NICs and libraries; and layouts of them."""

from __future__ import annotations

from hypothesis import strategies as st

from jhetcc.planner import ClusterShape, Layout, Nic, Vendor

VENDORS = (None, Vendor("alike", uniform=True), Vendor("unlike", refuses=(("prod", "f32"), ("sum", "c64"))))


def clusters_of(where, nics=(), vendors=()) -> tuple[ClusterShape, ...]:
    """Clusters from the number of each rank's cluster, with NICs and a library for each cluster."""
    numbers = sorted(set(where))
    return tuple(
        ClusterShape(
            tuple(rank for rank, one in enumerate(where) if one == number),
            nics[place] if place < len(nics) else (),
            vendors[place] if place < len(vendors) else None,
        )
        for place, number in enumerate(numbers)
    )


@st.composite
def clusters(draw, size_max: int = 9, native: bool | None = None) -> tuple[ClusterShape, ...]:
    """One to five clusters that share up to ``size_max`` ranks in any interleaving.

    Args:
      native: whether all have a library, or none; None for any mixture.
    """
    where = draw(st.lists(st.integers(0, 4), min_size=1, max_size=size_max))
    nics, vendors = [], []
    for number in sorted(set(where)):
        ranks = [rank for rank, one in enumerate(where) if one == number]
        near = st.lists(st.sampled_from(ranks), unique=True, max_size=len(ranks)).map(tuple)
        nics.append(tuple(draw(st.lists(st.builds(Nic, st.sampled_from([1e9, 2e9, 2.5e9, 7e9]), near), max_size=3))))
        choice = VENDORS if native is None else VENDORS[1:] if native else VENDORS[:1]
        vendors.append(draw(st.sampled_from(choice)))
    return clusters_of(where, nics, vendors)


def layout_of(clusters: tuple[ClusterShape, ...]) -> Layout:
    """Every cluster on a host of its own."""
    hosts = [0] * sum(shape.size for shape in clusters)
    for number, shape in enumerate(clusters):
        for rank in shape.ranks:
            hosts[rank] = number
    return Layout(tuple(hosts), clusters=clusters)
