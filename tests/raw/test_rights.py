# SPDX-License-Identifier: Apache-2.0
"""Shared memory where a container takes rights away: no reading of a peer's memory, no /dev/shm."""

import os
import platform

import numpy as np
import pytest
from processes import run_scripts

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
        way = "through the ring: " if forbidden else "reads its memory"
        assert output.count("\n") == 1 and output.startswith("shm ") and way in output, output
        assert not forbidden or "not permitted" in output, output


@pytest.mark.skipif(READ_CALL is None, reason="the number of process_vm_readv is not known here")
def test_the_right_is_lost_later():
    """C111: a right that is gone after ranks met ends in an error on both, with the system's words where it happened."""
    source = f"{FILTER}\nimport jhetcc, numpy\ncomm = jhetcc.init(devices=1)\ncomm.barrier()\nif me == 0: forbid()\n"
    source += """
try:
    for k in range(10):
        assert (comm.all_reduce(numpy.full(1_000_000, k + me)) == 2 * k + 1).all()
except jhetcc.Error as error:
    print(type(error).__name__, error)
else:
    print("went on")
"""
    results = run_scripts(source, extra={"JHETCC_OPERATION_TIMEOUT": "20s", "JHETCC_WARN_AFTER": "10s"})
    for code, output, seconds in results:
        assert code == 0 and seconds < 30, output
        if "no filters here" in output:
            pytest.skip("this machine lets nobody install filters of system calls")
    assert "Operation not permitted" in results[0][1] and "process_vm_readv" in results[0][1], results[0][1]
    assert "psum(i64[1000000])" in results[1][1] and "went on" not in results[1][1], results[1][1]


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
