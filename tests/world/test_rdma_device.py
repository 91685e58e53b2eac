# SPDX-License-Identifier: Apache-2.0
"""Whether a NIC is an RDMA device's, too; the devices themselves are in tests/rdma_lab."""

import pytest

from jhetcc import _core
from jhetcc.errors import UnavailableError
from jhetcc.world.nics import Nic


def test_an_address_that_no_rdma_device_carries_is_told_with_the_way_out():
    with pytest.raises(UnavailableError, match=r"no RDMA device carries 127\.0\.0\.1 .*JHETCC_TRANSPORT=tcp") as caught:
        _core.rdma_device("127.0.0.1")
    assert caught.value.code == "no_rdma_device"


def test_a_nic_that_goes_by_its_rdma_device_says_so():
    assert str(Nic("eth0", "10.0.0.3", 1, 24, 25000, "mlx5_0")) == "eth0 10.0.0.3 (25 Gbit/s) by mlx5_0"
    assert str(Nic("eth0", "10.0.0.3", 1, 24, 25000)) == "eth0 10.0.0.3 (25 Gbit/s)"
