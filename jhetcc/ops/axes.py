# SPDX-License-Identifier: Apache-2.0
"""What an axis name means, and where a program that uses it may run.

``resolve`` answers at trace time; ``check_placement`` answers in the lowering rule, when the devices are known. Called on
the thread that traces.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, NamedTuple

from jhetcc import compat
from jhetcc.errors import BadArgumentError, UnavailableError
from jhetcc.world import state

__all__ = ["ISLANDS", "WORLD", "Axes", "AxisName", "check_placement", "index_of", "resolve"]

AxisName = Hashable | tuple[Hashable, ...]
WORLD = "world"
ISLANDS = "islands"


class Axes(NamedTuple):
    """An axis name, taken apart.

    Attributes:
      local: axes of a local mesh or of ``vmap``; XLA's own collective does that part.
      name: name of the communicator.
      size: number of its ranks.
      mesh: those local axes that belong to the mesh of the enclosing ``shard_map``, in its order.
      columns: where that mesh has several devices: how many. The communicator is then ``"world"``, and the k-th device of
        each island meets the k-th of the others.
    """

    local: tuple[Hashable, ...]
    name: str
    size: int
    mesh: tuple[Hashable, ...] = ()
    columns: int | None = None

    @property
    def folded(self) -> tuple[Hashable, ...]:
        """Axes of ``vmap``: reduced on each device."""
        return tuple(name for name in self.local if name not in self.mesh)

    @property
    def contributors(self) -> int:
        """How many values are reduced into one."""
        bound = compat.bound_axes()
        return self.size // (self.columns or 1) * math.prod(bound[name] for name in self.local)

    @property
    def wire_divides(self) -> bool:
        """Whether the wire can divide a mean: there are other islands, and all local devices contribute."""
        bound = compat.bound_axes()
        return self.columns is None or math.prod(bound[name] for name in self.mesh) == self.columns < self.size


def resolve(axis_name: AxisName, function: str, *, hierarchical: bool = False) -> Axes:
    """Finds the communicator behind an axis name.

    Args:
      axis_name: a communicator's name, or a tuple of local mesh axes and ``"islands"``.
      function: who asks, for messages.
      hierarchical: whether the function takes tuples with local mesh axes.

    Raises:
      BadArgumentError: unbound or mixed names.
      NotInitializedError: before ``jhetcc.init()``.
    """
    names = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    bound = compat.bound_axes()
    local = tuple(name for name in names if name in bound)
    others = [name for name in names if name not in bound]
    if not others:
        raise BadArgumentError(
            f"{function}: {axis_name!r} names axes of the local program only; use jax.lax.{function} for those, or add "
            f"'{ISLANDS}' to reach the other islands: ({', '.join(map(repr, local))}, '{ISLANDS}')",
            code="axis_name",
        )
    if len(others) > 1:
        raise BadArgumentError(
            f"{function}: {axis_name!r} holds more than one name that is not a local mesh axis ({others}); "
            f"one communicator at a time. Axes bound here: {sorted(map(str, bound))}",
            code="axis_name",
        )
    name = others[0]
    if not isinstance(name, str):
        raise BadArgumentError(f"{function}: a communicator's name is a string, not {name!r}", code="axis_name")
    communicator = state.communicator(name)
    if local and name != ISLANDS:
        raise BadArgumentError(
            f"{function}: {axis_name!r} mixes local mesh axes with '{name}', whose ranks are the local devices already; "
            f"use '{name}' alone, or ({', '.join(map(repr, local))}, '{ISLANDS}')",
            code="axis_name",
        )
    if local and not hierarchical:
        raise BadArgumentError(
            f"{function}: a tuple of axes is taken by reductions to all, axis_index and axis_size only, not by "
            f"{function}; use jax.lax.{function} over {local} and jhetcc.{function} over '{name}' one after the other",
            code="axis_name",
        )
    mesh = compat.mesh_axes()
    over = tuple(axis for axis in mesh if axis in local)
    if over:
        world = state.communicator(WORLD)
        _check_equal_islands(world.island_sizes, axis_name, function)
        if math.prod(mesh.values()) > 1:
            return Axes(local, WORLD, world.size, over, world.island_sizes[0])
    if not communicator.local_ranks:
        raise BadArgumentError(
            f"{function}: this process is not a member of communicator '{name}' ({communicator.size} ranks); only its "
            "members may call operations on it"
            + (". An island of several processes is reached over a mesh of comm.island_devices" if over else ""),
            code="not_a_member",
        )
    return Axes(local, name, communicator.size, over)


def _check_equal_islands(sizes: tuple[int, ...], axis_name: AxisName, function: str) -> None:
    if len(set(sizes)) > 1:
        raise BadArgumentError(
            f"{function}: {axis_name!r} needs islands of equal size, whose k-th devices meet, and these have "
            f"{', '.join(map(str, sizes))} ranks. Use '{WORLD}', which holds all local devices already, or start every process "
            "with equally many devices",
            code="unequal_islands",
        )


def index_of(value: Any, size: int, what: str, function: str, name: str) -> int:
    """Checks a rank index (a root, a peer) of a communicator."""
    try:
        index = value.__index__()
    except (AttributeError, TypeError) as error:
        raise BadArgumentError(
            f"{function}: {what} must be a Python integer known at trace time, not {value!r}", code="rank_index"
        ) from error
    if not 0 <= index < size:
        raise BadArgumentError(
            f"{function}: {what} {index} is not a rank of communicator '{name}': its ranks are 0 to {size - 1}, "
            "numbered within the communicator",
            code="rank_index",
        )
    return index


def check_placement(place: compat.Placement, name: str, size: int, operation: str, columns: int | None = None) -> None:
    """Refuses programs whose devices are not the communicator's local ranks.

    Raises:
      BadArgumentError: wrong devices, or a program traced for a communicator of another size.
      UnavailableError: a platform this version cannot serve.
    """
    if any(platform != "cpu" for platform in place.platforms):
        raise UnavailableError(
            f"{operation} on '{name}': platform {'/'.join(place.platforms)} is not served by this version, only cpu; run "
            "the program on CPU devices",
            code="platform",
        )
    communicator = state.communicator(name)
    if communicator.size != size:
        raise BadArgumentError(
            f"{operation} on '{name}': traced for {size} ranks, but the communicator now has {communicator.size}: retrace "
            "(call jax.clear_caches() and build the function anew)",
            code="retrace",
        )
    if name == ISLANDS:
        if place.count != 1:
            raise BadArgumentError(
                f"{operation} on '{ISLANDS}': the program runs on {place.count} devices; in this version an island's "
                "contribution lives on one device. Inside jax.shard_map over all local ranks, name the local axes too, as in "
                f"psum(x, ('d', '{ISLANDS}')), or use '{WORLD}'",
                code="sharded_operand",
            )
        return
    members = len(communicator.local_ranks)
    devices = communicator.devices
    if place.mesh is None:
        if place.count == 1 and members == 1:
            return  # which device it is shows at run time: JAX lowers such a program once for all devices
        raise BadArgumentError(
            f"{operation} on '{name}': this process owns {members} of its ranks and the program, under plain jit, runs on "
            f"{place.count} device(s), so it is not said which rank contributes what. Either run it inside jax.shard_map "
            f"over a mesh of all {members} local ranks, or start one process per device",
            code="needs_shard_map",
        )
    if not place.manual:
        raise BadArgumentError(
            f"{operation} on '{name}': the enclosing jax.shard_map leaves some mesh axes automatic; make all of them manual "
            "(drop axis_names, or name every axis)",
            code="partly_manual",
        )
    # An island of several processes runs one program on the devices of all of them.
    if place.count == len(communicator.island_devices):
        members, devices = place.count, communicator.island_devices
    if place.count != members or (place.devices is not None and set(place.devices) != set(devices)):
        raise BadArgumentError(
            f"{operation} on '{name}': the mesh of jax.shard_map must hold exactly this island's {members} member "
            f"device(s) {list(map(str, devices))}, but holds {place.count}"
            + (f": {list(map(str, place.devices))}" if place.devices is not None else ""),
            code="mesh",
        )
    if columns is not None:
        _check_columns(place, communicator, columns, operation)


def _check_columns(place: compat.Placement, communicator: Any, columns: int, operation: str) -> None:
    if set(communicator.island_sizes) != {columns}:
        raise BadArgumentError(
            f"{operation} over local axes and '{ISLANDS}': traced for islands of {columns} ranks, but they now have "
            f"{', '.join(map(str, communicator.island_sizes))}: retrace (call jax.clear_caches() and build the function anew)",
            code="retrace",
        )
    if place.devices is not None and place.devices != communicator.island_devices:
        raise BadArgumentError(
            f"{operation} over local axes and '{ISLANDS}': the mesh of jax.shard_map must hold the island's devices in the order of "
            f"their ranks {list(map(str, communicator.island_devices))}, for the k-th of each island meet, but holds "
            f"{list(map(str, place.devices))}. Build it as numpy.array(comm.island_devices).reshape(...)",
            code="mesh",
        )
