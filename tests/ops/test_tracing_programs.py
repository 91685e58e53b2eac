# SPDX-License-Identifier: Apache-2.0
"""What programs look like: the calls in the lowered text, their order, memory reuse, packing, placement."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import over
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jhetcc.ops as jh
from jhetcc.errors import BadArgumentError, MismatchError, NotInitializedError, error_of


@pytest.fixture(autouse=True)
def two(wire):
    """A world of two ranks, one of them here; nothing can run."""
    wire.add("world", 2, 1)
    wire.add("islands", 2, 1)
    return wire


X = jnp.ones((2, 3))


def text_of(f, *args, **kwargs):
    return jax.jit(f, **kwargs).lower(*(args or (X,))).as_text()


def operations(text):
    return re.findall(r'operation = "([^"]*)"', text)


def test_call_of_the_seam():
    """Token first, then the operand; attributes operation and communicator; a side effect."""
    text = text_of(jh.psum)
    (call,) = re.findall(r"custom_call @jhetcc_collective\(.*", text)
    assert "has_side_effect = true" in call
    assert 'communicator = "world", operation = "psum(f32[2,3])"' in call
    assert call.endswith(": (!stablehlo.token, tensor<2x3xf32>) -> (!stablehlo.token, tensor<2x3xf32>)")
    rank = text_of(lambda _: jh.axis_index())
    assert re.search(r'@jhetcc_rank\(\).*communicator = "world".*: \(\) -> tensor<i32>', rank)


def test_texts():
    """The content descriptors of all operations, in program order."""

    def f(x):
        jh.barrier()
        jh.send(x, 1, tag=3)
        y = jh.recv(jax.ShapeDtypeStruct((4,), jnp.int8), 1, tag=2**32 - 1)
        x = jh.sendrecv(x, 1, 1) + jh.pmean(x) + jh.pprod(x) + jh.psum_invariant(x)
        x = (
            jh.reduce(x, "world", 1, "max")
            + jh.broadcast(x, root=1)
            + jh.ppermute(x, perm=zip([1, 0], [0, 1], strict=True))
        )
        return (
            jh.gather(x, lengths=(2, 1)),
            jh.scatter(x, root=1),
            jh.all_to_all(x, "world", 0, 0),
            jh.psum_scatter(x),
            y,
        )

    assert operations(text_of(f)) == [
        "barrier()",
        "send(f32[2,3], to=1, tag=3)",
        "recv(i8[4], from=1, tag=4294967295)",
        "sendrecv(f32[2,3], to=1, from=1, tag=0)",
        "pmean(f32[2,3])",
        "pprod(f32[2,3])",
        "psum(f32[2,3])",
        "reduce(f32[2,3], op=max, root=1)",
        "broadcast(f32[2,3], root=1)",
        "ppermute(f32[2,3], perm=0>1;1>0)",
        "gather(f32[2,3], root=0, lengths=2;1)",
        "scatter(f32[2,3], root=1)",
        "all_to_all(f32[2,3])",
        "psum_scatter(f32[2,3])",
    ]


def chain(text):
    """Whether each call takes the token that the call before gave."""
    calls = re.findall(r"(%\w+):?\d* = stablehlo.custom_call @jhetcc_collective\((%[\w#]+)", text)
    assert calls
    return all(token.split("#")[0] == before for (before, _), (_, token) in itertools.pairwise(calls))


def test_programs_take_no_token():
    """Plain jit has JAX's fast call: no token among arguments and results, one token made inside, all calls chained."""
    text = text_of(lambda x: (jh.psum(x), jh.pmax(x), jh.barrier(), jh.psum(x)))
    main = re.search(r"func.func public @main\((.*)\) -> \((.*)\) \{", text)
    assert main is not None and "token" not in main[0]
    assert text.count("stablehlo.create_token") == 1
    assert operations(text) == ["psum(f32[2,3])", "pmax(f32[2,3])", "barrier()", "psum(f32[2,3])"] and chain(text)
    assert jax.jit(jh.psum).lower(X).compile  # the lowered form is a complete program
    assert "jhetcc" in str(jax.make_jaxpr(jh.psum)(X).effects)


def test_unused_results_are_kept():
    """C031: operations whose results nobody reads stay, with equal ones apart, also in programs without results."""
    assert operations(text_of(lambda x: (jh.psum(x), jh.psum(x), x)[2])) == ["psum(f32[2,3])"] * 2
    assert operations(text_of(lambda x: jh.barrier())) == ["barrier()"]
    assert operations(text_of(lambda x: jax.jit(lambda y: (jh.send(y, 1), y)[1])(x) * 0)) == [
        "send(f32[2,3], to=1, tag=0)"
    ]
    text = text_of(lambda x: lax.scan(lambda c, _: (c, (jh.psum(c), None)[1]), x, None, length=3)[0])
    assert operations(text) == ["psum(f32[2,3])"]


def test_order_through_control_flow():
    """C030: calls in loops, branches, inner jits and gradients hang on the same chain: tokens go through all of them."""

    def f(x):
        x = jh.psum(x)
        x = lax.fori_loop(0, 3, lambda _, c: jh.pmax(c), x)
        x = lax.cond(x.sum() > 0, jh.pmin, jh.pmin, x)
        return jax.jit(jh.pprod)(x), jh.barrier()

    text = text_of(f)
    assert operations(text).count("pmax(f32[2,3])") == 1
    loop = re.search(r"stablehlo.while\(.*", text)
    assert loop is not None and "!stablehlo.token" in loop[0]
    assert text.count("stablehlo.create_token") == 1
    grad = text_of(jax.grad(lambda x: jh.psum(jnp.sin(jh.psum(x))).sum()))
    assert operations(grad) == ["psum(f32[2,3])"] * len(operations(grad)) and chain(grad)


def test_other_effects_mix():
    """Ordered effects of others keep their own tokens."""

    def f(x):
        jax.debug.print("{}", x[0, 0], ordered=True)
        y = jh.psum(x)
        jax.debug.print("{}", y[0, 0], ordered=True)
        return y

    assert operations(text_of(f)) == ["psum(f32[2,3])"]


def test_scope_and_jit():
    """Both give the program of plain jit; jit keeps the ways of jax.jit."""
    plain, scoped = text_of(jh.psum), text_of(jh.scope(jh.psum))
    assert plain == scoped
    f = jh.jit(lambda x, k, mode: jh.psum(x) * k if mode == "sum" else x, static_argnames="mode", static_argnums=1)
    assert operations(f.lower(X, 3, mode="sum").as_text()) == ["psum(f32[2,3])"]
    assert not operations(f.lower(X, 3, mode="no").as_text())
    assert f.eval_shape(X, 3, mode="sum").shape == (2, 3)

    @jh.jit
    def named(x):
        """Says what it does."""
        return jh.pmean(x)

    assert named.__name__ == "named" and named.__doc__ == "Says what it does."
    inner = text_of(lambda x: named(x) + jh.psum(x) + named(x))
    assert operations(inner).count("psum(f32[2,3])") == 1 and inner.count("stablehlo.create_token") == 1
    assert operations(text_of(jax.grad(lambda x: named(x).sum())))
    assert operations(jh.jit(jh.psum, donate_argnums=0).lower(X).as_text())


@pytest.mark.parametrize(
    ("f", "donated", "reused"),
    [
        (lambda x: jh.psum(x), True, True),
        (lambda x: jh.psum(x), False, False),
        (lambda x: jh.psum(x * 2), False, True),
        (lambda x: jh.all_gather(x * 2), False, False),
    ],
)
def test_memory_reuse(f, donated, reused):
    """C022: a donated argument or an intermediate gives its memory to the result; an argument that stays does not."""
    text = text_of(f, donate_argnums=0 if donated and reused else ())
    assert ("output_operand_alias" in text) == reused


# Trees


def test_packing():
    """One operation for each dtype, in tree order; structure, shapes and dtypes come back."""
    tree = {
        "a": jnp.ones((2, 3)),
        "b": [jnp.ones(4, jnp.bfloat16), jnp.ones(()), None],
        "c": (),
        "d": jnp.ones(2, bool),
    }
    text = text_of(jh.psum, tree)
    assert operations(text) == ["psum(f32[7])", "psum(bf16[4])", "psum(i32[2])"]
    out = jax.eval_shape(jh.psum, tree)
    assert jax.tree.structure(out) == jax.tree.structure(tree)
    assert out["b"][0].dtype == jnp.bfloat16 and out["d"].dtype == jnp.int32 and out["b"][1].shape == ()
    assert jh.psum({}) == {} and jh.pmean(None) is None and jh.pmax([[], ()]) == [[], ()]


def test_buckets():
    """Buckets hold at most 64 MiB, larger leaves go alone, and all ranks cut alike."""
    mib = [jax.ShapeDtypeStruct((k << 18,), jnp.float32) for k in (40, 20, 10, 70, 1)]
    got = operations(text_of(jh.pmean, mib))
    assert got == [f"pmean(f32[{k << 18}])" for k in (60, 10, 70, 1)]


def test_packed_gradients():
    """The gradient through a packed tree is packed as well."""
    tree = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
    grad = jax.grad(lambda t: sum(jnp.sum(v**2) for v in jax.tree.leaves(jh.psum(t))))
    assert operations(text_of(grad, tree)) == ["psum(f32[8])"] * 2


# Placement


def refused(f, *args, match, kind=BadArgumentError):
    with pytest.raises(kind, match=match) as caught:
        jax.jit(f).lower(*args)
    assert isinstance(error_of(caught.value), kind)


def test_several_ranks_need_shard_map(wire):
    """C081: plain jit on a process that owns several ranks shows both ways out."""
    wire.add("world", 4)
    refused(jh.psum, X, match="shard_map over a mesh of all 4 local ranks, or start one process per device")
    x = jax.device_put(np.ones((4, 3), np.float32), NamedSharding(over(4), P("d")))
    refused(jh.psum, x, match="runs on 4 device")
    refused(lambda: jh.axis_index(), match="shard_map")


def mapped(f, n, **kwargs):
    return jax.shard_map(f, mesh=over(n), in_specs=P("d"), out_specs=P("d"), check_vma=False, **kwargs)


def test_meshes(wire):
    """The mesh holds exactly the local member devices, all of its axes manual."""
    wire.add("world", 4)
    x = np.ones((8, 2), np.float32)
    refused(mapped(jh.psum, 2), x, match="must hold exactly this island's 4 member")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    half = jax.shard_map(jh.psum, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"}, check_vma=False)
    refused(half, x, match="leaves some mesh axes automatic")
    both = jax.shard_map(jh.psum, mesh=mesh, in_specs=P(("a", "b")), out_specs=P(("a", "b")), check_vma=False)
    assert operations(jax.jit(both).lower(x).as_text()) == ["psum(f32[2,2])"]


def test_islands(wire):
    """Islands contribute from one device; with local axes first; sharded operands are refused by name."""
    wire.add("world", 8, 4)
    assert 'communicator = "islands"' in text_of(lambda x: jh.psum(x, "islands"))
    one = mapped(lambda x: jh.pmean(x, ("d", "islands")), 1)
    text = jax.jit(one).lower(X).as_text()
    assert operations(text) == ["pmean(f32[2,3])"]
    refused(mapped(lambda x: jh.psum(x, ("d", "islands")), 2), X, match="exactly this island's 4 member")
    x = jax.device_put(np.ones((4, 3), np.float32), NamedSharding(over(4), P("d")))
    refused(lambda x: jh.psum(x, "islands"), x, match=r"'islands'.*4 devices")
    refused(
        mapped(lambda x: jh.psum(x, ("d", "world")), 4), np.ones((4, 2)), match="mixes local mesh axes with 'world'"
    )
    refused(mapped(lambda x: jh.all_gather(x, ("d", "islands")), 1), X, match="a tuple of axes is taken by reductions")
    refused(mapped(lambda x: jh.psum(x, "d"), 1), X, match="axes of the local program only; use jax.lax.psum")
    refused(lambda x: jh.psum(x, ("islands", "world")), X, match="more than one name")
    sizes = []
    jax.jit(mapped(lambda x: (sizes.append(jh.axis_size(("d", "islands"))), x)[1], 2)).lower(X)
    assert sizes == [4]


def test_membership_and_retrace(two, wire):
    """C078: who is no member may not call; a program for another size says retrace."""
    wire.add("pair", 2, 0)
    with pytest.raises(BadArgumentError, match="not a member of communicator 'pair'"):
        jh.broadcast(X, "pair")
    traced = jax.jit(jh.psum).trace(X)
    wire.add("world", 3, 1)
    with pytest.raises(BadArgumentError, match="traced for 2 ranks, but the communicator now has 3: retrace"):
        traced.lower()


def test_not_initialized(monkeypatch):
    """Operations before init say so."""
    from jhetcc.world import state

    def absent(name):
        raise NotInitializedError("call jhetcc.init() first", code="not_initialized")

    monkeypatch.setattr(state, "communicator", absent)
    for call in (lambda: jh.psum(X), lambda: jh.barrier(), lambda: jh.axis_size()):
        with pytest.raises(NotInitializedError, match="init"):
            call()


def test_prepared(two):
    """Lowering warms the schedule cache with the operation's text."""
    text_of(lambda x: jh.psum(x))
    assert two["world"].prepared == ["psum(f32[2,3])"]


def test_export_checks():
    """jax.export takes programs with the custom calls when told so."""
    exported = jax.export.export(jax.jit(jh.psum), disabled_checks=jh.export_checks())(X)
    assert not exported.ordered_effects and operations(exported.mlir_module()) == ["psum(f32[2,3])"]
    with pytest.raises(ValueError, match="jhetcc_collective"):
        jax.export.export(jax.jit(jh.psum))(X)


def test_typed_errors():
    """A failure inside jit surfaces as the typed error, its origin kept as cause."""
    mark = "ranks differ [jhetcc kind=mismatch; scope=communicator; code=mismatch; ranks=0,1]"

    @jh.jit
    def failing(x):
        raise jax.errors.JaxRuntimeError("FAILED_PRECONDITION: " + mark)

    with pytest.raises(MismatchError, match=r"^ranks differ$") as caught:
        failing(X)
    assert isinstance(caught.value.__cause__, jax.errors.JaxRuntimeError) and caught.value.ranks == (0, 1)

    @jh.jit
    def other(x):
        raise ValueError("nothing of ours")

    with pytest.raises(ValueError, match="nothing of ours") as caught:
        other(X)
    assert error_of(caught.value) is None
