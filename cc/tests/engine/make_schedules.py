# SPDX-License-Identifier: Apache-2.0
"""Writes the planner's schedules that the engine's tests run, into one file. Usage: make_schedules.py OUTPUT

Little endian: count u32, then for each operation label, algorithm, size u32 and, for each member, text and schedule. Texts and
schedules are a length u32 and the bytes; an empty text: this member takes no part.
"""

import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))
from jhetcc.planner import ClusterShape, Layout, Vendor, candidates, plan
from jhetcc.schedule import Operation

FULL = (1, 2, 3, 4, 5, 8)
AFTER_LOSS = (60, 61, 62, 63)  # what is left of 64
CORE = ("psum(u64[9])", "psum_scatter(u64[{n},2])", "all_gather(b8[5])", "barrier()")
MORE = (
    "psum(u64[0])", "psum(u64[1])", "pmax(u64[17])", "pmin(u64[17])", "pprod(u64[5])", "pmean(f64[33])",
    "reduce(u64[7], op=max, root={last})", "all_gather(u64[0])", "gather(u64[5], root=0)", "all_to_all(u64[{n},7])",
    "scatter(u64[{n},3], root={last})", "ppermute(u64[5], perm={ring})", "broadcast(u64[5], root={last})",
)  # fmt: skip
# Longer than 16 KiB, so that they are offered and fetched; and in chunks, more than the window holds.
LONG = ("psum(u64[5001])", "all_to_all(u64[{n},2100])", "broadcast(u64[5001], root=0)", "all_gather(b8[40001])")
CHUNKED = (
    ("psum(u64[500])", 64),
    ("psum(u64[30000])", 20000),
    ("broadcast(u64[300], root=0)", 80),
    ("all_gather(u64[70])", 24),
)
# Clusters whose library does the native stages: the ranks of each, by size of the communicator.
CLUSTERS = {
    2: (((0, 1),),),
    3: (((0, 1), (2,)),),
    4: (((0, 1), (2, 3)), ((0,), (1, 2, 3))),
    5: (((0, 2, 4), (1, 3)),),
    8: (((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 3, 6), (1, 4, 7), (2, 5))),
}
CLUSTERED = (
    "psum(u64[9])", "pmax(u64[1])", "pmean(f64[33])", "psum(u64[0])", "reduce(u64[7], op=max, root={last})",
    "psum_scatter(u64[{n},2])", "all_gather(b8[5])", "broadcast(u64[5], root=1)", "all_to_all(u64[{n},3])", "barrier()",
)  # fmt: skip
CLUSTERED_CHUNKED = (
    ("psum(u64[500])", 64),
    ("psum(u64[5001])", 8000),
    ("all_gather(u64[70])", 24),
    ("psum_scatter(u64[{n},90])", 80),
)


def text_of(pattern: str, n: int) -> str:
    ring = ";".join(f"{r}>{(r + 1) % n}" for r in range(n))
    return pattern.format(n=n, last=n - 1, ring=ring)


def packed(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def entry(label: str, algorithm: str, members: list[tuple[str, bytes]]) -> bytes:
    head = packed(label.encode()) + packed(algorithm.encode()) + struct.pack("<I", len(members))
    return head + b"".join(packed(text.encode()) + packed(blob) for text, blob in members)


def collective(text: str, n: int, chunk: int | None = None, layout: Layout | None = None) -> list[bytes]:
    operation = Operation.parse(text)
    layout = layout or Layout.local(n)
    label = text if chunk is None else f"{text} in {chunk}"
    entries = []
    for algorithm, _ in candidates(operation, layout):
        if layout.clusters and not algorithm.startswith("hierarchical"):
            continue
        schedules = plan(operation, layout, algorithm=algorithm, chunk_bytes=chunk).expand_all()
        shapes = " on " + "+".join(str(shape.size) for shape in layout.clusters) if layout.clusters else ""
        entries.append(entry(label + shapes, algorithm, [(text, s.to_bytes()) for s in schedules]))
    return entries


def clustered(n: int, ranks: tuple[tuple[int, ...], ...], *, uniform: bool) -> list[bytes]:
    vendor = Vendor("pretend", uniform=uniform)
    layout = Layout((0,) * n, clusters=tuple(ClusterShape(of, vendor=vendor) for of in ranks))
    entries = [one for pattern in CLUSTERED for one in collective(text_of(pattern, n), n, None, layout)]
    for pattern, chunk in CLUSTERED_CHUNKED:
        entries += collective(text_of(pattern, n), n, chunk, layout)
    return entries


def point_to_point(label: str, texts: list[str]) -> bytes:
    members = []
    for rank, text in enumerate(texts):
        blob = plan(Operation.parse(text), Layout.local(len(texts))).expand(rank).to_bytes() if text else b""
        members.append((text, blob))
    return entry(label, "direct", members)


def main() -> None:
    entries = []
    for n in (*range(1, 9), *AFTER_LOSS, 64):
        patterns = CORE + (MORE if n in (*FULL, 64) else ()) + (LONG if n in FULL else ())
        for pattern in patterns if n not in AFTER_LOSS else CORE[:1]:
            entries += collective(text_of(pattern, n), n)[: None if n not in AFTER_LOSS else 1]
        for pattern, chunk in CHUNKED if n in FULL else ():
            entries += collective(text_of(pattern, n), n, chunk)
    for n, vectors in CLUSTERS.items():
        for ranks in vectors:
            entries += clustered(n, ranks, uniform=len(vectors) == 1)
    for n in (2, 3, 4, 5, 8):
        for name, items in (("empty", 0), ("short", 6), ("long", 4000)):
            texts = [""] * n
            texts[0], texts[n - 1] = f"send(u64[{items}], to={n - 1}, tag=3)", f"recv(u64[{items}], from=0, tag=3)"
            entries.append(point_to_point(f"{name} message", texts))
        texts = [f"sendrecv(u64[3], to={(r + 1) % n}, from={(r - 1) % n}, tag=0)" for r in range(n)]
        entries.append(point_to_point("shift", texts))
    pathlib.Path(sys.argv[1]).write_bytes(struct.pack("<I", len(entries)) + b"".join(entries))


main()
