# SPDX-License-Identifier: Apache-2.0
"""Peers on plain buffers: our raw calls, MPI by mpi4py, and the machine's own floor. Runs in a peer's process."""

import os
import socket
import time

import cases
import numpy as np

MODES = ("raw",)


class Raw:
    """Keeps input and output of the current case; a step is one blocking call into a warm output."""

    def __init__(self, rank, ranks):
        self.rank, self.ranks, self.note, self.versions = int(rank), ranks, "", {}
        self._output = None

    def operations_per_call(self, mode):
        return 1

    def prepare(self, case, mode):
        if mode not in MODES:
            raise NotImplementedError(f"no mode {mode}")
        self._output = None
        source = cases.input_of(case, self.rank)
        target = np.zeros(case.output_shape, cases.dtype_of(case.dtype))
        step = self.step(case, source, target)
        self._output = target
        return step

    def once(self, case, mode, step):
        if case.operation == "barrier":
            step()
            return None
        self._output.fill(0)
        step()
        return self._output

    def step(self, case, source, target):
        raise NotImplementedError

    def close(self):
        pass

    @property
    def right(self):
        return (self.rank + 1) % self.ranks

    @property
    def left(self):
        return (self.rank - 1) % self.ranks

    def lone(self):
        """Whether this rank has no partner in pairs of (even, odd)."""
        return self.rank % 2 == 0 and self.rank + 1 == self.ranks


class Jhetcc(Raw):
    def __init__(self, rank, ranks, coordinator, libraries=""):
        super().__init__(rank, ranks)
        clusters = [each.split(":") for each in libraries.split(",") if each]
        if clusters:
            number = self.rank * len(clusters) // int(ranks)
            os.environ["JHETCC_CLUSTER"] = f"{number}-{clusters[number][0]}"
            os.environ["JHETCC_LIBRARY"], os.environ["JHETCC_LIBRARY_PATH"] = clusters[number]
        import jhetcc

        self.versions = {"jhetcc": jhetcc.__version__, "numpy": np.__version__}
        self._comm = jhetcc.init(coordinator, process_id=self.rank, num_processes=ranks, devices=1)

    def step(self, case, source, target):
        comm, op, right, left = self._comm, case.reduction, self.right, self.left
        ring = [(member, (member + 1) % self.ranks) for member in range(self.ranks)]
        if case.operation == "send":
            if self.lone():
                return lambda: None
            if self.rank % 2 == 0:
                return lambda: comm.send(source, self.rank + 1)
            return lambda: comm.recv(target.shape, target.dtype, self.rank - 1, out=target)
        return {
            "all_reduce": lambda: comm.all_reduce(source, op, out=target),
            "reduce": lambda: comm.reduce(source, op, root=0, out=target),
            "reduce_scatter": lambda: comm.reduce_scatter(source, op, out=target),
            "all_gather": lambda: comm.all_gather(source, out=target),
            "gather": lambda: comm.gather(source, root=0, out=target),
            "scatter": lambda: comm.scatter(source, root=0, out=target),
            "all_to_all": lambda: comm.all_to_all(source, out=target),
            "permute": lambda: comm.permute(source, ring, out=target),
            "broadcast": lambda: comm.broadcast(source, root=0, out=target),
            "sendrecv": lambda: comm.sendrecv(source, right, left, out=target),
            "barrier": lambda: comm.barrier(),
        }[case.operation]

    def close(self):
        self._comm.close()


class Mpi(Raw):
    def __init__(self, rank, ranks):
        import mpi4py
        from mpi4py import MPI

        self._mpi, self._comm = MPI, MPI.COMM_WORLD
        super().__init__(self._comm.rank, ranks)
        if self._comm.size != ranks:
            raise RuntimeError(f"MPI started {self._comm.size} ranks instead of {ranks}")
        library = MPI.Get_library_version().splitlines()[0].strip("\0 ")[:60]
        self.versions = {"mpi4py": mpi4py.__version__, "library": library}

    def step(self, case, source, target):
        mpi, comm, name = self._mpi, self._comm, case.operation
        if case.reduction == "mean":
            raise NotImplementedError("MPI has no mean")
        if case.dtype == "bfloat16" and case.reduction:
            raise NotImplementedError("MPI has no bfloat16 to reduce")
        if case.dtype == "bfloat16":
            source, target = source.view(np.uint8), target.view(np.uint8)
        op = {"": None, "sum": mpi.SUM, "max": mpi.MAX, "min": mpi.MIN}[case.reduction]
        if name == "send":
            if self.lone():
                return lambda: None
            if self.rank % 2 == 0:
                return lambda: comm.Ssend(source, self.rank + 1)
            return lambda: comm.Recv(target, self.rank - 1)
        if name == "broadcast":
            # In place by nature: the root sends its input, the others receive into their output.
            return (lambda: comm.Bcast(source, 0)) if self.rank == 0 else (lambda: comm.Bcast(target, 0))
        root_only = target if self.rank == 0 else None
        return {
            "all_reduce": lambda: comm.Allreduce(source, target, op),
            "reduce": lambda: comm.Reduce(source, root_only, op, 0),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(source, target, op),
            "all_gather": lambda: comm.Allgather(source, target),
            "gather": lambda: comm.Gather(source, root_only, 0),
            "scatter": lambda: comm.Scatter(source if self.rank == 0 else None, target, 0),
            "all_to_all": lambda: comm.Alltoall(source, target),
            "permute": lambda: comm.Sendrecv(source, self.right, 0, target, self.left, 0),
            "sendrecv": lambda: comm.Sendrecv(source, self.right, 0, target, self.left, 0),
            "barrier": lambda: comm.Barrier(),
        }[name]

    def once(self, case, mode, step):
        output = super().once(case, mode, step)
        # The root's own broadcast leaves its output alone.
        return None if case.operation == "broadcast" and self.rank == 0 else output


class Copy(Raw):
    """The floor: every rank copies `bytes` once by non-temporal stores, without talking to anybody."""

    def step(self, case, source, target):
        from jhetcc import _core

        if case.operation not in ("all_reduce", "sendrecv"):
            raise NotImplementedError("the floor is measured along with all_reduce and sendrecv")
        size = -(-case.bytes // 4) * 4
        left, right = np.ones(size, np.uint8), np.ones(size, np.uint8)
        return lambda: _core.copy_past_caches(right, left)

    def once(self, case, mode, step):
        step()
        return None


class Sockets(Raw):
    """The floor over TCP: two ranks with one connection, both send and receive at once, and spin rather than sleep."""

    _CONNECT_S = 60

    def __init__(self, rank, ranks, coordinator):
        super().__init__(rank, ranks)
        if ranks != 2:
            raise NotImplementedError("plain sockets join two ranks")
        host, _, port = coordinator.rpartition(":")
        self._socket = self._accept((host, int(port))) if self.rank == 0 else self._connect((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)

    def _accept(self, address):
        with socket.create_server(address) as listener:
            listener.settimeout(self._CONNECT_S)
            return listener.accept()[0]

    def _connect(self, address):
        end = time.monotonic() + self._CONNECT_S
        while True:
            try:
                return socket.create_connection(address)
            except ConnectionRefusedError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)

    def step(self, case, source, target):
        if case.operation != "sendrecv":
            raise NotImplementedError("plain sockets send and receive only")
        connection = self._socket
        outgoing, incoming = memoryview(source).cast("B"), memoryview(target).cast("B")

        def exchange():
            unsent, missing = outgoing, incoming
            while unsent or missing:
                try:
                    if unsent:
                        unsent = unsent[connection.send(unsent) :]
                except BlockingIOError:
                    pass
                try:
                    if missing:
                        arrived = connection.recv_into(missing)
                        if not arrived:
                            raise ConnectionError("the other rank is gone")
                        missing = missing[arrived:]
                except BlockingIOError:
                    pass

        return exchange

    def close(self):
        self._socket.close()
