# SPDX-License-Identifier: Apache-2.0
"""Collective operations as JAX primitives; see README.md of this room."""

from .axes import ISLANDS as ISLANDS
from .axes import WORLD as WORLD
from .barrier import axis_index as axis_index
from .barrier import axis_size as axis_size
from .barrier import barrier as barrier
from .exchange import all_to_all as all_to_all
from .exchange import broadcast as broadcast
from .exchange import pbroadcast as pbroadcast
from .exchange import ppermute as ppermute
from .exchange import ragged_all_to_all as ragged_all_to_all
from .explain import explain as explain
from .gather import all_gather as all_gather
from .gather import gather as gather
from .gather import psum_scatter as psum_scatter
from .gather import scatter as scatter
from .point import recv as recv
from .point import send as send
from .point import sendrecv as sendrecv
from .reduce import pmax as pmax
from .reduce import pmean as pmean
from .reduce import pmin as pmin
from .reduce import pprod as pprod
from .reduce import psum as psum
from .reduce import psum_invariant as psum_invariant
from .reduce import reduce as reduce
from .scope import export_checks as export_checks
from .scope import jit as jit
from .scope import scope as scope
