# SPDX-License-Identifier: Apache-2.0
"""Schedules as values: operations, steps, binary form, and the interpreter that proves them. Pure; numpy only."""

from .builder import Builder as Builder
from .graph import check_marked_graph as check_marked_graph
from .graph import cycle_ratio as cycle_ratio
from .graph import longest_path as longest_path
from .graph import pipelined_seconds as pipelined_seconds
from .interpreter import Proof as Proof
from .interpreter import prove as prove
from .interpreter import run as run
from .operation import DTYPES as DTYPES
from .operation import OPS as OPS
from .operation import Operation as Operation
from .operation import can_reduce as can_reduce
from .operation import fnv1a as fnv1a
from .operation import item_size as item_size
from .program import ScheduleError as ScheduleError
from .value import COPY as COPY
from .value import FILL as FILL
from .value import INPUT as INPUT
from .value import KIND_NAMES as KIND_NAMES
from .value import NATIVE_ALL_REDUCE as NATIVE_ALL_REDUCE
from .value import NATIVE_BROADCAST as NATIVE_BROADCAST
from .value import NATIVE_REDUCE as NATIVE_REDUCE
from .value import OUTPUT as OUTPUT
from .value import RECV as RECV
from .value import REDUCE as REDUCE
from .value import SCRATCH as SCRATCH
from .value import SEND as SEND
from .value import WHOLE as WHOLE
from .value import Place as Place
from .value import Plan as Plan
from .value import Schedule as Schedule
from .values import numpy_dtype as numpy_dtype
from .values import reduce_terms as reduce_terms
