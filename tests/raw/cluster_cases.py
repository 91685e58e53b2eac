# SPDX-License-Identifier: Apache-2.0
"""Raw calls in jobs whose processes carry labels of clusters; every process joins by itself, as a user's does."""

import contextlib
import os

import numpy as np
import raw_cases
from process_worker import here
from raw_cases import as_list, contributions, equal, mine, reduced

import jhetcc
from jhetcc.world import state


@contextlib.contextmanager
def labelled(labels, options):
    """A world in which this process has the label of its number."""
    os.environ["JHETCC_CLUSTER"] = labels[here()["process_id"]]
    os.environ.update(options)
    comm = jhetcc.init(**here() | {"timeout": 60})
    try:
        yield comm
    finally:
        comm.close()
        for name in ("JHETCC_CLUSTER", *options):
            del os.environ[name]


def check_messages(comm):
    """send, recv and sendrecv between any two, within a cluster and between two, small and fetched ones."""
    n, me = comm.size, comm.rank
    for count in (3, 20_000):
        every = contributions(comm, (count,), np.dtype(np.float32))
        for source in range(n):
            for dest in range(n):
                if source != dest and me == source:
                    comm.send(every[source], dest, tag=dest)
                elif source != dest and me == dest:
                    got = comm.recv((count,), np.float32, source, tag=dest)
                    assert got.tobytes() == every[source].tobytes(), (source, dest, count)
        for shift in range(1, n):
            got = comm.sendrecv(every[me], (me + shift) % n, (me - shift) % n)
            assert got.tobytes() == every[(me - shift) % n].tobytes(), (shift, count)


def check_every_root(comm, dtype, count):
    """Everything that has a root, for every root: nothing of another cluster is lost, nothing is left where zeros belong."""
    n, every, tables = comm.size, contributions(comm, (count,), dtype), contributions(comm, (comm.size, count), dtype)
    for root in range(n):
        zeros = np.zeros((n, count), dtype)
        want = [np.stack(every) if rank == root else zeros for rank in range(n)]
        equal(comm, comm.gather(mine(comm, every), root=root), want, f"gather to {root}")
        equal(comm, comm.scatter(mine(comm, tables), root=root), tables[root], f"scatter from {root}")
        equal(comm, comm.broadcast(mine(comm, every), root=root), [every[root]] * n, f"broadcast from {root}")
        for op in ("sum", "max", "prod"):
            small = contributions(comm, (count,), dtype, op == "prod")
            total = reduced(small, op)
            want = [total if rank == root else np.zeros_like(total) for rank in range(n)]
            equal(comm, comm.reduce(mine(comm, small), op, root=root), want, f"reduce {op} to {root}")


def case_vector(labels, options, names, counts):
    """All calls in a job of labelled processes; returns the sizes of its clusters and the algorithms of its sums."""
    with labelled(labels, options) as comm:
        raw_cases.case_tables(comm, names, counts)
        raw_cases.case_shapes(comm)
        raw_cases.case_lengths(comm, names[:1])
        check_every_root(comm, np.dtype(np.float32), counts[-1])
        check_messages(state.communicator("islands"))
        used = raw_cases.case_interpreter(comm, names, counts, options)
        return tuple(len(cluster.ranks) for cluster in comm.clusters), used


def case_like_flat(labels, counts):
    """What hierarchical schedules gather, scatter and hand out is what the flat ones do; returns digests to compare."""
    found = []
    for algorithm in ("direct", "hierarchical"):
        with labelled(labels, {"JHETCC_ALGORITHM": algorithm}) as comm:
            outputs = []
            for count in counts:
                every = raw_cases.random_contributions(comm, (count,), np.dtype(np.float32), count)
                tables = raw_cases.random_contributions(comm, (comm.size, count), np.dtype(np.float32), count + 1)
                for root in range(comm.size):
                    for result in (
                        comm.gather(mine(comm, every), root=root),
                        comm.scatter(mine(comm, tables), root=root),
                        comm.broadcast(mine(comm, every), root=root),
                    ):
                        outputs += [one.tobytes() for one in as_list(comm, result)]
                for result in (comm.all_gather(mine(comm, every)), comm.all_to_all(mine(comm, tables))):
                    outputs += [one.tobytes() for one in as_list(comm, result)]
            found.append(outputs)
    assert found[0] == found[1]
    return len(found[0])
