# SPDX-License-Identifier: Apache-2.0
"""(operation, layout) -> plan: algorithms, costs, the choice. Pure: no I/O, no clock, neither JAX nor the core."""

from .choice import ALGORITHMS as ALGORITHMS
from .choice import HIERARCHICAL as HIERARCHICAL
from .choice import candidates as candidates
from .choice import plan as plan
from .choice import rated as rated
from .choice import why_unfit as why_unfit
from .clusters import ClusterShape as ClusterShape
from .clusters import Nic as Nic
from .clusters import Vendor as Vendor
from .clusters import split_sizes as split_sizes
from .known import Capabilities as Capabilities
from .known import layout_of as layout_of
from .known import nics_of as nics_of
from .known import shapes as shapes
from .layout import SHM as SHM
from .layout import TCP as TCP
from .layout import Layout as Layout
from .layout import Link as Link
from .profile import Library as Library
from .profile import Profile as Profile
from .report import Report as Report
from .report import explain as explain
