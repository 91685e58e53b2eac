# SPDX-License-Identifier: Apache-2.0
"""Two hosts for ``jhetcc demo``, whose NICs can be taken away: network namespaces (root), else addresses of loopback. One thread.

Both kinds end with the program: namespaces live as long as processes of their own, which die with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Protocol

from jhetcc.errors import UnavailableError
from jhetcc.launch import child
from jhetcc.launch.port import HeldPort

__all__ = ["Hosts", "Loopback", "Namespaces"]

_HOLD = "import sys; print('ready', flush=True); sys.stdin.read()"
_MTU = 9000
_TOOLS = ("unshare", "nsenter", "ip", "tc")


class Hosts(Protocol):
    """Attributes:
    about: what they are, for people.
    links: how many.
    """

    about: str
    links: int

    def interface(self) -> str:
        """For JHETCC_INTERFACE."""
        ...

    def coordinator(self) -> str: ...
    def prefix(self, host: int) -> list[str]:
        """In front of a command that shall run there."""
        ...

    def take(self, link: int, how: str) -> str:
        """Takes a NIC away; in words."""
        ...

    def give(self, link: int) -> None: ...
    def close(self) -> None: ...


class Namespaces:
    """Links of a known rate between two network namespaces.

    Args:
      links: how many.
      mbit: Mbit/s of each, each way.

    Raises:
      UnavailableError: not root, no such tools, or the kernel refuses.
    """

    def __init__(self, links: int, mbit: int):
        self.links, self.about = links, f"two network namespaces, {links} links of {mbit} Mbit/s"
        self._mbit, self._holders, self._swallowed = mbit, [], set[int]()
        missing = [name for name in _TOOLS if not shutil.which(name)]
        if os.geteuid() != 0 or missing:
            needed = "root" + "".join(f" and {name}" for name in missing)
            raise UnavailableError(f"network namespaces need {needed}", code="no_namespace", scope="process")
        try:
            for _ in range(2):
                self._holders.append(self._hold())
            for host in (0, 1):
                self._do(host, "ip link set lo up")
            for link in range(links):
                self._lay(link)
        except BaseException:
            self.close()
            raise

    def _hold(self) -> subprocess.Popen[str]:
        tied = [sys.executable, "-I", "-S", child.__file__, str(os.getpid())]
        unshare = shutil.which("unshare") or "unshare"
        holder = subprocess.Popen(
            [*tied, unshare, "--net", sys.executable, "-I", "-S", "-c", _HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        assert holder.stdout
        if (said := holder.stdout.readline().strip()) != "ready":
            holder.kill()
            holder.wait()
            raise UnavailableError(f"no network namespace: {said}", code="no_namespace", scope="process")
        return holder

    def _lay(self, link: int) -> None:
        name = f"nic{link}"
        self._do(0, f"ip link add {name} type veth peer name {name} netns {self._holders[1].pid}")
        for host in (0, 1):
            self._do(
                host, f"ip link set {name} mtu {_MTU} up && ip address add {self._address(host, link)}/24 dev {name}"
            )
            self._do(host, f"tc qdisc add dev {name} root {self._bucket()}")

    def _bucket(self, limit: int | None = None) -> str:
        burst = max(_MTU + 1000, self._mbit * 125 // 10)
        return f"tbf rate {self._mbit}mbit burst {burst}b limit {limit or 512 << 10}"

    @staticmethod
    def _address(host: int, link: int) -> str:
        return f"10.87.{link}.{host + 1}"

    def _do(self, host: int, command: str) -> None:
        words = [*self.prefix(host), "sh", "-c", command]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            why = f"{command}: {done.stderr.strip()}"
            raise UnavailableError(why, code="no_namespace", scope="process")

    def interface(self) -> str:
        return ",".join(self._address(host, link) for host in (0, 1) for link in range(self.links))

    def coordinator(self) -> str:
        return f"{self._address(0, 0)}:7000"

    def prefix(self, host: int) -> list[str]:
        return ["nsenter", f"--net=/proc/{self._holders[host].pid}/ns/net"]

    def take(self, link: int, how: str) -> str:
        if how == "down":
            self._do(link % 2, f"ip link set nic{link} down")
            return f"nic{link} down"
        self._swallowed.add(link)
        for host in (0, 1):
            self._do(host, f"tc qdisc change dev nic{link} root {self._bucket(limit=1)}")
        return f"nic{link} swallows all, silently"

    def give(self, link: int) -> None:
        if link in self._swallowed:
            self._swallowed.discard(link)
            for host in (0, 1):
                self._do(host, f"tc qdisc change dev nic{link} root {self._bucket()}")
        else:
            self._do(link % 2, f"ip link set nic{link} up")

    def close(self) -> None:
        for holder in self._holders:
            assert holder.stdin and holder.stdout
            holder.stdin.close()
            holder.wait()
            holder.stdout.close()
        self._holders = []


class Loopback:
    """Addresses of loopback as NICs: to take one away is to end all its connections, once.

    Args:
      links: how many.
      tell: passes an address to both processes, which end its connections.
    """

    def __init__(self, links: int, tell: Callable[[str], None]):
        self.links, self.about, self._tell = links, f"loopback, {links} addresses as NICs", tell
        self._port: HeldPort | None = None

    @staticmethod
    def _address(link: int) -> str:
        return f"127.0.0.{link + 2}"

    def interface(self) -> str:
        return ",".join(self._address(link) for link in range(self.links))

    def coordinator(self) -> str:
        self.close()
        self._port = HeldPort()
        return self._port.address

    def prefix(self, host: int) -> list[str]:
        return []

    def take(self, link: int, how: str) -> str:
        self._tell(self._address(link))
        return f"{self._address(link)} closed"

    def give(self, link: int) -> None:
        """Nothing is to be done: its connections may be made anew all the time."""

    def close(self) -> None:
        if self._port is not None:
            self._port.close()
        self._port = None
