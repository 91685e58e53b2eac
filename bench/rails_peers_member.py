# SPDX-License-Identifier: Apache-2.0
"""One process of a peer in bench/rails_peers.py: sums again and again, and says so, a JSON line an operation.

python bench/rails_peers_member.py gloo BYTES COORDINATOR RANK
python bench/rails_peers_member.py mpi BYTES
"""

import json
import os
import sys

import numpy as np


def gloo(size, coordinator, rank):
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, num_processes=2, process_id=int(rank))
    mesh = Mesh(np.array(jax.devices()), ("d",))
    program = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
    mine = jnp.arange(int(size) // 4, dtype=jnp.float32)[None] % 1013
    data = jax.make_array_from_single_device_arrays((2, int(size) // 4), NamedSharding(mesh, P("d")), [mine])
    right = 2 * np.asarray(mine)

    def once():
        assert np.array_equal(np.asarray(program(data).addressable_shards[0].data), right)

    return once


def mpi(size):
    from mpi4py import MPI

    mine = np.arange(int(size) // 4, dtype=np.float32) % 1013
    out = np.empty_like(mine)

    def once():
        MPI.COMM_WORLD.Allreduce(mine, out)
        assert np.array_equal(out, 2 * mine)

    return once


def main():
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no answer
    kind, *arguments = sys.argv[1:]
    once, turn = {"gloo": gloo, "mpi": mpi}[kind](*arguments), 0
    while True:
        once()
        turn += 1
        print(json.dumps({"turn": turn}), file=answers, flush=True)


if __name__ == "__main__":
    main()
