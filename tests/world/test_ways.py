# SPDX-License-Identifier: Apache-2.0
"""Which NICs of two processes are joined by paths: both sides find the same list, whatever their NICs are called."""

import pytest

from jhetcc.errors import BadArgumentError
from jhetcc.world.nics import Nic, flows_over_one_nic, ways


def nics(*hosts, length=24):
    return [Nic(f"eth{k}", host, 4000 + k, length) for k, host in enumerate(hosts)]


def found(low, high, same_host=False, per_nic=None):
    return [(way.low, way.high, way.tier) for way in ways(low, high, same_host=same_host, per_nic=per_nic)]


def test_one_nic_each_gets_two_flows():
    assert found(nics("10.0.0.1"), nics("10.0.0.2")) == [(0, 0, 0), (0, 0, 1)]
    assert found(nics("10.0.0.1"), nics("10.0.0.2"), per_nic=1) == [(0, 0, 0)]
    assert found(nics("10.0.0.1"), nics("10.0.0.2"), per_nic=5) == [(0, 0, 0)] * 5


def test_one_host_or_loopback_gets_one():
    assert found(nics("10.0.0.1"), nics("10.0.0.1"), same_host=True) == [(0, 0, 0)]
    assert found(nics("127.0.0.1"), nics("127.0.0.1"), same_host=True) == [(0, 0, 0)]


def test_two_nics_are_aligned_and_crossed():
    assert found(nics("10.0.0.1", "10.1.0.1"), nics("10.0.0.2", "10.1.0.2")) == [
        (0, 0, 0), (1, 1, 0), (0, 1, 1), (1, 0, 1),
    ]  # fmt: skip


def test_nics_of_one_subnet_meet_whatever_their_order():
    assert found(nics("10.0.0.1", "10.1.0.1"), nics("10.1.0.2", "10.0.0.2"))[:2] == [(0, 1, 0), (1, 0, 0)]
    # The one without a partner comes last, on both sides.
    assert found(nics("10.9.0.1", "10.1.0.1"), nics("10.1.0.2", "10.8.0.2"))[:2] == [(1, 0, 0), (0, 1, 0)]


@pytest.mark.parametrize("count", [3, 5])
def test_odd_numbers_of_nics(count):
    """C107: every NIC of both sides is used, and none twice alike."""
    low, high = (nics(*(f"10.{k}.0.{side}" for k in range(count))) for side in (1, 2))
    paths = found(low, high)
    assert [path for path in paths if path[2] == 0] == [(k, k, 0) for k in range(count)]
    assert [path for path in paths if path[2] == 1] == [(k, (k + 1) % count, 1) for k in range(count)]


def test_unequal_numbers_of_nics():
    paths = found(nics("10.0.0.1", "10.1.0.1"), nics("10.0.0.2", "10.1.0.2", "10.2.0.2"))
    assert [path for path in paths if path[2] == 0] == [(0, 0, 0), (1, 1, 0), (0, 2, 0)]
    assert len({path[:2] for path in paths}) == len(paths)
    assert found(nics("10.0.0.1"), nics("10.0.0.2", "10.0.0.3")) == [(0, 0, 0), (0, 1, 0)]


def test_an_address_that_both_hosts_have_leads_nowhere():
    """C098: two hosts with the same bridge; C106: and then the two have one NIC each, and two flows."""
    bridge = "172.17.0.1"
    assert found(nics(bridge, "10.0.0.1"), nics("10.0.0.2", bridge)) == [(1, 0, 0), (1, 0, 1)]
    with pytest.raises(BadArgumentError, match="no NIC of one side can reach"):
        found(nics(bridge), nics(bridge))


def test_loopback_leads_to_no_other_host():
    assert found(nics("127.0.0.1", "10.0.0.1"), nics("10.0.0.2", "127.0.0.2")) == [(1, 0, 0), (1, 0, 1)]
    assert found(nics("::1", "fd00::1"), nics("fd00::2")) == [(1, 0, 0), (1, 0, 1)]
    with pytest.raises(BadArgumentError, match="no NIC of one side can reach"):
        found(nics("127.0.0.1"), nics("10.0.0.2"))


def test_families_do_not_mix():
    assert found(nics("fd00::1", "10.0.0.1"), nics("10.0.0.2")) == [(1, 0, 0), (1, 0, 1)]
    assert found(nics("fd00::1", length=64), nics("fd00::2", length=64)) == [(0, 0, 0), (0, 0, 1)]
    with pytest.raises(BadArgumentError, match="JHETCC_INTERFACE"):
        found(nics("fd00::1"), nics("10.0.0.2"))


def test_both_sides_find_the_same_list():
    low, high = nics("10.2.0.1", "10.0.0.1", "10.5.0.1"), nics("10.0.0.2", "10.7.0.2", "10.2.0.2", "10.9.0.2")
    assert ways(low, high, same_host=False, per_nic=None) == ways(list(low), list(high), same_host=False, per_nic=None)


def test_addresses_as_they_are_called():
    assert Nic("eth0", "10.0.0.2", 4711).address_from(Nic("en1", "10.0.0.1", 1)) == "10.0.0.2:4711"
    assert Nic("eth0", "fd00::2", 4711).address_from(Nic("en1", "fd00::1", 1)) == "[fd00::2]:4711"
    assert Nic("eth0", "fe80::2", 4711).address_from(Nic("en1", "fe80::1", 1)) == "[fe80::2%en1]:4711"


@pytest.mark.parametrize(("hosts", "others"), [(1, ":"), (2, " and 1 more host:"), (4, " and 3 more hosts:")])
def test_several_flows_over_one_nic_protect_connections_only(hosts, others):
    told = flows_over_one_nic(Nic("eth0", "10.0.0.3", 7, 24, 25_000), "b:4711", hosts, 2)
    assert told.startswith(
        f"one NIC joins this process with b:4711{others} 2 flows go over eth0 10.0.0.3 (25 Gbit/s). "
    )
    assert "against the loss of a connection" in told and "not against that of the NIC, its cable or its switch" in told
