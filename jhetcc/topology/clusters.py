# SPDX-License-Identifier: Apache-2.0
"""How clusters form: ranks of one vendor, library and version belong together, unless labels part them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jhetcc.errors import BadArgumentError
from jhetcc.topology.values import NAME, Cluster

__all__ = ["LIBRARIES", "Identity", "form_clusters"]

# What joins devices of a vendor where nobody says otherwise.
LIBRARIES = {"nvidia": "nccl", "amd": "rccl", "intel": "oneccl"}
_SHOWN = 8


@dataclass(frozen=True)
class Identity:
    """What decides to which cluster a rank belongs.

    Attributes:
      vendor: of its device.
      library: the vendor's collective library; ``"none"`` where our own schedules do the native stage.
      version: of the library; empty where there is none or it is unknown.
      label: what ``JHETCC_CLUSTER`` says in its process; empty where unset.
    """

    vendor: str
    library: str = "none"
    version: str = ""
    label: str = ""

    @staticmethod
    def of_vendor(vendor: str, label: str = "") -> Identity:
        """The vendor's own library, of unknown version."""
        return Identity(vendor, LIBRARIES.get(vendor, "none"), "", label)

    @property
    def cluster(self) -> str:
        """Name of its cluster."""
        if self.label:
            return self.label
        parts = [self.vendor, "" if self.library == "none" else self.library, self.version]
        return re.sub("[^A-Za-z0-9_.:@+-]", "-", "-".join(filter(None, parts)))[:64]

    @property
    def kind(self) -> tuple[str, str, str]:
        return self.vendor, self.library, self.version


def form_clusters(identities: Sequence[Identity]) -> tuple[Cluster, ...]:
    """The clusters of ranks in any numbering.

    Args:
      identities: by rank.

    Returns:
      The clusters in the order of their lowest ranks.

    Raises:
      BadArgumentError: one name for ranks that no one library can join.

    Example:
      >>> a, b = Identity("cpu", label="a"), Identity("cpu", label="b")
      >>> [(cluster.name, cluster.ranks) for cluster in form_clusters([a, b, a])]
      [('a', (0, 2)), ('b', (1,))]
    """
    found: dict[str, list[int]] = {}
    for rank, identity in enumerate(identities):
        if not NAME.fullmatch(identity.cluster):
            raise BadArgumentError(
                f"rank {rank}: JHETCC_CLUSTER={identity.label!r} is no name of a cluster: write 1 to 64 letters, digits and _ . : @ + -",
                code="cluster_label",
                scope="process",
                ranks=(rank,),
            )
        found.setdefault(identity.cluster, []).append(rank)
    for name, ranks in found.items():
        if len({identities[rank].kind for rank in ranks}) > 1:
            raise _refuse(name, ranks, identities)
    return tuple(Cluster(name, *identities[ranks[0]].kind, tuple(ranks)) for name, ranks in found.items())


def _refuse(name: str, ranks: list[int], identities: Sequence[Identity]) -> BadArgumentError:
    kinds: dict[tuple[str, str, str], list[int]] = {}
    for rank in ranks:
        kinds.setdefault(identities[rank].kind, []).append(rank)
    told = "; ".join(f"{' '.join(filter(None, kind))} on {_listed(of)}" for kind, of in kinds.items())
    return BadArgumentError(
        f"cluster {name!r} would join ranks that no one library can join: {told}. One JHETCC_CLUSTER may label only ranks of one "
        "vendor, library and version: give each its own, or unset it",
        code="cluster_label",
        scope="process",
        ranks=tuple(ranks),
    )


def _listed(ranks: list[int]) -> str:
    more = ", ..." if len(ranks) > _SHOWN else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_SHOWN]))}{more}"
