# SPDX-License-Identifier: Apache-2.0
"""Hosts for the tests of rails."""

import contextlib

import pytest
from namespaces import Hosts, missing


@pytest.fixture
def hosts():
    """``hosts(2)``: two namespaces without links; they end with the test."""
    if why := missing():
        pytest.skip(why)
    with contextlib.ExitStack() as stack:
        yield lambda count=2: stack.enter_context(contextlib.closing(Hosts(count)))
