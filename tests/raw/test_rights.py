# SPDX-License-Identifier: Apache-2.0
"""Shared memory where a container takes rights away: no reading of a peer's memory, no /dev/shm."""

import contextlib
import errno
import os
import platform
import subprocess

import numpy as np
import pytest
from process_worker import here
from processes import Pool, run_scripts

import jhetcc

READ_CALL = {"x86_64": 310, "aarch64": 270}.get(platform.machine())  # process_vm_readv

# A filter of system calls as container runtimes install it: reading another process's memory is not permitted.
FILTER = f"""
import ctypes, struct
def forbid():
    libc = ctypes.CDLL(None, use_errno=True)
    code = struct.pack("HBBI", 0x20, 0, 0, 0) + struct.pack("HBBI", 0x15, 0, 1, {READ_CALL})
    code += struct.pack("HBBI", 0x06, 0, 0, 0x00050001) + struct.pack("HBBI", 0x06, 0, 0, 0x7fff0000)
    held = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", 4, ctypes.addressof(held))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    if libc.prctl(22, 2, program, 0, 0):
        print("no filters here")
        raise SystemExit(0)
    libc.process_vm_readv(os.getpid(), None, 0, None, 0, 0)
    assert ctypes.get_errno() == 1
"""

SUMS = """
import jhetcc, numpy
for k in range({rounds}):
    data = numpy.arange(1 + k * 37 % 50_000, dtype=numpy.float32) + me
    got = comm.all_reduce(data)
    assert (got == 2 * numpy.arange(len(data)) + 1).all(), k
    if k % 50 == 0:
        large = numpy.full(300_000, k + me, numpy.float64)
        assert (comm.sendrecv(large, 1 - me, 1 - me) == k + 1 - me).all(), k
"""

BOTH_SIDES = [(True, True), (True, False), (False, True)]


@pytest.mark.skipif(READ_CALL is None, reason="the number of process_vm_readv is not known here")
@pytest.mark.parametrize("sides", BOTH_SIDES, ids=str)
def test_reading_the_peers_memory_is_forbidden(sides):
    """C111, C112: a side that may not fetches through shared segments, values are right, and nobody complains."""
    source = f"{FILTER}\nif {sides}[me]: forbid()\nimport jhetcc\ncomm = jhetcc.init(devices=1)\n" + SUMS.format(
        rounds=1000
    )
    source += "print(comm.status()['ranks'][0]['paths'][1 - me])\ncomm.barrier()\ncomm.close()\n"
    for forbidden, (code, output, _) in zip(sides, run_scripts(source), strict=True):
        assert code == 0, output
        if "no filters here" in output:
            pytest.skip("this machine lets nobody install filters of system calls")
        way = "through the ring: " if forbidden else "may read its memory"
        assert output.count("\n") == 1 and output.startswith("shm ") and way in output, output
        assert not forbidden or "not permitted" in output, output


# How rank 0 loses the right to read rank 1's memory, once the two have met.
LOSSES = {
    "a filter": "if me == 0: forbid()",
    "the peer is no longer readable": """
libc = ctypes.CDLL(None)
if me == 0:  # a user that may read every process gives that up (CAP_SYS_PTRACE)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    sets[0] &= ~(1 << 19)
    assert libc.capset(header, sets) == 0
else:
    assert libc.prctl(4, 0, 0, 0, 0) == 0  # PR_SET_DUMPABLE
""",
}


@pytest.mark.skipif(READ_CALL is None, reason="the number of process_vm_readv is not known here")
@pytest.mark.parametrize("loss", LOSSES)
def test_the_right_is_lost_later(loss):
    """C111, C112: a right that is gone after ranks met costs speed and one line of the log; values stay right on both."""
    source = f"{FILTER}\nimport jhetcc, numpy\ncomm = jhetcc.init(devices=1)\n" + SUMS.format(rounds=3)
    source += f"comm.barrier()\n{LOSSES[loss]}\ncomm.barrier()\n" + SUMS.format(rounds=300)
    source += "assert (comm.all_reduce(numpy.full(1_000_000, me)) == 1).all()\n"
    source += "print('PATH', comm.status()['ranks'][0]['paths'][1 - me])\ncomm.barrier()\ncomm.close()\n"
    results = run_scripts(source, extra={"JHETCC_OPERATION_TIMEOUT": "20s", "JHETCC_WARN_AFTER": "10s"})
    for code, output, _ in results:
        assert code == 0, output
        if "no filters here" in output:
            pytest.skip("this machine lets nobody install filters of system calls")
    outputs = [output for _, output, _ in results]
    paths = [output.split("PATH ")[1].strip() for output in outputs]
    assert "through the ring: process_vm_readv: Operation not permitted" in paths[0], outputs[0]
    assert outputs[0].count("the right to read its memory was lost") == 1, outputs[0]
    assert "may read its memory" in paths[1] and outputs[1].count("\n") == 1, outputs[1]


def case_no_names(comm):
    """What is shared has no name in any directory."""
    comm.all_reduce(np.ones(500_000))
    with open("/proc/self/maps", encoding="ascii") as maps:
        named = [line for line in maps if "/dev/shm" in line]
    files = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    return named + [path for path in files if path.startswith("/dev/shm")]


@pytest.mark.parametrize("cma", ["auto", "off"])
def test_the_size_of_dev_shm_does_not_matter(pools, cma):
    """C113, C114: segments are anonymous memory, so a small or full /dev/shm holds nobody up and nothing can be left there."""
    for found in pools(1, 1).run(case_no_names, options={"JHETCC_CMA": cma, "JHETCC_TRANSPORT": "shm"}):
        assert found == []


SMALL = ("unshare", "--mount", "sh", "-ec", 'mount -t tmpfs -o size=2m small /dev/shm; exec "$@"', "sh")
NO_MOUNTS = os.geteuid() != 0 or subprocess.run([*SMALL, "true"], capture_output=True, check=False).returncode != 0


def case_small(cma):
    """Sums and messages of many times what /dev/shm holds, while that is full."""
    with open("/dev/shm/full", "wb", buffering=0) as file, pytest.raises(OSError) as full:
        while True:
            file.write(bytes(1 << 16))
    assert full.value.errno == errno.ENOSPC and os.path.getsize("/dev/shm/full") == 2 << 20
    os.environ["JHETCC_CMA"] = cma
    comm = jhetcc.init(**here() | {"timeout": 30.0})
    data = np.arange(4_000_000, dtype=np.float32)
    assert np.array_equal(comm.all_reduce(data * (comm.rank + 1)), data * 3)
    assert np.array_equal(comm.sendrecv(data + comm.rank, 1 - comm.rank, 1 - comm.rank), data + 1 - comm.rank)
    path = comm.status()["ranks"][0]["paths"][1 - comm.rank]
    comm.barrier()
    comm.close()
    return path, os.listdir("/dev/shm")


@pytest.mark.skipif(NO_MOUNTS, reason="nobody may mount a small file system here")
@pytest.mark.parametrize("cma", ["auto", "off"])
def test_a_dev_shm_of_2_mb_that_is_full(cma):
    """C113: each process has such a one; ranks meet over shared memory all the same, and values are right."""
    with contextlib.closing(Pool((1, 1), prefixes=[SMALL] * 2)) as pool:
        for outcome in pool.start(case_small, cma, world=False).finish():
            path, left = outcome.get()
            assert path.startswith("shm ") and left == ["full"], (path, left)
