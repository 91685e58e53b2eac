# SPDX-License-Identifier: Apache-2.0
"""The targets for speed, and whether rows reach them. All are ratios within one run; times are medians of single calls (p50)."""

from dataclasses import dataclass

LIBRARIES = ("mpich", "openmpi", "impi", "oneccl")
_TCP = ("oneccl-tcp", "gloo", "gloo-cubic")
_IN_JAX = ("mpi4jax", "gloo", "gloo-cubic")
_4K, _1M, _64M = 4 << 10, 1 << 20, 64 << 20
SIZES = (_4K, _1M, _64M)


@dataclass(frozen=True)
class Target:
    """`others` time over ours must reach `ratio`; ours and each other in the given mode."""

    bytes: int
    ranks: int
    ours: str
    mode: str
    others: tuple[str, ...]
    ratio: float
    other_mode: str = ""

    def best_other(self, times):
        mode = self.other_mode or self.mode
        found = [(times[key], name) for name in self.others if (key := (name, mode, self.bytes, self.ranks)) in times]
        return min(found, default=None)


TARGETS = (
    Target(_4K, 2, "jhetcc", "raw", LIBRARIES, 1 / 1.5),
    Target(_1M, 2, "jhetcc", "raw", LIBRARIES, 1.0),
    Target(_64M, 2, "jhetcc", "raw", LIBRARIES, 0.9),
    Target(_64M, 2, "jhetcc", "raw", ("floor",), 0.0),  # no target: our share of what the machine can do
    Target(_4K, 2, "jhetcc-jax", "jit", ("mpi4jax",), 3.0),
    Target(_4K, 2, "jhetcc-jax", "jit", ("gloo", "gloo-cubic"), 3.0),
    Target(_4K, 2, "jhetcc-jax", "jit", ("add",), 1 / 2),
    Target(_1M, 2, "jhetcc-jax", "jit", _IN_JAX, 3.0),
    Target(_64M, 2, "jhetcc-jax", "jit", _IN_JAX, 2.0),
    Target(_64M, 2, "jhetcc-jax", "jit donated", _IN_JAX, 3.0),
    Target(_64M, 2, "jhetcc-tcp", "raw", _TCP[:1], 1.3),
    Target(_64M, 2, "jhetcc-tcp", "raw", _TCP[1:], 1.3, "jit"),
    Target(_4K, 4, "jhetcc", "raw", LIBRARIES, 1 / 2),
)


def report(rows):
    """Lines of the table of targets; a target whose rows are not there says so."""
    times, busy = {}, set()
    for row in rows:
        if (row["operation"], row["dtype"], row["reduction"]) == ("all_reduce", "float32", "sum"):
            key = (row["peer"], row["mode"], row["bytes"], row["ranks"])
            times[key] = row["p50_us"]
            if not row["quiet"]:
                busy.add(key)
    lines = [
        f"{'ranks':>5} {'size':>9}  {'ours':<24} {'us':>10}  {'best other':<24} {'us':>10} {'times':>6} {'wanted':>7}"
    ]
    for target in TARGETS:
        ours = times.get((target.ours, target.mode, target.bytes, target.ranks))
        other = target.best_other(times)
        start = f"{target.ranks:>5} {target.bytes:>9}  {target.ours + ', ' + target.mode:<24}"
        if ours is None or other is None:
            missing = f"{target.ours}, {target.mode}" if ours is None else " or ".join(target.others)
            lines.append(f"{start} not measured: no row of {missing}")
            continue
        ratio = other[0] / ours
        keys = {(target.ours, target.mode), (other[1], target.other_mode or target.mode)}
        mark = " busy" if any((*key, target.bytes, target.ranks) in busy for key in keys) else ""
        verdict = f"{ratio:.0%} of the floor" if target.ratio == 0 else "met" if ratio >= target.ratio else "NOT MET"
        wanted = f"{target.ratio:>7.2f}" if target.ratio else f"{'':>7}"
        lines.append(f"{start} {ours:>10.1f}  {other[1]:<24} {other[0]:>10.1f} {ratio:>6.2f} {wanted} {verdict}{mark}")
    return lines
