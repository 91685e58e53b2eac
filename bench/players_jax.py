# SPDX-License-Identifier: Apache-2.0
"""Peers inside JAX programs: ours, JAX's own over Gloo, mpi4jax, and a trivial addition as JAX's own cost. Runs in a peer's process.

Modes: `jit` one blocking call; `jit donated` the same, the input given up, each call taking the last one's output where shapes allow;
`jit loop` a `fori_loop` of 20 in one call, time by operation; `plain jit` (ours only) `jax.jit` without our wrapper.
"""

import warnings

import cases
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

MODES = ("jit", "jit donated", "jit loop", "plain jit")
LOOP = 20


class InJax:
    """Compiles one program a case and mode. `operation` of a subclass says what happens to the operand."""

    jit = staticmethod(jax.jit)
    modes = MODES[:3]

    def __init__(self, rank, ranks):
        self.rank, self.ranks, self.note = int(rank), ranks, ""
        self.versions = {"jax": jax.__version__}
        self.ring = [(member, (member + 1) % ranks) for member in range(ranks)]
        self._input = self._program = None

    def operations_per_call(self, mode):
        return LOOP if mode == "jit loop" else 1

    # -- what subclasses say
    def operation(self, case):
        """A function of one operand, to be traced; raises NotImplementedError."""
        raise NotImplementedError

    def place(self, array):
        return jnp.array(array)

    def local(self, result):
        return np.asarray(result)

    def compile(self, function, donate):
        return self.jit(function, donate_argnums=0 if donate else ())

    # -- the bench's side
    def prepare(self, case, mode):
        if mode not in self.modes:
            raise NotImplementedError(f"no mode {mode}")
        self._input = self._program = None
        self.note = ""
        function = self.operation(case)
        donate = mode == "jit donated"
        keeps_shape = case.input_shape == case.output_shape
        if mode == "jit loop":
            program = self._looped(case, function)
        elif mode == "plain jit":
            program = jax.jit(function)
        else:
            program = self.compile(function, donate)
        self._program, self._input = program, self.place(cases.input_of(case, self.rank))
        if donate:
            if not keeps_shape:
                raise NotImplementedError(f"no mode {mode}: only an operand of the result's shape can be given up")
            return self._chain(case)
        if mode == "jit loop":
            return lambda: program(self._input, LOOP).block_until_ready()
        return lambda: program(self._input).block_until_ready()

    def _chain(self, case):
        held = [self.place(cases.input_of(case, self.rank))]
        program = self._program

        def step():
            held[0] = program(held[0]).block_until_ready()

        return step

    def once(self, case, mode, step):
        if mode == "jit donated":
            given = self.place(cases.input_of(case, self.rank))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = self._program(given).block_until_ready()
            if any("donated" in str(one.message) for one in caught) or not given.is_deleted():
                self.note = "the input was not given up"
        elif mode == "jit loop":
            result = self._program(self._input, 1).block_until_ready()  # one turn, so that it can be foretold
            return None if case.input_shape != case.output_shape else self.local(result)
        else:
            result = self._program(self._input).block_until_ready()
        return None if case.operation == "barrier" else self.local(result)

    def _looped(self, case, function):
        """The number of turns is an argument, so that the check runs the program that is measured."""

        def back(x, y):
            """The next operand: the result, or as much of it as fits."""
            if case.output_shape == case.input_shape:
                return y
            if case.operation in ("all_gather", "gather"):
                return y[0]
            return jax.lax.dynamic_update_index_in_dim(x, y, 0, 0)

        return self.compile(lambda x, turns: jax.lax.fori_loop(0, turns, lambda _, v: back(v, function(v)), x), False)

    def close(self):
        pass


class Jhetcc(InJax):
    modes = MODES

    def __init__(self, rank, ranks, coordinator):
        import jhetcc

        super().__init__(rank, ranks)
        self._jhetcc, self.jit = jhetcc, jhetcc.jit
        self._comm = jhetcc.init(coordinator, process_id=self.rank, num_processes=ranks)
        self.versions["jhetcc"] = jhetcc.__version__

    def operation(self, case):
        j, name = self._jhetcc, case.operation
        if name == "reduce_scatter" and case.reduction != "sum":
            raise NotImplementedError("psum_scatter sums")

        def message(x):
            if self.rank % 2 == 0 and self.rank + 1 < self.ranks:
                j.send(x, self.rank + 1)
            elif self.rank % 2:
                return j.recv(x, self.rank - 1)
            return x

        def meet(x):
            j.barrier()
            return x

        return {
            "all_reduce": {"sum": j.psum, "mean": j.pmean, "max": j.pmax, "min": j.pmin}.get(case.reduction),
            "reduce": lambda x: j.reduce(x, op=case.reduction),
            "reduce_scatter": j.psum_scatter,
            "all_gather": j.all_gather,
            "gather": j.gather,
            "scatter": j.scatter,
            "all_to_all": lambda x: j.all_to_all(x, "world", 0, 0, tiled=True),
            "permute": lambda x: j.ppermute(x, "world", self.ring),
            "broadcast": j.broadcast,
            "sendrecv": lambda x: j.sendrecv(x, (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks),
            "send": message,
            "barrier": meet,
        }[name]

    def close(self):
        self._comm.close()


class Gloo(InJax):
    """`jax.lax` under `shard_map`, one device a process, joined by `jax.distributed`."""

    def __init__(self, rank, ranks, coordinator):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(coordinator, num_processes=ranks, process_id=int(rank), local_device_ids=[0])
        super().__init__(rank, ranks)
        devices = sorted(jax.devices(), key=lambda device: device.process_index)
        if len(devices) != ranks:
            raise RuntimeError(f"{len(devices)} devices for {ranks} ranks: one device a process is measured")
        self._mesh = jax.sharding.Mesh(np.array(devices), ("ranks",))
        self._sharding = NamedSharding(self._mesh, P("ranks"))

    def operation(self, case):
        lax = jax.lax
        reductions = {"sum": lax.psum, "mean": lax.pmean, "max": lax.pmax, "min": lax.pmin}
        if case.operation == "reduce_scatter" and case.reduction != "sum":
            raise NotImplementedError("psum_scatter sums")
        operations = {
            "all_reduce": lambda x: reductions[case.reduction](x, "ranks"),
            "reduce_scatter": lambda x: lax.psum_scatter(x, "ranks"),
            "all_gather": lambda x: lax.all_gather(x, "ranks"),
            "all_to_all": lambda x: lax.all_to_all(x, "ranks", 0, 0, tiled=True),
            "permute": lambda x: lax.ppermute(x, "ranks", self.ring),
            "sendrecv": lambda x: lax.ppermute(x, "ranks", self.ring),
        }
        if case.operation not in operations:
            raise NotImplementedError(f"jax.lax has no {case.operation}")
        return operations[case.operation]

    def compile(self, function, donate):
        # Every rank's operand is one row of the global array.
        def mapped(x, *turns):
            specs = (P("ranks"), *(P() for _ in turns))
            inner = lambda block, *rest: function(block[0], *rest)[None]  # noqa: E731
            return jax.shard_map(inner, mesh=self._mesh, in_specs=specs, out_specs=P("ranks"), check_vma=False)(
                x, *turns
            )

        return jax.jit(mapped, donate_argnums=0 if donate else ())

    def place(self, array):
        block = jax.device_put(array[None], jax.local_devices()[0])
        return jax.make_array_from_single_device_arrays((self.ranks, *array.shape), self._sharding, [block])

    def local(self, result):
        return np.asarray(result.addressable_data(0))[0]

    def close(self):
        jax.distributed.shutdown()


class Mpi4jax(InJax):
    def __init__(self, rank, ranks):
        import mpi4jax
        from mpi4py import MPI

        self._mpi, self._comm = MPI, MPI.COMM_WORLD
        super().__init__(self._comm.rank, ranks)
        self._calls = mpi4jax
        self.versions |= {
            "mpi4jax": mpi4jax.__version__,
            "library": MPI.Get_library_version().splitlines()[0].strip("\0 ")[:60],
        }

    def operation(self, case):
        calls, comm = self._calls, self._comm
        if case.reduction == "mean":
            raise NotImplementedError("MPI has no mean")
        if case.dtype == "bfloat16":
            raise NotImplementedError("mpi4jax has no bfloat16")
        op = {"": None, "sum": self._mpi.SUM, "max": self._mpi.MAX, "min": self._mpi.MIN}[case.reduction]
        right, left = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        operations = {
            "all_reduce": lambda x: calls.allreduce(x, op=op, comm=comm),
            "all_gather": lambda x: calls.allgather(x, comm=comm),
            "all_to_all": lambda x: calls.alltoall(x, comm=comm),
            "broadcast": lambda x: calls.bcast(x, 0, comm=comm),
            "permute": lambda x: calls.sendrecv(x, x, left, right, comm=comm),
            "sendrecv": lambda x: calls.sendrecv(x, x, left, right, comm=comm),
        }
        if case.operation not in operations:
            raise NotImplementedError(f"mpi4jax is not measured for {case.operation}")
        return operations[case.operation]


class Add(InJax):
    """JAX's own cost: a jitted addition of the size, no communication, on all ranks at once."""

    def operation(self, case):
        if case.operation != "all_reduce":
            raise NotImplementedError("the addition is measured along with all_reduce")
        return lambda x: x + x

    def once(self, case, mode, step):
        super().once(case, mode, step)
        return None
