# SPDX-License-Identifier: Apache-2.0
"""Run as a file, before the script: asks the kernel to kill this process when its parent dies, then becomes the script.

    python -I -S child.py PARENT COMMAND...     (PARENT: the launcher's process number; "any" where the starter does not know it)

Imports nothing of the package. The request survives exec, so the script is an ordinary ``python script.py``.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = sys.argv[1], sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        sys.exit(f"jhetcc launch: cannot tie a process to the launcher: prctl: {os.strerror(ctypes.get_errno())}")
    # Whoever died before the request above was made is not told of it.
    if parent != "any" and os.getppid() != int(parent):
        sys.exit("jhetcc launch: the launcher is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
