# SPDX-License-Identifier: Apache-2.0
"""The physical floor of this machine: what one copy and one addition of N bytes cost, for the benchmarks' ratios.

    python bench/floor.py [--sizes 262144,67108864] [--repeat 20] [--json]

A number is GB/s of target bytes, the median and the best of `repeat` timed batches, one thread, warm pages.
"""

import argparse
import ctypes
import json
import statistics
import time

import numpy as np

from jhetcc import _core

_F32, _SUM = 12, 1
_BATCH_BYTES = 64 << 20
_libc = ctypes.CDLL(None)
_libc.memcpy.restype = ctypes.c_void_p
_libc.memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def aligned(size):
    """A uint8 array of `size` bytes on a page boundary, every page touched."""
    room = np.ones(size + 4096, np.uint8)
    start = -room.ctypes.data % 4096
    return room[start : start + size]


def cases(size):
    """name -> a call that writes `size` target bytes once."""
    target, left, right = aligned(size), aligned(size), aligned(size)

    def memcpy():
        _libc.memcpy(target.ctypes.data, left.ctypes.data, size)

    def past_caches():
        _core.copy_past_caches(target, left)

    return {
        "memcpy": memcpy,
        "past caches": past_caches,
        "add": lambda: _core.reduce(target, [left, right], _F32, _SUM),
    }


def gigabytes_per_s(call, size, calls):
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return size * calls / (time.perf_counter() - begin) / 1e9


def measure(size, repeat):
    """Rounds over all cases, so that a busy moment of the machine hits all alike.

    Returns:
        A list of rows, one a case: dicts with name, bytes, simd, median and best in GB/s of target bytes.
    """
    calls = max(1, _BATCH_BYTES // size)
    run = cases(size)
    for call in run.values():
        call()
    speeds = {name: [] for name in run}
    for _ in range(repeat):
        for name, call in run.items():
            speeds[name].append(gigabytes_per_s(call, size, calls))
    return [
        {
            "name": name,
            "bytes": size,
            "simd": _core.simd_name(),
            "median_gb_per_s": round(statistics.median(values), 2),
            "best_gb_per_s": round(max(values), 2),
        }
        for name, values in speeds.items()
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sizes", default="65536,262144,1048576,16777216,67108864", help="target bytes, multiples of 64"
    )
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="one JSON line a row")
    arguments = parser.parse_args()
    sizes = [int(text) for text in arguments.sizes.split(",")]
    if any(size <= 0 or size % 64 for size in sizes) or arguments.repeat < 1:
        parser.error("sizes are positive multiples of 64, repeat at least 1")
    if not arguments.json:
        print(f"{'bytes':>12} {'what':<16} {'median GB/s':>12} {'best GB/s':>10}   ({_core.simd_name()})")
    for size in sizes:
        for row in measure(size, arguments.repeat):
            if arguments.json:
                print(json.dumps(row))
            else:
                print(f"{size:>12} {row['name']:<16} {row['median_gb_per_s']:>12} {row['best_gb_per_s']:>10}")


if __name__ == "__main__":
    main()
