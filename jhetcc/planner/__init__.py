# SPDX-License-Identifier: Apache-2.0
"""(operation, layout) -> plan: algorithms, costs, the choice. Pure: no I/O, no clock, neither JAX nor the core."""

from .choice import ALGORITHMS as ALGORITHMS
from .choice import candidates as candidates
from .choice import plan as plan
from .layout import SHM as SHM
from .layout import TCP as TCP
from .layout import Layout as Layout
from .layout import Link as Link
