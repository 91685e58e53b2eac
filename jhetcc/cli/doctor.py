# SPDX-License-Identifier: Apache-2.0
"""``jhetcc doctor``: what this machine offers, lacks, and how to get it; exit code 1 where something needed is missing."""

from __future__ import annotations

import argparse
import fcntl
import importlib.metadata
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_JAX_FROM, _JAX_BELOW = (0, 10), (0, 13)
_FFI_NEEDED = (0, 1)
_SIOCGIFADDR = 0x8915

# One process offers a byte, a sibling reads it: what the shm transport does between ranks.
_OFFER = (
    "import ctypes, os, sys; libc = ctypes.CDLL(None); libc.prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0);"
    "b = ctypes.create_string_buffer(b'jhetcc'); print(os.getpid(), ctypes.addressof(b), flush=True); sys.stdin.read()"
)
_FETCH = (
    "import ctypes, os, sys; libc = ctypes.CDLL(None, use_errno=True);"
    "class_ = type('iovec', (ctypes.Structure,), {'_fields_': [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]});"
    "b = ctypes.create_string_buffer(6); pid, address = map(int, sys.argv[1:]);"
    "n = libc.process_vm_readv(pid, ctypes.byref(class_(ctypes.addressof(b), 6)), 1, ctypes.byref(class_(address, 6)), 1, 0);"
    "print('ok' if n == 6 and b.raw == b'jhetcc' else os.strerror(ctypes.get_errno()))"
)


@dataclass(frozen=True)
class Finding:
    """One line: state is ok, slow (works, but slower than it could) or missing (will not work)."""

    name: str
    state: str
    text: str
    fix: str = ""


def check_python() -> Finding:
    return Finding("python", "ok", ".".join(map(str, sys.version_info[:3])))


def check_jax() -> Finding:
    versions = {}
    for package in ("jax", "jaxlib"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return Finding("jax", "missing", f"{package} is not installed", "pip install 'jax>=0.10,<0.13'")
    text = ", ".join(f"{package} {version}" for package, version in versions.items())
    numbers = tuple(int(part) for part in versions["jax"].split(".")[:2])
    if not _JAX_FROM <= numbers < _JAX_BELOW:
        return Finding("jax", "missing", f"{text}: not in the supported range", "pip install 'jax>=0.10,<0.13'")
    return Finding("jax", "ok", text)


def check_ffi() -> Finding:
    try:
        import jax.ffi
    except ImportError as why:
        return Finding("xla ffi", "missing", f"jax cannot be imported: {why}", "install a jax that imports")
    text = (Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h").read_text()
    numbers = [re.search(rf"#define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    if not all(numbers):
        return Finding(
            "xla ffi", "missing", "the runtime's headers name no API version", "pip install 'jax>=0.10,<0.13'"
        )
    found = tuple(int(number.group(1)) for number in numbers if number)
    shown = ".".join(map(str, found))
    if found[0] != _FFI_NEEDED[0] or found < _FFI_NEEDED:
        return Finding("xla ffi", "missing", f"API {shown}, this build speaks 0.1", "pip install 'jax>=0.10,<0.13'")
    return Finding("xla ffi", "ok", f"API {shown} takes handlers of 0.1")


def check_core() -> Finding:
    try:
        from jhetcc import _core
    except ImportError as why:
        return Finding("core", "missing", str(why), "pip install . (needs a C++20 compiler)")
    return Finding("core", "ok", str(_core.__file__))


def check_simd() -> Finding:
    match = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    flags = set(match.group(1).split()) if match else set()
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "f16c"} <= flags:
        return Finding("simd", "ok", "avx512")
    if {"avx2", "f16c"} <= flags:
        return Finding("simd", "ok", "avx2")
    return Finding("simd", "slow", "neither avx2 nor avx512", "reductions use what the compiler makes of plain C++")


def check_cma() -> Finding:
    plain = [sys.executable, "-I", "-S", "-c"]
    with subprocess.Popen([*plain, _OFFER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as offer:
        assert offer.stdout is not None
        words = offer.stdout.readline().split()
        answer = subprocess.run(
            [*plain, _FETCH, *words], capture_output=True, text=True, timeout=10, check=False
        ).stdout.strip()
        offer.communicate(timeout=10)
    if answer == "ok":
        return Finding("cma", "ok", "a process may read its sibling's memory: shm copies once")
    fix = "shm uses shared segments and copies twice; in a container, --cap-add=SYS_PTRACE or a seccomp profile with process_vm_readv"
    return Finding("cma", "slow", f"process_vm_readv: {answer}", fix)


def check_memfd() -> Finding:
    try:
        os.close(os.memfd_create("jhetcc-doctor"))
    except OSError as why:
        return Finding(
            "memfd",
            "missing",
            f"memfd_create: {why.strerror}",
            "shm needs it: use a kernel or container profile that allows it",
        )
    return Finding("memfd", "ok", "shared memory needs no files")


def check_cpus() -> Finding:
    count = len(os.sched_getaffinity(0))
    if count < 2:
        return Finding("cpus", "slow", "1 CPU for this process", "several processes take turns on it; give more CPUs")
    return Finding("cpus", "ok", f"{count} CPUs for this process")


def check_interfaces() -> Finding:
    shown = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # no IPv4 address
            shown.append(f"{name} {socket.inet_ntoa(answer[20:24])}")
    if not shown:
        return Finding("interfaces", "missing", "no interface has an IPv4 address", "bring one up: ip link set lo up")
    return Finding("interfaces", "ok", ", ".join(shown))


def check_congestion() -> Finding:
    path = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    available = path.read_text().split() if path.exists() else []
    if "cubic" not in available:
        text = f"cubic is not available ({', '.join(available) or 'none listed'})"
        return Finding("tcp", "slow", text, "set JHETCC_TCP_CONGESTION to one that is, or modprobe tcp_cubic")
    return Finding("tcp", "ok", "congestion control cubic is available")


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_jax,
    check_ffi,
    check_core,
    check_simd,
    check_cpus,
    check_memfd,
    check_cma,
    check_interfaces,
    check_congestion,
)


def run(arguments: list[str]) -> int:
    argparse.ArgumentParser(prog="jhetcc doctor", description="Checks what this machine offers and lacks.").parse_args(
        arguments
    )
    findings = [check() for check in CHECKS]
    for each in findings:
        print(f"{each.state:8} {each.name:11} {each.text}" + (f"; {each.fix}" if each.fix else ""))
    missing = [each.name for each in findings if each.state == "missing"]
    print(f"not ready: {', '.join(missing)} missing" if missing else "ready")
    return 1 if missing else 0
