# SPDX-License-Identifier: Apache-2.0
"""Is the machine quiet? Processor time used by anybody but us, as a share of all processors; Linux only."""

import os
import time

_TICKS = os.sysconf("SC_CLK_TCK")
_PROCESSORS = os.cpu_count() or 1
_SAMPLE_S = 0.25


def _used_by_all():
    """Seconds of user, nice, system and stolen time; interrupts are left out, they serve our own packets too."""
    with open("/proc/stat") as file:
        fields = file.readline().split()[1:]
    user, nice, system, stolen = (int(fields[k]) for k in (0, 1, 2, 7))
    return (user + nice + system + stolen) / _TICKS


def _used_by(pids):
    total = 0.0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # it ended: what it used counts as foreign, once
        total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


class Watch:
    """Foreign use since the watch was made, our own processes given by number."""

    def __init__(self, pids):
        self._pids = [os.getpid(), *pids]
        self._begin, self._all, self._ours = time.monotonic(), _used_by_all(), _used_by(self._pids)

    def foreign(self):
        """Share of all processors, 0 to 1."""
        elapsed = max(time.monotonic() - self._begin, 1 / _TICKS)
        used = (_used_by_all() - self._all) - (_used_by(self._pids) - self._ours)
        return min(max(used / elapsed / _PROCESSORS, 0.0), 1.0)


def wait_until_quiet(pids, threshold, limit_s):
    """Returns once foreign use was below the threshold for a quarter of a second, or the limit is over."""
    deadline = time.monotonic() + limit_s
    while True:
        watch = Watch(pids)
        time.sleep(_SAMPLE_S)
        if watch.foreign() < threshold or time.monotonic() > deadline:
            return
