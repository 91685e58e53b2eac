# SPDX-License-Identifier: Apache-2.0
"""What is asked: one collective operation as a value, with the one-line text that names it completely.

The text is the planner's input, the run-time key, what mismatch errors print, and what ranks compare by hash.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

__all__ = ["DTYPES", "OPS", "Operation", "can_reduce", "dtype_number", "fnv1a", "item_size"]

# Name -> (bytes of an item, number in the binary form). Other names, b<bits>, only move and have number 0.
DTYPES: dict[str, tuple[int, int]] = {
    "bool": (1, 1),
    "i8": (1, 2),
    "i16": (2, 3),
    "i32": (4, 4),
    "i64": (8, 5),
    "u8": (1, 6),
    "u16": (2, 7),
    "u32": (4, 8),
    "u64": (8, 9),
    "f16": (2, 10),
    "bf16": (2, 11),
    "f32": (4, 12),
    "f64": (8, 13),
    "c64": (8, 14),
    "c128": (16, 15),
}
# Reductions, and their numbers in the binary form.
OPS: dict[str, int] = {"none": 0, "sum": 1, "prod": 2, "max": 3, "min": 4, "mean": 5}

_ALL_REDUCE = {"psum": "sum", "pmean": "mean", "pmax": "max", "pmin": "min", "pprod": "prod"}
_KEYS: dict[str, tuple[str, ...]] = {
    **{name: ("columns",) for name in _ALL_REDUCE},
    "reduce": ("op", "root"),
    "all_gather": ("lengths",),
    "gather": ("root", "lengths"),
    "psum_scatter": ("op",),
    "all_to_all": (),
    "scatter": ("root", "lengths"),
    "ppermute": ("perm",),
    "broadcast": ("root",),
    "barrier": (),
    "send": ("to", "tag"),
    "recv": ("from", "tag"),
    "sendrecv": ("to", "from", "tag"),
}
_OPTIONAL = {"lengths", "columns", ("psum_scatter", "op")}
_TEXT = re.compile(r"([a-z_]+)\((?:([a-z]+[0-9]*)\[([0-9,]*)\]((?:, [a-z]+=[a-z0-9;>]*)*))?\)")
_BYTES = re.compile(r"b([1-9][0-9]*)")


def fnv1a(data: bytes) -> int:
    """The 64-bit FNV-1a hash, as the C++ core computes it."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def item_size(dtype: str) -> int:
    """Bytes of one item of a dtype by its short name (``"f32"``, ``"bf16"``, ``"b24"``, ...).

    Raises:
      ValueError: no such name, or a sub-byte type (the caller packs those into ``b8``).
    """
    if dtype in DTYPES:
        return DTYPES[dtype][0]
    match = _BYTES.fullmatch(dtype)
    if match is None or int(match[1]) % 8:
        raise ValueError(f"no dtype {dtype!r}: use one of {' '.join(DTYPES)}, or b<bits> with whole bytes to move only")
    return int(match[1]) // 8


def dtype_number(dtype: str) -> int:
    """Number of a dtype in the binary form; 0 for those that only move."""
    return DTYPES[dtype][1] if dtype in DTYPES else 0


def can_reduce(dtype: str, op: str) -> bool:
    """Whether a reduction exists: complex has no order, a mean needs division, raw bytes have nothing."""
    if dtype not in DTYPES or op not in OPS or op == "none":
        return False
    if op in ("max", "min"):
        return dtype not in ("c64", "c128")
    if op == "mean":
        return dtype in ("f16", "bf16", "f32", "f64", "c64", "c128")
    return True


@dataclass(frozen=True)
class Operation:
    """One collective operation, complete and hashable.

    Attributes:
      name: ``"psum"``, ``"all_gather"``, ...; see the table in ``docs/seams.md``.
      dtype: short dtype name; empty for ``barrier``.
      dims: the shape the table names, row major.
      op: reduction of ``reduce`` and ``psum_scatter`` (None there means sum).
      root: index of the root rank within the communicator.
      perm: pairs (source, destination) of ``ppermute``.
      lengths: rows of each rank for the variable-length forms.
      to: destination of ``send`` and ``sendrecv``.
      from_: source of ``recv`` and ``sendrecv``.
      tag: tag of the point-to-point forms.
      columns: the ranks form rows of so many, and rank r reduces with those at its place in the other rows. What it contributes
        stands for its row: a mean divides by the number of all ranks.

    Raises:
      ValueError: a field that the operation needs is missing, or one it does not have is given.

    Example:
      >>> Operation("psum", "f32", (8, 4)).text()
      'psum(f32[8,4])'
      >>> Operation.parse("ppermute(i8[3], perm=0>1;1>0)").perm
      ((0, 1), (1, 0))
    """

    name: str
    dtype: str = ""
    dims: tuple[int, ...] = ()
    op: str | None = None
    root: int | None = None
    perm: tuple[tuple[int, int], ...] | None = None
    lengths: tuple[int, ...] | None = None
    to: int | None = None
    from_: int | None = None
    tag: int | None = None
    columns: int | None = None

    def __post_init__(self) -> None:
        if self.name not in _KEYS:
            raise ValueError(f"no operation {self.name!r}: use one of {' '.join(_KEYS)}")
        if self.name == "psum_scatter" and self.op == "sum":
            object.__setattr__(self, "op", None)  # one text for one meaning
        for key in ("op", "root", "perm", "lengths", "to", "from", "tag", "columns"):
            given = self._get(key) is not None
            wanted = key in _KEYS[self.name]
            if given and not wanted:
                raise ValueError(f"{self.name} has no {key}")
            if wanted and not given and key not in _OPTIONAL and (self.name, key) not in _OPTIONAL:
                raise ValueError(f"{self.name} needs {key}")
        if self.name == "barrier":
            if self.dtype or self.dims:
                raise ValueError("barrier carries no data: no dtype, no dims")
            return
        item_size(self.dtype)
        if any(d < 0 for d in self.dims):
            raise ValueError(f"{self.name}: dims {self.dims} must not be negative")
        if self.tag is not None and not 0 <= self.tag < 1 << 32:
            raise ValueError(f"{self.name}: tag {self.tag} is not in 0 to 2^32-1")
        op = self.reduction
        if op != "none" and not can_reduce(self.dtype, op):
            raise ValueError(f"{self.name}: {op} of {self.dtype} does not exist")

    def _get(self, key: str) -> Any:
        return self.from_ if key == "from" else getattr(self, key)

    @property
    def reduction(self) -> str:
        """``"sum"``, ``"mean"``, ... or ``"none"`` where nothing is reduced."""
        if self.name in _ALL_REDUCE:
            return _ALL_REDUCE[self.name]
        if self.name in ("reduce", "psum_scatter"):
            return self.op or "sum"
        return "none"

    @property
    def rounds_once(self) -> bool:
        """Whether partial results of ours must not be stored: f16 and bf16, except of a max or min, which rounds nothing."""
        return self.dtype in ("f16", "bf16") and self.reduction in ("sum", "prod", "mean")

    @property
    def is_all_reduce(self) -> bool:
        return self.name in _ALL_REDUCE

    @property
    def is_point_to_point(self) -> bool:
        return self.name in ("send", "recv", "sendrecv")

    @property
    def itemsize(self) -> int:
        return item_size(self.dtype) if self.dtype else 1

    @property
    def nbytes(self) -> int:
        """N of the table in ``docs/seams.md``: bytes of what dims describe."""
        return 0 if self.name == "barrier" else self.itemsize * math.prod(self.dims)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the leading dimension."""
        return self.itemsize * math.prod(self.dims[1:])

    def input_bytes(self, size: int) -> int:
        """Bytes of each rank's operand in a communicator of ``size`` ranks."""
        return 0 if self.name == "recv" else self.nbytes

    def output_bytes(self, size: int) -> int:
        """Bytes of each rank's result in a communicator of ``size`` ranks."""
        if self.name in ("barrier", "send"):
            return 0
        if self.name in ("all_gather", "gather"):
            return size * self.nbytes if self.lengths is None else sum(self.lengths) * self.row_bytes
        if self.name == "scatter" and self.lengths is not None:
            return max(self.lengths) * self.row_bytes
        if self.name in ("psum_scatter", "scatter"):
            return self.nbytes // size
        return self.nbytes

    def check(self, size: int) -> None:
        """Checks what depends on the communicator's size.

        Raises:
          ValueError: an index outside the communicator, or dims that do not fit its size.
        """
        where = f"{self.text()} on {size} ranks"
        if size < 1:
            raise ValueError(f"{where}: a communicator has at least one rank")
        for key in ("root", "to", "from"):
            index = self._get(key)
            if index is not None and not 0 <= index < size:
                raise ValueError(f"{where}: {key}={index} is not one of its ranks")
        if self.columns is not None and (self.columns < 1 or size % self.columns):
            raise ValueError(f"{where}: {self.columns} columns do not divide {size} ranks")
        if self.columns == size > 1 and self.reduction == "mean":
            raise ValueError(f"{where}: one row has nobody to divide for it")
        if self.perm is not None:
            for side, name in ((0, "source"), (1, "destination")):
                ends = [pair[side] for pair in self.perm]
                if any(not 0 <= end < size for end in ends):
                    raise ValueError(f"{where}: perm names a {name} that is not one of its ranks")
                if len(set(ends)) != len(ends):
                    raise ValueError(f"{where}: perm names a {name} twice")
        if self.lengths is not None:
            if len(self.lengths) != size or min(self.lengths) < 0:
                raise ValueError(f"{where}: lengths must hold one number, zero or more, for each rank")
            rows = sum(self.lengths) if self.name == "scatter" else max(self.lengths)
            if not self.dims or self.dims[0] != rows:
                raise ValueError(f"{where}: with these lengths the leading dimension is {rows}")
        elif self.name in ("psum_scatter", "all_to_all", "scatter") and (not self.dims or self.dims[0] != size):
            raise ValueError(f"{where}: the leading dimension must be {size}")

    def text(self) -> str:
        """The one line that names the operation completely."""
        return _text(self)

    def fingerprint(self) -> int:
        """64-bit FNV-1a of the text."""
        return fnv1a(self.text().encode())

    @staticmethod
    def parse(text: str) -> Operation:
        """The operation a text names; the inverse of ``text()``.

        Raises:
          ValueError: not a text of this grammar.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"not an operation text: {text!r}")
        name, dtype, dims, tail = match.groups()
        fields: dict = {}
        for part in (tail or "").split(", ")[1:]:
            key, _, value = part.partition("=")
            if key in fields or (key == "from" and "from_" in fields):
                raise ValueError(f"{key} twice in operation text {text!r}")
            try:
                fields["from_" if key == "from" else key] = _value(key, value)
            except (ValueError, KeyError):
                raise ValueError(f"bad {key} in operation text {text!r}") from None
        try:
            shape = tuple(int(d) for d in dims.split(",")) if dims else ()
        except ValueError:
            raise ValueError(f"bad dims in operation text {text!r}") from None
        operation = Operation(name, dtype or "", shape, **fields)
        if operation.text() not in (text, text.replace(", op=sum)", ")")):
            raise ValueError(f"operation text {text!r} is not in its one form {operation.text()!r}")
        return operation


def _value(key: str, value: str):
    if key == "op":
        if value not in OPS or value == "none":
            raise ValueError(value)
        return value
    if key == "lengths":
        return tuple(int(v) for v in value.split(";")) if value else ()
    if key == "perm":
        pairs = [part.split(">") for part in value.split(";")] if value else []
        return tuple((int(a), int(b)) for a, b in pairs)
    if key in ("root", "to", "from", "tag", "columns"):
        return int(value)
    raise KeyError(key)


@lru_cache(maxsize=4096)
def _text(operation: Operation) -> str:
    if operation.name == "barrier":
        return "barrier()"
    parts = [f"{operation.dtype}[{','.join(map(str, operation.dims))}]"]
    for key in _KEYS[operation.name]:
        value: Any = operation._get(key)
        if value is None:
            continue
        if key == "perm":
            value = ";".join(f"{a}>{b}" for a, b in value)
        elif key == "lengths":
            value = ";".join(map(str, value))
        parts.append(f"{key}={value}")
    return f"{operation.name}({', '.join(parts)})"
