# SPDX-License-Identifier: Apache-2.0
"""Which processes are one island: those that share a JAX runtime (``jax.distributed``). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jhetcc.errors import BadArgumentError

if TYPE_CHECKING:
    from jhetcc.world.members import Member

__all__ = ["islands_of"]


def islands_of(members: Sequence[Member]) -> list[int]:
    """The number of each process's island, islands in the order of their lowest processes.

    Raises:
      BadArgumentError: the processes of a runtime are not numbered one after the other, in its order: its ranks would not be in the
        order of its devices.
    """
    found: list[int] = []
    keys: dict[str, int] = {}
    for member in members:
        key = member.island or f"process {member.process_id}"
        number = keys.setdefault(key, len(keys))
        before = members[member.process_id - 1] if member.process_id else None
        is_first = number not in found
        follows = before is not None and before.island == member.island and member.island_place > before.island_place
        if not is_first and not follows:
            raise BadArgumentError(
                f"process {member.process_id} ({member.place}) is process {member.island_place} of the jax.distributed job at "
                f"{member.island.split(' on ')[0]} and does not follow another process of it: number the processes of such a job one "
                "after the other, in the order of its own process_id",
                code="island_order",
                scope="process",
            )
        found.append(number)
    return found
