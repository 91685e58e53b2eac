# SPDX-License-Identifier: Apache-2.0
"""Every JAX-private name and every difference between JAX versions (0.10 to 0.12) in one place.

Nothing here communicates. Other rooms import from here instead of ``jax._src``; when a JAX release moves something, this
file is the one to change. Loaded once per process, at import of ``jhetcc.ops``; no locks, JAX's own tracing rules hold.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import ad_util, config, core, effects
from jax._src.interpreters import partial_eval
from jax.extend.core import primitives
from jax.interpreters import batching, mlir

JaxRuntimeError = jax.errors.JaxRuntimeError
Zero = ad_util.Zero


class CollectiveEffect(effects.Effect):
    """The one ordered effect of all communicators: operations keep their program order through every transformation."""

    def __str__(self) -> str:
        return "jhetcc"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return type(other) is CollectiveEffect

    def __hash__(self) -> int:
        return hash(CollectiveEffect)


EFFECT = CollectiveEffect()

for _kinds in (
    effects.lowerable_effects,
    effects.ordered_effects,
    effects.shardable_ordered_effects,  # lifts JAX's limit of ordered effects to one device
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _kinds.add_type(CollectiveEffect)


# Avals


def without_varying(aval: Any) -> Any:
    """The aval with no varying manual axes left: equal on all devices of the mesh."""
    kind = aval.manual_axis_type
    return aval.update(manual_axis_type=kind.update(varying=frozenset())) if kind.varying else aval


def manual_axes() -> tuple[Hashable, ...]:
    """Mesh axes of the enclosing ``shard_map`` whose variation JAX tracks; empty outside, or with ``check_vma=False``."""
    if not config._check_vma.value:
        return ()
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(axis for axis in mesh.axis_names if axis in mesh.manual_axes) if not mesh.empty else ()


def make_varying(x: Any) -> Any:
    """Marks a value as varying over all tracked manual axes: every device contributes its own."""
    missing = tuple(axis for axis in manual_axes() if axis not in core.typeof(x).manual_axis_type.varying)
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def array(shape: tuple[int, ...], dtype: Any) -> Any:
    """Aval of an array made from nothing that differs between the devices of the enclosing ``shard_map``."""
    axes = manual_axes()
    if not axes:
        return core.ShapedArray(shape, np.dtype(dtype))
    spec = jax.sharding.PartitionSpec(*(None,) * len(shape))
    sharding = jax.sharding.NamedSharding(jax.sharding.get_abstract_mesh(), spec)
    aval = core.ShapedArray(shape, np.dtype(dtype), sharding=sharding)
    return aval.update(manual_axis_type=aval.manual_axis_type.update(varying=frozenset(axes)))


def resized(aval: Any, shape: tuple[int, ...]) -> Any:
    """The aval with another shape: same dtype, same varying axes, no sharding over explicit mesh axes."""
    sharding = aval.sharding.update(spec=jax.sharding.PartitionSpec(*(None,) * len(shape)))
    return aval.update(shape=shape, sharding=sharding)


def bound_axes() -> dict[Hashable, int]:
    """Sizes of the axis names bound here by ``shard_map`` or ``vmap``."""
    return dict(core.get_axis_env().axis_sizes)


# Tracing


def trace_is_clean() -> bool:
    """Whether no transformation or ``jit`` is being traced on this thread."""
    return core.trace_state_clean()


def close(function: Callable[..., Any], operands: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Traces a function of flat operands to a jaxpr that owns nothing.

    Returns:
      The closed jaxpr, whose first inputs are the returned values: what the function closed over, among it tracers.
    """
    traced = jax.make_jaxpr(function)(*operands)
    if isinstance(traced, core.Jaxpr):  # 0.12: closed and open jaxprs are one class
        return partial_eval.convert_constvars_jaxpr(traced), list(traced.consts)
    open_jaxpr = partial_eval.convert_constvars_jaxpr(traced.jaxpr)
    return core.ClosedJaxpr(open_jaxpr, ()), list(traced.consts)


def run(jaxpr: Any) -> Callable[..., list[Any]]:
    """A closed jaxpr as a function of its flat inputs."""
    return core.jaxpr_as_fun(jaxpr)


def tangent_zero(primal: Any) -> Any:
    """The symbolic zero tangent of a value."""
    return ad_util.p2tz(primal)


def is_symbolic_zero(value: Any) -> bool:
    """Whether a tangent or cotangent is known to be zero without being computed."""
    return type(value) is ad_util.Zero


def keep_when_unused(primitive: Any) -> None:
    """Tells JAX to keep a primitive whose results nobody reads."""

    def rule(used: list[bool], *rest: Any) -> tuple[list[bool], Any]:
        equation = rest[-1]
        return [True] * len(equation.invars), equation

    partial_eval.dce_rules[primitive] = rule


def guard_batched_cond(refuse: Callable[[], Exception]) -> None:
    """Refuses ``vmap`` of a ``cond`` over collectives when the predicate is mapped: JAX would run both branches.

    JAX turns such a ``cond`` into a select before any rule of an operation inside it is asked, so the rule of ``cond``
    itself is wrapped; programs without collectives in a branch pass through unchanged.
    """
    table = batching.fancy_primitive_batchers
    original = table[primitives.cond_p]

    def rule(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, branches: Any, **params: Any) -> Any:
        mapped = dims[0] is not batching.not_mapped and "branches_platforms" not in params
        if mapped and any(EFFECT in branch.effects for branch in branches):
            raise refuse()
        return original(axis_data, args, dims, branches=branches, **params)

    table[primitives.cond_p] = rule


# Lowering


class Placement:
    """Where a program being lowered runs: the devices, and which of its mesh axes are manual."""

    def __init__(self, platforms: tuple[str, ...], count: int, devices: tuple[Any, ...] | None, mesh: Any, manual: bool):
        self.platforms = platforms
        self.count = count
        self.devices = devices
        self.mesh = mesh
        self.manual = manual


def placement(context: Any) -> Placement:
    """Reads the placement of the program from a lowering rule's context."""
    axis_context = context.module_context.axis_context
    platforms = tuple(context.platforms or context.module_context.platforms)
    if isinstance(axis_context, mlir.SPMDAxisContext):
        mesh = axis_context.mesh
        sizes = dict(mesh.shape)
        manual = all(size == 1 or axis in axis_context.manual_axes for axis, size in sizes.items())
        try:
            devices = tuple(mesh.devices.flat)
        except (AttributeError, ValueError):  # an abstract mesh has no devices yet
            devices = None
        return Placement(platforms, mesh.size, devices, mesh, manual)
    return Placement(platforms, axis_context.num_devices, axis_context.device_assignment, None, False)


def lower_ordered(context: Any, target: str, operands: Sequence[Any], attributes: dict[str, Any], alias: bool) -> list[Any]:
    """Emits an FFI call that takes and gives the order token before its operands and results."""
    rule = jax.ffi.ffi_lowering(target, has_side_effect=True, operand_output_aliases={1: 1} if alias else None)
    token = context.tokens_in.get(EFFECT)
    with_token = context.replace(
        avals_in=[core.abstract_token, *context.avals_in], avals_out=[core.abstract_token, *context.avals_out]
    )
    token, *results = rule(with_token, token, *operands, **attributes)
    context.set_tokens_out(mlir.TokenSet({EFFECT: token}))
    return results


def lower_body(context: Any, operands: Sequence[Any], jaxpr: Any, name: str) -> Sequence[Any]:
    """Lowers a jaxpr whose collective effect begins and ends here, with a token of its own."""
    ours = [effect for effect in jaxpr.effects if effect == EFFECT]
    outer = {effect: token for effect, token in context.tokens_in.items() if effect != EFFECT}
    inner = context.replace(tokens_in=mlir.TokenSet({**outer, **dict(mlir.TokenSet.create(ours).items())}), tokens_out=None)
    results = mlir.core_call_lowering(inner, *operands, name=name, call_jaxpr=jaxpr)
    if outer:
        context.set_tokens_out(inner.tokens_out.subset(tuple(outer)))
    return results


def is_intermediate(value: Any) -> bool:
    """Whether an MLIR value is made inside the function being lowered, so its memory may be reused."""
    return not isinstance(value, mlir.ir.BlockArgument)
