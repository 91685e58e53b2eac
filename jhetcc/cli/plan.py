# SPDX-License-Identifier: Apache-2.0
"""``jhetcc plan``: plans an operation without running it: candidates, the choice, borders, bytes; where asked every step."""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
from typing import Any

from jhetcc.cli.topo import machines
from jhetcc.errors import BadArgumentError

_SAY = "say --ranks N, --clusters N,N or --topology FILE, or set JHETCC_TOPOLOGY"
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="jhetcc plan",
        description="Plans an operation: jhetcc plan psum 64MiB --clusters 4,4. Or written as in docs/seams.md: "
        "jhetcc plan 'psum(f32[1048576])' --ranks 4. Without --ranks, --clusters and --topology it plans for the file that "
        "JHETCC_TOPOLOGY names, else for this machine.",
    )
    parser.add_argument("operation", help="name, or whole text, for example psum(f32[8,4])")
    parser.add_argument("size", nargs="?", help="bytes of each rank's input, with a name; for example 64MiB")
    parser.add_argument("--dtype", default="f32", help="with a name (default f32)")
    parser.add_argument("--ranks", type=int, metavar="N", help="size of the communicator, all alike and on one host")
    parser.add_argument("--clusters", metavar="N,N", help="sizes of clusters, each on a host of its own")
    parser.add_argument(
        "--topology", metavar="FILE", help="plan for the ranks of a topology file, as in docs/topology.md"
    )
    parser.add_argument(
        "--vendors",
        metavar="NAME,",
        help="vendor library of each cluster (mpi, nccl, oneccl, rccl); empty: our own schedule",
    )
    parser.add_argument("--profile", metavar="FILE", help="JSON of measured costs instead of the built-in ones")
    parser.add_argument("--algorithm", metavar="NAME", help="force this method instead of the fastest")
    parser.add_argument("--print", action="store_true", dest="steps", help="print every step of every rank")
    values = parser.parse_args(arguments)
    from jhetcc.planner.report import explain

    try:
        layout, source = _layout(values)
        report = explain(_operation(values, layout.size), layout, algorithm=values.algorithm)
    except (ValueError, OSError) as why:
        raise BadArgumentError(str(why), code="bad_argument") from why
    if source:
        print(f"{source}: {layout.size} rank{'s' * (layout.size > 1)} on {_hosts(layout)}")
    print(report.text())
    if values.steps:
        for rank in range(layout.size):
            print(report.plan.expand(rank))
    if source and layout.size == 1:
        print(f"jhetcc plan: {source} has one rank, which sends nothing; for more {_SAY}", file=sys.stderr)
    return 0


def _hosts(layout: Any) -> str:
    many = len(set(layout.hosts))
    return f"{many} host{'s' * (many > 1)}"


def _layout(values: argparse.Namespace) -> tuple[Any, str]:
    """What to plan for; and where that was found, if no argument says it."""
    from jhetcc import topology
    from jhetcc.planner import Layout, Profile, Vendor, layout_of, split_sizes

    profile = _profile(values.profile) if values.profile else Profile()
    if [values.ranks, values.clusters, values.topology].count(None) < 2:
        raise ValueError("say one of --ranks N, --clusters N,N and --topology FILE")
    if values.vendors and values.clusters is None:
        raise ValueError("--vendors goes with --clusters")
    if values.topology is not None:
        return layout_of(topology.load(values.topology), profile), ""
    if values.ranks is not None:
        if values.ranks < 1:
            raise ValueError(f"--ranks {values.ranks}: write a number of ranks, 1 or more")
        return Layout((0,) * values.ranks, profile), ""
    if values.clusters is None:
        found, source = machines()
        if not found.ranks:
            raise ValueError(f"{source} has no ranks to plan for (`jhetcc topo` says why): {_SAY}")
        return layout_of(found, profile), source
    if not re.fullmatch(r"[1-9][0-9]*(,[1-9][0-9]*)*", values.clusters):
        raise ValueError(f"--clusters {values.clusters}: write sizes, 1 or more, for example 4,4")
    sizes = [int(word) for word in values.clusters.split(",")]
    names = values.vendors.split(",") if values.vendors else []
    if len(names) > len(sizes):
        raise ValueError(f"--vendors {values.vendors}: names {len(names)} libraries for {len(sizes)} clusters")
    known = {*topology.LIBRARIES.values(), "mpi", *(name for name, _ in profile.libraries)}
    for name in names:
        if name and name not in known:
            raise ValueError(f"--vendors {values.vendors}: no library {name!r}; there are {', '.join(sorted(known))}")
    clusters = split_sizes(sizes, [Vendor(name) if name else None for name in names])
    hosts = tuple(number for number, size in enumerate(sizes) for _ in range(size))
    return Layout(hosts, profile, clusters), ""


def _profile(path: str):
    from jhetcc.planner import Profile

    try:
        return Profile.from_json(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as why:
        told = why.strerror if isinstance(why, OSError) else why
        raise ValueError(f"--profile {path}: {told}") from None


def _operation(values: argparse.Namespace, ranks: int):
    from jhetcc.schedule import Operation, item_size

    if values.size is None:
        return Operation.parse(values.operation)
    match = re.fullmatch(r"([0-9]+)\s*([a-z]*)", values.size.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"size {values.size}: write bytes, for example 64MiB")
    count = int(match[1]) * _UNITS[match[2]] // item_size(values.dtype)
    name = values.operation
    by_rank = name in ("psum_scatter", "all_to_all", "scatter")
    fields: dict[str, Any] = {}
    if name in ("reduce", "gather", "scatter", "broadcast"):
        fields["root"] = 0
    if name == "reduce":
        fields["op"] = "sum"
    if name == "ppermute":
        fields["perm"] = tuple((rank, (rank + 1) % ranks) for rank in range(ranks))
    if name in ("send", "recv", "sendrecv", "barrier"):
        raise ValueError(f"{name}: write the whole text, as in docs/seams.md")
    return Operation(name, values.dtype, (ranks, count // ranks) if by_rank else (count,), **fields)
