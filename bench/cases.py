# SPDX-License-Identifier: Apache-2.0
"""What is measured: operations, sizes, inputs, what must come out, and the columns nccl-tests users know. Pure numpy.

`bytes` is the larger of a rank's input and output, as in nccl-tests. Sizes that do not divide among the ranks are rounded up.
"""

import math
from dataclasses import asdict, dataclass

import numpy as np

# Share of `bytes` that crosses each rank's link at best: bus bandwidth = algorithm bandwidth times this.
BUS_FACTOR = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce": lambda n: 1,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "permute": lambda n: 1,
    "broadcast": lambda n: 1,
    "sendrecv": lambda n: 1,
    "send": lambda n: 1,
    "barrier": lambda n: 0,
}
OPERATIONS = tuple(BUS_FACTOR)
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
REDUCTIONS = ("sum", "mean", "max", "min")
_PERIOD = 61  # inputs repeat after so many elements: a prime, so that no block boundary falls on the period
_MANTISSA = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}


def dtype_of(name):
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


@dataclass(frozen=True)
class Case:
    """One operation on one size; `reduction` is empty where nothing is reduced."""

    operation: str
    bytes: int
    dtype: str
    reduction: str
    ranks: int

    @classmethod
    def make(cls, operation, size, dtype, reduction, ranks):
        item = dtype_of(dtype).itemsize
        if operation == "barrier":
            return cls(operation, 0, dtype, "", ranks)
        split = operation in ("reduce_scatter", "all_gather", "gather", "scatter", "all_to_all")
        unit = item * ranks if split else item
        return cls(operation, math.ceil(size / unit) * unit, dtype, reduction if operation in REDUCING else "", ranks)

    def as_dict(self):
        return asdict(self)

    @property
    def count(self):
        return self.bytes // dtype_of(self.dtype).itemsize

    @property
    def input_shape(self):
        """Whole contributions of the splitting operations have a leading dimension of one row a rank."""
        if self.operation in ("all_gather", "gather"):
            return (self.count // self.ranks,)
        if self.operation in ("reduce_scatter", "scatter", "all_to_all"):
            return (self.ranks, self.count // self.ranks)
        return (self.count,)

    @property
    def output_shape(self):
        if self.operation in ("all_gather", "gather"):
            return (self.ranks, self.count // self.ranks)
        if self.operation in ("reduce_scatter", "scatter"):
            return (self.count // self.ranks,)
        return self.input_shape

    def bandwidths(self, seconds):
        """Algorithm and bus bandwidth in GB/s."""
        speed = self.bytes / seconds / 1e9
        return speed, speed * BUS_FACTOR[self.operation](self.ranks)


def input_of(case, rank):
    """Small integers that depend on rank and place: i mod 61, plus the rank, plus one."""
    values = np.arange(case.count if case.operation not in ("all_gather", "gather") else case.count // case.ranks)
    return (values % _PERIOD + rank + 1).astype(dtype_of(case.dtype)).reshape(case.input_shape)


def expected(case, rank):
    """What `rank` must get, in float64 (integers in their own type); None where it gets nothing to look at."""
    name, n = case.operation, case.ranks
    if name == "barrier" or (name in ("reduce", "gather") and rank != 0) or (name == "send" and rank % 2 == 0):
        return None

    is_integer = dtype_of(case.dtype).kind in "iu"  # integers wrap, as numpy's do

    def values(member):
        return input_of(case, member) if is_integer else input_of(case, member).astype(np.float64)

    if name in REDUCING:
        combine = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}[case.reduction]
        total = values(0)
        for member in range(1, n):
            total = combine(total, values(member))
        total = total / n if case.reduction == "mean" else total
        return total[rank] if name == "reduce_scatter" else total
    if name in ("all_gather", "gather"):
        return np.stack([values(member) for member in range(n)])
    if name == "scatter":
        return values(0)[rank]
    if name == "all_to_all":
        return np.stack([values(member)[rank] for member in range(n)])
    if name == "broadcast":
        return values(0)
    return values(rank - 1 if rank or name == "send" else n - 1)  # from the left neighbour


def bound(case):
    """Largest relative deviation that is not an error; 0 where the result is exact.

    Sums of these inputs stay within the type's mantissa up to hundreds of ranks (bfloat16: up to 4), so they are exact.
    Beyond, and for means, a result may be off by one rounding for every rank.
    """
    mantissa = _MANTISSA.get(case.dtype)
    if mantissa is None or case.reduction in ("", "max", "min"):
        return 0.0
    largest = sum(_PERIOD + rank for rank in range(case.ranks))
    is_exact = largest <= 2**mantissa and (case.reduction == "sum" or case.ranks & (case.ranks - 1) == 0)
    if is_exact and case.reduction == "mean":
        is_exact = largest * case.ranks <= 2**mantissa
    return 0.0 if is_exact else case.ranks * 2.0**-mantissa


def count_wrong(case, rank, output):
    """Elements of `output` outside the bound; what is not finite is wrong."""
    want = expected(case, rank)
    if want is None or output is None:
        return 0
    want, got = want.astype(np.float64), np.asarray(output).astype(np.float64)
    if got.shape != want.shape:
        return max(got.size, want.size)
    return int(np.count_nonzero(~(np.abs(got - want) <= bound(case) * np.abs(want))))


def size_of(text):
    """Bytes of "4", "64K", "1M", "2G"."""
    units = {"K": 10, "M": 20, "G": 30}
    text = text.strip().upper().removesuffix("B").removesuffix("I")
    return int(text[:-1]) << units[text[-1]] if text[-1] in units else int(text)


def sizes_between(first, last, factor):
    sizes, size = [], first
    while size <= last:
        sizes.append(size)
        size *= factor
    return sizes
