# SPDX-License-Identifier: Apache-2.0
"""Large data changed at every call, and the same bits however data is cut and however often a job is started."""

import os
import socket

import numpy as np
import pytest
import raw_cases
from processes import run_scripts

from jhetcc.schedule import can_reduce
from jhetcc.world.raw import dtype_name


def case_scattered_sums(comm, count, rounds):
    """C001: sums of float64 in large chunks, changed every time; the inputs are intact."""
    base = np.arange(comm.size * count, dtype=np.float64).reshape(comm.size, count)
    out, mine, kept = np.empty(count), np.empty_like(base), np.empty_like(base)
    for k in range(rounds):
        np.add(base, 1000.0 * comm.rank + k, out=mine)
        np.copyto(kept, mine)
        comm.reduce_scatter(mine, out=out)
        want = comm.size * (base[comm.rank] + k) + 1000.0 * sum(range(comm.size))
        assert np.array_equal(out, want), (k, np.flatnonzero(out != want)[:5])
        assert np.array_equal(mine, kept), k


@pytest.mark.parametrize("wire", ["shm", "tcp"])
def test_scattered_sums_of_megabytes(pools, wire):
    options = {"JHETCC_TRANSPORT": wire}
    pools(1, 1).run(case_scattered_sums, 1 << 19, 25, options=options)  # 4 MiB a rank
    pools(1, 1).run(case_scattered_sums, 1 << 15, 150, options=options)  # 256 KiB a rank
    pools(1, 1, 1, 1).run(case_scattered_sums, 1 << 19, 4, options=options)
    pools(1, 1, 1, 1).run(case_scattered_sums, 1 << 15, 40, options=options)


def case_small_buffers(comm, count):
    """Every connection of this process gets small buffers; with the smallest of all to receive, systems wait for timers."""
    small = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
                    small += one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 8192
        except OSError:
            continue
    assert small >= comm.size - 1
    data = np.arange(count) + comm.rank
    for _ in range(2):
        got = comm.all_reduce(data)
        assert np.array_equal(got, comm.size * np.arange(count) + sum(range(comm.size)))
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    assert comm.sendrecv(data, right, left)[0] == left


@pytest.mark.parametrize("ranks", [2, 4])
def test_small_socket_buffers(pools, ranks):
    """C057: both ends write before anyone reads, many times what the buffers hold."""
    pool = pools(*[1] * ranks)
    pool.run(case_small_buffers, 400_000 // ranks, options={"JHETCC_TRANSPORT": "tcp"})
    pool.renew()


def case_joined(comm, names, sizes):
    """C142: two arrays joined, or one by one: the same bits; they depend on the numbers alone."""
    for dtype in map(raw_cases.named, names):
        for left, right in sizes:
            a = raw_cases.random_contributions(comm, (left,), dtype, 1)[comm.rank]
            b = raw_cases.random_contributions(comm, (right,), dtype, 2)[comm.rank]
            for op in ("sum", "mean"):
                if not can_reduce(dtype_name(dtype), op):
                    continue
                apart = np.concatenate([comm.all_reduce(a, op), comm.all_reduce(b, op)])
                together = comm.all_reduce(np.concatenate([a, b]), op)
                assert together.tobytes() == apart.tobytes(), f"{op} of {dtype}[{left}] and [{right}]"


SIZES = ((1, 1), (3, 1000), (5000, 7), (40_000, 30_001), (1, 300_000))


def test_joined_arrays_have_the_bits_of_their_parts(pools):
    pools(1, 1, 1, 1).run(case_joined, ("float32", "bfloat16", "float64", "complex64"), SIZES)
    pools(1, 1, 1, 1).run(case_joined, ("float32",), SIZES, options={"JHETCC_TRANSPORT": "tcp"})


def case_fingerprint(order):
    from process_worker import hear, here, say

    import jhetcc

    if order.index(here()["process_id"]) > 0:
        hear()
    say(f"begins {order}")
    return raw_cases.fingerprint(jhetcc.init(**here()))


def test_every_order_of_arrival_has_the_same_bits(pools):
    """C144: jobs of three that come in every order, on one transport or the other."""
    found = set()
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1), (2, 0, 1), (1, 0, 2)):
        running = pools(1, 1, 1).start(
            case_fingerprint, order, world=False, options={"JHETCC_TRANSPORT": "tcp" if order[0] else "shm"}
        )
        for place, process in enumerate(order):
            running.expect(process, word=f"begins {order}")
            if place < 2:
                running.tell(order[place + 1])
        found |= {outcome.get() for outcome in running.finish()}
    pools(1, 1, 1).renew()
    assert len(found) == 1, found


LAUNCHES = """
import random
import jhetcc, numpy, raw_cases
from jhetcc.launch.port import HeldPort
init, draw = jhetcc.init, random.Random(int(os.environ["DRAW"]))

def member(number, address):
    comm = init(address, process_id=number, num_processes=3, devices=1)
    os.write(1, f"{raw_cases.fingerprint(comm)}\\n".encode())
    comm.close()

for _ in range(5):
    port, pids = HeldPort(), []
    for number in draw.sample(range(3), 3):
        pids.append(os.fork())
        if pids[-1] == 0:
            code = 3
            try:
                member(number, port.address)
                code = 0
            finally:
                os._exit(code)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]
    port.close()
"""


def test_every_launch_has_the_same_bits():
    """C144: twenty jobs of three, started in any order, on one transport or the other, from four interpreters."""
    found = []
    for k in range(4):
        extra = {"DRAW": str(k), "PYTHONHASHSEED": str(k), "JHETCC_TRANSPORT": ("shm", "tcp")[k % 2]}
        ((code, output, _),) = run_scripts(LAUNCHES, (1,), extra=extra)
        assert code == 0, output
        found += output.split()
    assert len(found) == 60 and len(set(found)) == 1, found


def case_beyond_2_gib(comm, count):
    """C017: who counts in 32 bits, or measures lengths with them, loses the end."""
    first = np.random.default_rng(17).integers(0, 256, 1_048_583, np.uint8)
    patterns = [first + np.uint8(rank) for rank in range(comm.size)]
    blocks = [slice(begin, min(begin + first.size, count)) for begin in range(0, count, first.size)]
    mine = np.empty(count, np.uint8)
    for block in blocks:
        mine[block] = patterns[comm.rank][: block.stop - block.start]
    got = comm.all_gather(mine)
    assert got.shape == (comm.size, count) and got.nbytes > 2.1 * 2**30
    assert got[-1, -1] == patterns[-1][blocks[-1].stop - blocks[-1].start - 1]
    for rank, pattern in enumerate(patterns):
        for block in blocks:
            assert np.array_equal(got[rank, block], pattern[: block.stop - block.start]), (rank, block)


def test_a_result_beyond_2_gib(pools):
    with open("/proc/meminfo", encoding="ascii") as file:
        (available,) = (int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    if available < 10 << 30:
        pytest.skip(f"it needs 10 GiB of memory, {available / 2**30:.1f} GiB are available")
    pools(1, 1).run(case_beyond_2_gib, 1_127_428_929)
