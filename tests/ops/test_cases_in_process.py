# SPDX-License-Identifier: Apache-2.0
"""The cases on one process whose ranks are its own four devices, over XLA's own collectives: the cases prove themselves."""

import cases_order
import cases_transforms
import cases_values
import pytest
from per_rank import cases_of


class Shape:
    """What ``only`` may ask of a job."""

    def __init__(self, size):
        self.size, self.local_ranks, self.devices, self.processes = size, tuple(range(size)), (None,) * size, 1


# The stand-in wire reduces as XLA does, where the core differs on purpose: NaN, signed zeros, rounding once.
NEED_THE_CORE = {"case_nan_and_infinities", "case_low_precision", "case_export", "case_dtypes_reduce"}
ALL = [
    (module, name, size)
    for module in (cases_values, cases_transforms, cases_order)
    for size in (4,)
    for name in cases_of(module, Shape(size))
    if name not in NEED_THE_CORE
]


@pytest.mark.parametrize(("module", "name", "size"), ALL, ids=lambda v: getattr(v, "__name__", str(v)))
def test_case(module, name, size, world):
    comm = world.add("world", size)
    getattr(module, name)(comm)
