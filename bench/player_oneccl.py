# SPDX-License-Identifier: Apache-2.0
"""oneCCL's C interface of NCCL's shape, by ctypes on host memory. Runs in a peer's process."""

import ctypes as c
import os
import pathlib
import time

import cases
from players_raw import Raw

_TYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
_OPS = {"sum": 0, "max": 2, "min": 3}
_ID_BYTES = 4096
_LIMIT_S = 60


class _UniqueId(c.Structure):
    _fields_ = (("data", c.c_char * _ID_BYTES),)


def _load(folder):
    # The dispatcher looks for the other two; loaded here, they are found in any release.
    library = c.CDLL(f"{folder}/libccl.so.2", mode=c.RTLD_GLOBAL)
    for name in ("libccl.so.1", "libccl_legacy_cpu.so"):
        c.CDLL(f"{folder}/{name}", mode=c.RTLD_GLOBAL)
    pointer, size, number = c.c_void_p, c.c_size_t, c.c_int
    for name, types in {
        "CommInitRank": [c.POINTER(pointer), size, _UniqueId, number],
        "AllReduce": [pointer, pointer, size, number, number, pointer, pointer],
        "Reduce": [pointer, pointer, size, number, number, number, pointer, pointer],
        "ReduceScatter": [pointer, pointer, size, number, number, pointer, pointer],
        "AllGather": [pointer, pointer, size, number, pointer, pointer],
        "Broadcast": [pointer, pointer, size, number, number, pointer, pointer],
        "AllToAll": [pointer, pointer, size, number, pointer, pointer],
        "Send": [pointer, size, number, number, pointer, pointer],
        "Recv": [pointer, size, number, number, pointer, pointer],
        "CommDestroy": [pointer],
    }.items():
        getattr(library, f"oneccl{name}").argtypes = types
    return library


class OneCcl(Raw):
    """`exchange`: a file through which rank 0 hands out the identifier."""

    def __init__(self, rank, ranks, folder, exchange):
        super().__init__(rank, ranks)
        self._library = library = _load(folder)
        version = c.c_int()
        library.onecclGetVersion(c.byref(version))
        self.versions = {"oneccl": version.value}
        identifier = _UniqueId()
        exchange = pathlib.Path(exchange)
        if self.rank == 0:
            self._check(library.onecclGetUniqueId(c.byref(identifier)), "onecclGetUniqueId")
            half = exchange.with_suffix(".half")
            half.write_bytes(bytes(identifier))
            os.rename(half, exchange)
        else:
            deadline = time.monotonic() + _LIMIT_S
            while not exchange.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"rank 0 of oneCCL gave no identifier in {_LIMIT_S} s")
                time.sleep(0.01)
            c.memmove(c.byref(identifier), exchange.read_bytes(), _ID_BYTES)
        self._comm, self._source = c.c_void_p(), None
        self._check(library.onecclCommInitRank(c.byref(self._comm), ranks, identifier, self.rank), "onecclCommInitRank")

    @staticmethod
    def _check(code, what):
        if code:
            raise RuntimeError(f"{what} answered {code}")

    def step(self, case, source, target):
        if case.dtype not in _TYPES or case.reduction not in ("", *_OPS):
            raise NotImplementedError(f"oneCCL has no {case.reduction} of {case.dtype}")
        library, comm, kind, name = self._library, self._comm, _TYPES[case.dtype], case.operation
        self._source = source  # only addresses are handed on
        given, got, op = source.ctypes.data, target.ctypes.data, _OPS.get(case.reduction, 0)
        count, rows = case.count, case.count // self.ranks
        calls = {
            "all_reduce": (library.onecclAllReduce, (given, got, count, kind, op, comm, None)),
            "reduce": (library.onecclReduce, (given, got, count, kind, op, 0, comm, None)),
            "reduce_scatter": (library.onecclReduceScatter, (given, got, rows, kind, op, comm, None)),
            "all_gather": (library.onecclAllGather, (given, got, rows, kind, comm, None)),
            "broadcast": (library.onecclBroadcast, (given, got, count, kind, 0, comm, None)),
            "all_to_all": (library.onecclAllToAll, (given, got, rows, kind, comm, None)),
        }
        if name in ("sendrecv", "permute"):
            return self._exchange(given, got, count, kind)
        if name == "send":
            if self.lone():
                return lambda: None
            if self.rank % 2 == 0:
                return lambda: library.onecclSend(given, count, kind, self.rank + 1, comm, None)
            return lambda: library.onecclRecv(got, count, kind, self.rank - 1, comm, None)
        if name not in calls:
            raise NotImplementedError(f"oneCCL has no {name}")
        call, arguments = calls[name]
        # ctypes converts arguments at every call; converted ones pass straight through.
        arguments = tuple(
            t(a) if a is not None and not isinstance(a, c.c_void_p) else a
            for t, a in zip(call.argtypes, arguments, strict=True)
        )
        return lambda: call(*arguments)

    def _exchange(self, given, got, count, kind):
        library, comm = self._library, self._comm

        def both():
            library.onecclGroupStart()
            library.onecclSend(given, count, kind, self.right, comm, None)
            library.onecclRecv(got, count, kind, self.left, comm, None)
            library.onecclGroupEnd()

        return both

    def once(self, case, mode, step):
        if cases.BUS_FACTOR[case.operation](self.ranks) == 0:
            step()
            return None
        return super().once(case, mode, step)

    def close(self):
        self._library.onecclCommDestroy(self._comm)
