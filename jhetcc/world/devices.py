# SPDX-License-Identifier: Apache-2.0
"""The devices of this process's ranks, as JAX has them; nothing here imports JAX before it is asked for."""

from __future__ import annotations

from typing import Any

from jhetcc.errors import BadArgumentError, UnavailableError
from jhetcc.world.members import Local

__all__ = ["devices_by_id", "local_devices", "local_ranks_of", "ordinal"]

_PLATFORMS_TO_COME = {"cuda", "gpu", "rocm"}


def devices_by_id() -> dict[int, Any]:
    import jax

    return {device.id: device for device in jax.devices("cpu")}


def ordinal(device: Any) -> int:
    return device.id if device.platform == "cpu" else device.local_hardware_id


def local_devices(devices: Any) -> tuple[tuple[Any, ...], int, str]:
    """The devices of this process's ranks, their number, their platform. An int asks for ranks without JAX."""
    if isinstance(devices, int):
        if devices < 1:
            raise BadArgumentError(f"init: devices={devices}; a process has at least one rank", code="bad_argument")
        return (), devices, "host"
    try:
        import jax
    except ImportError as why:
        if isinstance(why, ModuleNotFoundError) and why.name == "jax":
            return (), 1, "host"
        raise UnavailableError(
            f"init: JAX is installed, but cannot be imported: {why}", code="unavailable", scope="process"
        ) from why
    if devices is not None:
        found = tuple(devices)
    elif jax.default_backend() in _PLATFORMS_TO_COME:
        found = tuple(jax.local_devices())
    else:
        found = tuple(jax.local_devices(backend="cpu"))
    if not found:
        raise BadArgumentError("init: devices is empty; a process has at least one rank", code="bad_argument")
    platforms = sorted({device.platform for device in found})
    if platforms != ["cpu"]:
        raise UnavailableError(
            f"init: this process's devices are on platform {', '.join(platforms)}, and this version has no device room for it: only "
            "cpu devices can take part. Set JAX_PLATFORMS=cpu, or pass devices=jax.local_devices(backend='cpu')",
            code="platform_unavailable",
            scope="process",
        )
    return found, len(found), platforms[0]


def local_ranks_of(devices: tuple[Any, ...], count: int, platform: str) -> Local:
    if not devices:
        return Local(count, platform)
    import jax

    from jhetcc import compat

    ids = tuple(device.id for device in devices)
    return Local(count, platform, ids, compat.runtime_of_processes(), jax.process_index())
