# SPDX-License-Identifier: Apache-2.0
"""A rank's process of bench/faults.py on this machine, and what it says besides answers."""

import contextlib
import os
import subprocess
import sys
import tempfile

from jhetcc.launch import child

_OUTPUT_SHOWN = 3000


def tied(words):
    """The command, ended by the kernel if the thread that starts it dies."""
    return [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *words]


class Process(subprocess.Popen):
    """Told and heard by its pipes, or by a socket that is both."""

    def __init__(self, words, environment, both=None):
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - until close()
        super().__init__(
            words,
            env=environment,
            stdin=subprocess.PIPE if both is None else both,
            stdout=subprocess.PIPE if both is None else both,
            stderr=self._log,
            start_new_session=True,
            bufsize=0,
        )

    def output(self):
        """The last of what it said."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-_OUTPUT_SHOWN:]

    def end_input(self):
        """It is told nothing more, and ends."""
        if self.stdin is not None:
            with contextlib.suppress(OSError):
                self.stdin.close()

    def close(self):
        """After its end."""
        if self.stdout is not None:
            self.stdout.close()
        self._log.close()
