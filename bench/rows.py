# SPDX-License-Identifier: Apache-2.0
"""Results: a row a case, peer and mode, as a table, as JSON lines and as a picture."""

import json
import statistics

import cases

# Of the JSON rows, in this order; only ever added to.
COLUMNS = (
    "peer", "mode", "operation", "bytes", "count", "dtype", "reduction", "ranks", "time_us", "algbw_gb_per_s", "busbw_gb_per_s",
    "wrong", "bound", "p50_us", "p99_us", "calls", "rounds", "quiet", "foreign", "note",
)  # fmt: skip
_HEADS = (
    "size",
    "count",
    "type",
    "redop",
    "operation",
    "peer",
    "mode",
    "time",
    "algbw",
    "busbw",
    "#wrong",
    "p50",
    "p99",
    "#calls",
)
_UNITS = ("(B)", "(elements)", "", "", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "")
_WIDTHS = (12, 12, 9, 6, 15, 11, 12, 11, 8, 8, 7, 11, 11, 7)


def make_row(peer, mode, case, rounds):
    """Combines the rounds of one peer and case.

    Args:
      rounds: list of (answers of all ranks, share of foreign processor use, whether that was below the threshold).
    """
    time_us = statistics.median(max(answer["mean_us"] for answer in answers) for answers, _, _ in rounds)
    each = sorted(one for answers, _, _ in rounds for answer in answers for one in answer["each_us"])
    wrong = [answer["wrong"] for answers, _, _ in rounds for answer in answers if answer["wrong"] is not None]
    algbw, busbw = case.bandwidths(time_us / 1e6)
    values = (
        peer, mode, case.operation, case.bytes, case.count, case.dtype, case.reduction, case.ranks, round(time_us, 3),
        _short(algbw), _short(busbw), sum(wrong), cases.bound(case), _quantile(each, 0.5), _quantile(each, 0.99), len(each),
        len(rounds), all(good for _, _, good in rounds), round(max(foreign for _, foreign, _ in rounds), 3),
        rounds[0][0][0]["note"],
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def _short(number):
    return float(f"{number:.5g}")


def _quantile(ordered, share):
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def heading(bound_text):
    """The first lines of the table."""
    lines = [
        "# time: median over rounds of the slowest rank's mean; p50, p99: single calls of all ranks and rounds",
        f"# #wrong: elements outside the bound; {bound_text}",
        "# a row that ends in 'busy' was measured while others used the processors; do not trust it",
    ]
    return "\n".join([*lines, _line(_HEADS), _line(_UNITS)])


def bound_text(case_list):
    """What the bound is for the types and reductions measured."""
    bounds = sorted({(case.dtype, case.reduction or "none", cases.bound(case)) for case in case_list})
    return "relative bounds: " + ", ".join(f"{dtype} {reduction} {bound:g}" for dtype, reduction, bound in bounds)


def _line(values):
    return " ".join(f"{value:>{width}}" for value, width in zip(values, _WIDTHS, strict=True)).rstrip()


def table_line(row):
    values = (
        row["bytes"], row["count"], row["dtype"], row["reduction"] or "none", row["operation"], row["peer"],
        row["mode"].replace(" ", "-"), f"{row['time_us']:.2f}", f"{row['algbw_gb_per_s']:.2f}", f"{row['busbw_gb_per_s']:.2f}",
        row["wrong"], f"{row['p50_us']:.2f}", f"{row['p99_us']:.2f}", row["calls"],
    )  # fmt: skip
    return _line(values) + ("" if row["quiet"] else " busy")


def json_line(row):
    return json.dumps({"kind": "row", **row})


def plot(rows, path):
    """Writes a PNG: bus bandwidth against size, a panel for each operation and number of ranks."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = sorted({(row["operation"], row["dtype"], row["ranks"]) for row in rows if row["bytes"]})
    across = min(len(panels), 3) or 1
    down = -(-len(panels) // across) or 1
    figure, axes = plt.subplots(down, across, figsize=(6.5 * across, 4.5 * down), squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        chosen = [row for row in rows if (row["operation"], row["dtype"], row["ranks"]) == panel]
        for peer, mode in dict.fromkeys((row["peer"], row["mode"]) for row in chosen):
            points = sorted(
                (row["bytes"], row["busbw_gb_per_s"]) for row in chosen if (row["peer"], row["mode"]) == (peer, mode)
            )
            style = "-o" if peer.startswith("jhetcc") else "--." if peer in ("floor", "sockets", "add") else ":s"
            axis.plot(*zip(*points, strict=True), style, label=f"{peer}, {mode}", markersize=3)
        axis.set(
            xscale="log",
            yscale="log",
            title="{}, {}, {} ranks".format(*panel),
            xlabel="bytes",
            ylabel="bus bandwidth, GB/s",
        )
        axis.grid(alpha=0.3)
        axis.legend(fontsize=6)
    for axis in list(axes.flat)[len(panels) :]:
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
