# SPDX-License-Identifier: Apache-2.0
"""Every JAX-private name and every difference between JAX versions (0.10 to 0.12) in one place.

Nothing here communicates. Other rooms import from here instead of ``jax._src``; when a JAX release moves something, this
file is the one to change. Loaded once per process, at import of ``jhetcc.ops``; no locks, JAX's own tracing rules hold.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jhetcc.errors import UnavailableError

JAX_FROM, JAX_BELOW = (0, 10), (0, 13)


def version_fit(version: str) -> str | None:
    """Why a version of JAX is not served, in one sentence, or None where it is."""
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if JAX_FROM <= numbers < JAX_BELOW:
        return None
    low, high = (".".join(map(str, bound)) for bound in (JAX_FROM, JAX_BELOW))
    return (
        f"jax {version} is installed, this version of jhetcc needs jax>={low},<{high}: pip install 'jax>={low},<{high}'"
    )


if why := version_fit(jax.__version__):  # before the private names below, which another version may not have
    raise UnavailableError(why, code="jax_version", scope="process")

from jax._src import ad_util, config, core, distributed, effects  # noqa: E402
from jax._src.interpreters import mlir as mlir_internal  # noqa: E402
from jax._src.interpreters import partial_eval  # noqa: E402
from jax._src.lax import parallel  # noqa: E402
from jax.extend.core import Primitive, primitives  # noqa: E402
from jax.interpreters import batching, mlir  # noqa: E402

# What a failed program raises: the second where a result is awaited before JAX made an array of it.
FAILURES = (jax.errors.JaxRuntimeError, ValueError)
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
    return tuple(mesh_axes()) if config._check_vma.value else ()


def mesh_axes() -> dict[Hashable, int]:
    """Sizes of the mesh axes that the enclosing ``shard_map`` makes manual, in the order of the mesh; empty outside."""
    mesh = jax.sharding.get_abstract_mesh()
    return {} if mesh.empty else {axis: size for axis, size in mesh.shape.items() if axis in mesh.manual_axes}


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


def gather_invariant(x: Any, axes: tuple[Hashable, ...]) -> Any:
    """``all_gather`` along dimension 0 whose cotangent is equal on all devices and counts once: each takes its own part."""
    # jax.lax.all_gather(..., to="invarying") is the same, but in JAX 0.12 only where varying axes are checked.
    gather: Any = getattr(parallel, "all_gather_invariant", None) or getattr(parallel, "_all_gather_invariant", None)
    return gather(x, axes, axis=0, tiled=True)


def bound_axes() -> dict[Hashable, int]:
    """Sizes of the axis names bound here by ``shard_map`` or ``vmap``."""
    return dict(core.get_axis_env().axis_sizes)


def runtime_of_processes() -> str | None:
    """Where the processes that share this one's JAX runtime meet (``jax.distributed``); None where it is alone in its own."""
    if jax.process_count() == 1:
        return None
    return distributed.global_state.coordinator_address or "unknown"


# Tracing


def trace_is_clean() -> bool:
    """Whether no transformation or ``jit`` is being traced on this thread."""
    return core.trace_state_clean()


def is_symbolic_zero(value: Any) -> bool:
    """Whether a tangent or cotangent is known to be zero without being computed."""
    return type(value) is ad_util.Zero


def guard_batched_cond(refuse: Callable[[], Exception]) -> None:
    """Refuses ``vmap`` of a ``cond`` over collectives when the predicate is mapped: JAX would run both branches.

    JAX turns such a ``cond`` into a select before any rule of an operation inside it is asked, so the rule of ``cond``
    itself is wrapped; programs without collectives in a branch pass through unchanged.
    """
    table = batching.fancy_primitive_batchers
    original = table[primitives.cond_p]

    def rule(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, branches: Any, **params: Any) -> Any:
        mapped = dims[0] is not None and "branches_platforms" not in params
        if mapped and any(EFFECT in branch.effects for branch in branches):
            raise refuse()
        return original(axis_data, args, dims, branches=branches, **params)

    table[primitives.cond_p] = rule


def parameters_of(jaxpr: Any, prefix: str) -> Iterator[dict[str, Any]]:
    """Parameters of every equation, nested ones too, whose primitive's name begins with a prefix."""
    for equation in jaxpr.eqns:
        if equation.primitive.name.startswith(prefix):
            yield equation.params
        for inner in core.jaxprs_in_params(equation.params):
            yield from parameters_of(inner, prefix)


# Lowering


class Placement:
    """Where a program being lowered runs: the devices, and which of its mesh axes are manual."""

    def __init__(
        self, platforms: tuple[str, ...], count: int, devices: tuple[Any, ...] | None, mesh: Any, manual: bool
    ):
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


def lower_ordered(
    context: Any, target: str, operands: Sequence[Any], attributes: dict[str, Any], alias: bool
) -> list[Any]:
    """Emits an FFI call that takes and gives the order token before its operands and results."""
    rule = jax.ffi.ffi_lowering(target, has_side_effect=True, operand_output_aliases={1: 1} if alias else None)
    token = context.tokens_in.get(EFFECT)
    with_token = context.replace(
        avals_in=[core.abstract_token, *context.avals_in], avals_out=[core.abstract_token, *context.avals_out]
    )
    token, *results = rule(with_token, token, *operands, **attributes)
    context.set_tokens_out(context.tokens_in.update_tokens(mlir.TokenSet({EFFECT: token})))
    return results


def _lower_body(context: Any, *operands: Any, jaxpr: Any) -> Sequence[Any]:
    """Lowers a jaxpr in place, its collective effect beginning and ending here with a token of its own."""
    outer = dict(context.tokens_in.items())
    tokens = mlir.TokenSet({**outer, **dict(mlir.TokenSet.create([EFFECT]).items())})
    results, tokens = mlir.jaxpr_subcomp(
        context.module_context,
        getattr(jaxpr, "jaxpr", jaxpr),
        context.name_stack,
        tokens,
        (),
        *operands,
        dim_var_values=context.dim_var_values,
        const_lowering=context.const_lowering,
        outer_traceback=None,
    )
    if outer:
        context.set_tokens_out(context.tokens_in.update_tokens(tokens.subset(tuple(outer))))
    return results


def lower_pure(context: Any, target: str, attributes: dict[str, Any]) -> Sequence[Any]:
    """Emits an FFI call without operands or effects."""
    return jax.ffi.ffi_lowering(target)(context, **attributes)


def install_program_order() -> None:
    """Lowers every program with collectives as one body whose order token is made inside it.

    JAX gives a program with an ordered effect a token argument and result, and then leaves its fast path: 150 us a call,
    each waiting for the one before, and one failed program fails all later ones. The order between programs needs no token,
    because a device runs its programs in the order of their dispatch. So where JAX is about to lower a whole program, the
    collective effect is taken off the list that becomes its arguments (the caller reads the same list afterwards), and the
    program's body becomes one equation whose lowering makes the token. Programs without collectives pass through. Should a
    JAX version hand the list over differently, its own slow road is taken, which is correct too.
    """
    body = Primitive("jhetcc_program")
    body.multiple_results = True
    body.def_abstract_eval(lambda *_, jaxpr: list(jaxpr.out_avals))
    register_lowering(body, _lower_body)
    original = mlir_internal.lower_jaxpr_to_module

    def lower_jaxpr_to_module(module_name: str, jaxpr: Any, *args: Any, **kwargs: Any) -> Any:
        ordered = kwargs.get("ordered_effects")
        if isinstance(ordered, list) and EFFECT in ordered:
            jaxpr = _one_equation(jaxpr, body)
            ordered.remove(EFFECT)
        return original(module_name, jaxpr, *args, **kwargs)

    mlir_internal.lower_jaxpr_to_module = lower_jaxpr_to_module


def _one_equation(closed: Any, primitive: Any) -> Any:
    """A closed jaxpr with the same inputs and outputs whose only equation applies a primitive to its body."""
    program = closed.jaxpr
    body = partial_eval.convert_constvars_jaxpr(program)
    inner = body if isinstance(closed, core.Jaxpr) else core.ClosedJaxpr(body, ())
    outputs = [core.Var(aval) for aval in closed.out_avals]
    rest = {effect for effect in program.effects if effect != EFFECT}
    operands = [*program.constvars, *program.invars]
    equation = core.new_jaxpr_eqn(operands, outputs, primitive, {"jaxpr": inner}, rest)
    changed = program.replace(eqns=[equation], outvars=outputs, effects=rest)
    return changed if isinstance(closed, core.Jaxpr) else core.ClosedJaxpr(changed, closed.consts)


def register_lowering(primitive: Any, rule: Callable[..., Any]) -> None:
    """Registers a lowering rule that sees the real operands, not those of a shared function (see ``may_reuse``)."""
    mlir.register_lowering(primitive, rule, cacheable=False)


def may_reuse(value: Any) -> bool:
    """Whether the memory of an MLIR value may hold a result: made by the program itself, or a donated argument.

    XLA copies where the value is still needed, so this is about speed: for an argument that was not donated the copy is
    certain, and writing elsewhere is cheaper.
    """
    if not isinstance(value, mlir.ir.BlockArgument):
        return True
    function = value.owner.owner.operation
    if function.name != "func.func" or "arg_attrs" not in function.attributes:
        return False
    attributes = mlir.ir.DictAttr(mlir.ir.ArrayAttr(function.attributes["arg_attrs"])[value.arg_number])
    return "tf.aliasing_output" in attributes or "jax.buffer_donor" in attributes
