# SPDX-License-Identifier: Apache-2.0
"""A network namespace whose TCP connections use cubic congestion control by default, for peers that choose none themselves."""

import os
import shutil
import subprocess
import sys

# 0x8914 is SIOCSIFFLAGS; 0x49: up, loopback, running.
_SCRIPT = """
import fcntl, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 0x49))
open("/proc/sys/net/ipv4/tcp_congestion_control", "w").write("cubic")
print("ready", flush=True)
sys.stdin.read()
"""


class CubicNamespace:
    """Lives as long as a process of its own, which waits for close()."""

    def __init__(self):
        if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("nsenter"):
            raise OSError("a network namespace needs root, unshare and nsenter (util-linux)")
        self._holder = subprocess.Popen(
            ["unshare", "--net", sys.executable, "-c", _SCRIPT],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        said = self._holder.stdout.readline().strip().decode()
        if said != "ready":
            rest = self._holder.stdout.read().decode().strip().splitlines()
            self.close()
            raise OSError(f"no network namespace with cubic: {(rest or [said])[-1]}")

    @property
    def prefix(self):
        """What to put in front of a command that shall run inside."""
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net"]

    def close(self):
        self._holder.stdin.close()
        self._holder.wait()
        self._holder.stdout.close()
