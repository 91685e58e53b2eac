# SPDX-License-Identifier: Apache-2.0
"""Collectives on plain buffers: numpy arrays and whatever exports DLPack from host memory. No JAX needed.

Every call blocks until it is done. A process that owns several ranks of the communicator gives a list, one buffer a rank, and
gets a list. Results go into ``out`` where given (same dtype, right shape, C-contiguous), else into a new numpy array.

A call seen before is found in a dictionary and handed to the core at once; everything is checked and planned the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from jhetcc.errors import BadArgumentError, UnavailableError
from jhetcc.schedule import Operation, can_reduce

if TYPE_CHECKING:
    from jhetcc.world.communicator import Communicator

__all__ = ["RawCalls", "dtype_name"]

_NAMES = {
    np.dtype(kind): name
    for name, kind in {
        "bool": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
        "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
        "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
        "c64": np.complex64, "c128": np.complex128,
    }.items()
}  # fmt: skip
_ALL_REDUCE = {"sum": "psum", "mean": "pmean", "max": "pmax", "min": "pmin", "prod": "pprod"}
_READY_MAX = 512

# What further describes a call beside name, dtype and shape: pairs of key and value, hashable.
Keys = tuple[tuple[str, Any], ...]


def dtype_name(dtype: Any) -> str:
    """Short name of a dtype in operation texts; ``b<bits>`` for those that only move."""
    dtype = np.dtype(dtype)
    return _NAMES.get(dtype) or f"b{8 * dtype.itemsize}"


class RawCalls:
    """The calls of a communicator on plain buffers; mixed into ``Communicator``."""

    # (name, keys, dtype, shape) -> (the core's call, for one local rank; shape of the result, None where there is none)
    _ready: dict[Any, tuple[Any, tuple[int, ...] | None]]

    # -- reductions
    def all_reduce(self, buffer: Any, op: str = "sum", *, out: Any = None, stream: Any = None) -> Any:
        """Reduces over all ranks; every rank gets the same bits.

        Args:
          buffer: array of any shape, equal on all ranks; a list of arrays where this process owns several ranks.
          op: ``"sum"``, ``"prod"``, ``"max"``, ``"min"`` or ``"mean"`` (float and complex only).
          out: where the result goes; may be ``buffer`` itself.
          stream: reserved for accelerators; host buffers take None.

        Returns:
          Array of the same shape and dtype.

        Raises:
          BadArgumentError: an op that does not exist for the dtype, or ``out`` does not fit.
          PeerLostError, OperationTimeoutError, MismatchError, AbortedError: see ``docs/errors.md``.

        Example:
          >>> import jhetcc, numpy as np
          >>> comm = jhetcc.init(num_processes=1, devices=1)
          >>> comm.all_reduce(np.arange(3.0))
          array([0., 1., 2.])
          >>> comm.close()
        """
        if op not in _ALL_REDUCE:
            raise BadArgumentError(
                f"all_reduce: no op {op!r}: use one of {', '.join(_ALL_REDUCE)}", code="bad_argument"
            )
        return self._call(_ALL_REDUCE[op], buffer, out, stream, (("op", op),))

    def reduce(self, buffer: Any, op: str = "sum", *, root: int, out: Any = None, stream: Any = None) -> Any:
        """As ``all_reduce``, with the result at index ``root`` and zeros elsewhere."""
        return self._call("reduce", buffer, out, stream, (("op", op), ("root", root)))

    def reduce_scatter(self, buffer: Any, op: str = "sum", *, out: Any = None, stream: Any = None) -> Any:
        """Reduces arrays of shape (size, ...); index k gets row k of the result, shape (...)."""
        return self._call("psum_scatter", buffer, out, stream, (("op", op),))

    # -- movement
    def all_gather(
        self, buffer: Any, *, lengths: Sequence[int] | None = None, out: Any = None, stream: Any = None
    ) -> Any:
        """Stacks every rank's array in rank order: shape (size, ...).

        With ``lengths`` (rows of each rank, the same tuple everywhere) rank r gives at least ``lengths[r]`` rows and everybody gets
        the first ``lengths[r]`` of each, joined: shape (sum(lengths), ...).
        """
        return self._gather("all_gather", buffer, lengths, out, stream, ())

    def gather(
        self, buffer: Any, *, root: int, lengths: Sequence[int] | None = None, out: Any = None, stream: Any = None
    ) -> Any:
        """As ``all_gather``, with the result at index ``root`` and zeros elsewhere."""
        return self._gather("gather", buffer, lengths, out, stream, (("root", root),))

    def scatter(
        self, buffer: Any, *, root: int, lengths: Sequence[int] | None = None, out: Any = None, stream: Any = None
    ) -> Any:
        """Row k of ``root``'s array of shape (size, ...) goes to index k, shape (...). All ranks give an array of that shape.

        With ``lengths`` the array has sum(lengths) rows and index k gets ``lengths[k]`` of them, padded with zeros to max(lengths).
        """
        if lengths is None:
            return self._call("scatter", buffer, out, stream, (("root", root),))
        return self._call("scatter", buffer, out, stream, (("root", root), ("lengths", tuple(lengths))))

    def all_to_all(self, buffer: Any, *, out: Any = None, stream: Any = None) -> Any:
        """Row k of this rank's array of shape (size, ...) goes to index k, which puts it in row of this rank."""
        return self._call("all_to_all", buffer, out, stream, ())

    def permute(self, buffer: Any, perm: Any, *, out: Any = None, stream: Any = None) -> Any:
        """Sends along pairs (source, destination); ranks without a source get zeros."""
        pairs = tuple((int(source), int(destination)) for source, destination in perm)
        return self._call("ppermute", buffer, out, stream, (("perm", pairs),))

    def broadcast(self, buffer: Any, *, root: int, out: Any = None, stream: Any = None) -> Any:
        """Everybody gets ``root``'s array. All ranks give an array of its shape and dtype."""
        return self._call("broadcast", buffer, out, stream, (("root", root),))

    def send(self, buffer: Any, dest: int, *, tag: int = 0, stream: Any = None) -> None:
        """Sends to index ``dest`` and returns when it was received (rendezvous). One local rank only."""
        self._single("send")
        self._call("send", buffer, None, stream, (("to", dest), ("tag", tag)))

    def recv(
        self, shape: tuple[int, ...], dtype: Any, source: int, *, tag: int = 0, out: Any = None, stream: Any = None
    ) -> Any:
        """Receives what index ``source`` sends with this tag; shape and dtype must be the sender's. One local rank only."""
        self._single("recv")
        shape, dtype = tuple(shape), np.dtype(dtype)
        target = self._target(out, shape, dtype, "recv")
        _refuse_stream("recv", stream)
        key = ("recv", (("from_", source), ("tag", tag)), dtype, shape)
        call, _ = self._ready.get(key) or self._prepare(key)
        call.run([(0, 0, _address(target), target.nbytes)])
        return target

    def sendrecv(
        self, buffer: Any, dest: int, source: int, *, tag: int = 0, out: Any = None, stream: Any = None
    ) -> Any:
        """Sends to ``dest`` and receives the like from ``source`` at once. One local rank only."""
        self._single("sendrecv")
        return self._call("sendrecv", buffer, out, stream, (("to", dest), ("from_", source), ("tag", tag)))

    def barrier(self, *, stream: Any = None) -> None:
        """Returns when every rank has come."""
        _refuse_stream("barrier", stream)
        key = ("barrier", (), None, ())
        call, _ = self._ready.get(key) or self._prepare(key)
        call.run([(0, 0, 0, 0)] * len(self._comm.local_ranks))

    # -- machinery
    @property
    def _comm(self) -> Communicator:
        return self  # type: ignore[return-value]

    def _single(self, name: str) -> None:
        if len(self._comm.local_ranks) != 1:
            raise BadArgumentError(
                f"{name}: this process owns {len(self._comm.local_ranks)} ranks of {self._comm.name!r}; "
                "point to point needs one: split() a communicator with one rank of this process",
                code="bad_argument",
            )

    def _gather(self, name: str, buffer: Any, lengths: Sequence[int] | None, out: Any, stream: Any, keys: Keys) -> Any:
        if lengths is None:
            return self._call(name, buffer, out, stream, keys)
        lengths = tuple(int(length) for length in lengths)
        if len(lengths) != self._comm.size:
            raise BadArgumentError(
                f"{name}: lengths has {len(lengths)} entries for {self._comm.size} ranks", code="bad_argument"
            )
        many = isinstance(buffer, (list, tuple))
        padded = []
        for index, one in zip(self._comm.local_ranks, buffer if many else [buffer], strict=True):
            array = _as_array(one, name)
            if array.ndim == 0 or array.shape[0] < lengths[index]:
                raise BadArgumentError(
                    f"{name}: rank {index} gave shape {array.shape}, lengths asks {lengths[index]} rows of it",
                    code="bad_argument",
                )
            rows = np.zeros((max(lengths), *array.shape[1:]), array.dtype)
            rows[: lengths[index]] = array[: lengths[index]]
            padded.append(rows)
        return self._call(name, padded if many else padded[0], out, stream, (*keys, ("lengths", lengths)))

    def _call(self, name: str, buffer: Any, out: Any, stream: Any, keys: Keys) -> Any:
        """The short way of what was called before, on plain arrays and one local rank; anything else goes the long one."""
        if type(buffer) is np.ndarray and stream is None:
            ready = self._ready.get((name, keys, buffer.dtype, buffer.shape))
            if ready is not None:
                call, shape = ready
                if out is None and shape is not None:
                    target = np.empty(shape, buffer.dtype)
                elif out is None or (type(out) is np.ndarray and out.shape == shape and out.dtype == buffer.dtype):
                    target = out
                else:
                    return self._call_long(name, buffer, out, stream, keys)
                if call.run_one(buffer, target):
                    return target
        return self._call_long(name, buffer, out, stream, keys)

    def _call_long(self, name: str, buffer: Any, out: Any, stream: Any, keys: Keys) -> Any:
        many = isinstance(buffer, (list, tuple))
        inputs = [_as_array(one, name) for one in (buffer if many else [buffer])]
        outs = out if many and out is not None else [out] * len(inputs)
        key = (name, keys, inputs[0].dtype, inputs[0].shape)
        call, shape = self._ready.get(key) or self._prepare(key)
        pairs = []
        for one, into in zip(inputs, outs, strict=True):
            if one.shape != inputs[0].shape or one.dtype != inputs[0].dtype:
                raise BadArgumentError(
                    f"{name}: local ranks gave {inputs[0].dtype}{inputs[0].shape} and {one.dtype}{one.shape}",
                    code="bad_argument",
                )
            pairs.append((one, None if shape is None else self._target(into, shape, one.dtype, name)))
        _refuse_stream(name, stream)
        call.run([(_address(i), i.nbytes, _address(o), 0 if o is None else o.nbytes) for i, o in pairs])
        results = [target for _, target in pairs]
        return results if many else results[0]

    def _prepare(self, key: tuple[str, Keys, np.dtype | None, tuple[int, ...]]) -> tuple[Any, tuple[int, ...] | None]:
        """Checks and plans a call, and keeps it; where the communicator is closed later, it fails with that."""
        name, keys, dtype, shape = key
        operation = self._operation(name, dtype, shape, dict(keys))
        ready = self._comm._raw_call(operation.text()), _result_shape(operation, self._comm.size)
        if len(self._ready) >= _READY_MAX:
            self._ready.clear()
        self._ready[key] = ready
        return ready

    def _operation(self, name: str, dtype: np.dtype | None, shape: tuple[int, ...], keys: dict[str, Any]) -> Operation:
        if dtype is not None and dtype.hasobject:
            raise BadArgumentError(
                f"{name}: {dtype} arrays hold references to objects of this process", code="bad_argument"
            )
        short = "" if dtype is None else dtype_name(dtype)
        op = keys.pop("op", None)
        if op is not None and not can_reduce(short, op):
            raise BadArgumentError(
                f"{name}: {op} of {dtype} does not exist; docs/values.md has the table of what does",
                code="bad_argument",
            )
        if op is not None and name in ("reduce", "psum_scatter"):
            keys["op"] = op
        try:
            operation = Operation(name, short, shape, **keys)
            operation.check(self._comm.size)
        except ValueError as why:
            raise BadArgumentError(str(why), code="bad_argument") from None
        return operation

    @staticmethod
    def _target(out: Any, shape: tuple[int, ...], dtype: np.dtype, name: str) -> np.ndarray:
        if out is None:
            return np.empty(shape, dtype)
        if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
            found = f"{out.dtype}{out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
            raise BadArgumentError(
                f"{name}: out must be a C-contiguous numpy array {dtype}{shape}, got {found}", code="bad_argument"
            )
        if not out.flags.writeable:
            raise BadArgumentError(f"{name}: out is read-only", code="bad_argument")
        return out


def _refuse_stream(name: str, stream: Any) -> None:
    if stream is not None:
        raise UnavailableError(
            f"{name}: streams belong to accelerators; host buffers take stream=None", code="unavailable"
        )


def _result_shape(operation: Operation, size: int) -> tuple[int, ...] | None:
    """Shape of each rank's result; None where there is none."""
    dims, lengths = operation.dims, operation.lengths
    if operation.name in ("send", "barrier"):
        return None
    if operation.name in ("all_gather", "gather"):
        return (size, *dims) if lengths is None else (sum(lengths), *dims[1:])
    if operation.name == "scatter" and lengths is not None:
        return (max(lengths), *dims[1:])
    return dims[1:] if operation.name in ("psum_scatter", "scatter") else dims


def _address(array: np.ndarray | None) -> int:
    return 0 if array is None else array.__array_interface__["data"][0]


def _contiguous(array: np.ndarray) -> np.ndarray:
    """``np.ascontiguousarray`` that leaves a scalar its shape ()."""
    return np.ascontiguousarray(array) if array.ndim else array.copy()


def _as_array(buffer: Any, name: str) -> np.ndarray:
    if isinstance(buffer, np.ndarray):
        return _contiguous(buffer)
    if hasattr(buffer, "__dlpack__"):
        try:
            return _contiguous(np.from_dlpack(buffer))
        except (BufferError, RuntimeError, TypeError) as why:
            try:
                return _contiguous(np.asarray(buffer))  # dtypes DLPack cannot name, e.g. JAX's bfloat16
            except Exception:
                raise UnavailableError(
                    f"{name}: this buffer is not in host memory: {why}", code="unavailable"
                ) from None
    return _contiguous(np.asarray(buffer))
