# SPDX-License-Identifier: Apache-2.0
"""What a process says of itself to the others of its job: its host, ranks, island and cluster."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass

from jhetcc import config
from jhetcc.topology import VENDOR_OF_PLATFORM, Identity
from jhetcc.world.detect import is_loopback, split_address
from jhetcc.world.nics import Nic

__all__ = ["Local", "Member", "describe", "host_identity"]


@dataclass(frozen=True)
class Member:
    """One process of the job, as all others see it."""

    process_id: int
    incarnation: int
    host: str
    host_key: str
    pid: int
    ranks: int
    device_ids: tuple[int, ...]
    island: str
    island_place: int
    platform: str
    vendor: str
    library: str
    version: str
    cluster: str
    unix_address: str
    nics: tuple[Nic, ...]
    interface: str  # the setting that chose them; empty: none
    agreed: str

    @staticmethod
    def read(text: str) -> Member:
        fields = json.loads(text)
        nics = tuple(Nic(**one) for one in fields["nics"])
        return Member(**fields | {"device_ids": tuple(fields["device_ids"]), "nics": nics})

    @property
    def place(self) -> str:
        return f"{self.host}:{self.pid}"

    @property
    def identity(self) -> Identity:
        """What decides to which cluster its ranks belong."""
        return Identity(self.vendor, self.library, self.version, self.cluster)


def host_identity() -> str:
    """Equal in two processes exactly if they share a running kernel and a network namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"


@dataclass(frozen=True)
class Local:
    """What a process brings: its ranks, and the JAX runtime they live in.

    Attributes:
      ranks: how many.
      platform: of their devices.
      device_ids: of their devices in that runtime; empty without JAX.
      runtime: where the processes of one runtime meet; None where this one is alone in its own.
      place: number of this process in that runtime.
    """

    ranks: int
    platform: str
    device_ids: tuple[int, ...] = ()
    runtime: str | None = None
    place: int = 0


def describe(
    own: Local,
    options: config.Options,
    *,
    process_id: int = 0,
    incarnation: int = 0,
    unix_address: str = "",
    nics: tuple[Nic, ...] = (),
) -> Member:
    """This process as a member. The version of its cluster's library follows when all are here."""
    host_key = host_identity()
    island = own.runtime or ""
    if own.runtime and is_loopback(split_address(own.runtime)[0]):
        island += f" on {host_key}"  # an address of loopback is the host's own
    return Member(
        process_id=process_id,
        incarnation=incarnation,
        host=socket.gethostname(),
        host_key=host_key,
        pid=os.getpid(),
        ranks=own.ranks,
        device_ids=own.device_ids,
        island=island,
        island_place=own.place,
        platform=own.platform,
        vendor=VENDOR_OF_PLATFORM.get(own.platform, own.platform),
        library=options.library,
        version="",
        cluster=options.cluster or "",
        unix_address=unix_address,
        nics=nics,
        interface=options.interface or "",
        agreed=options.agreed(),
    )
