# SPDX-License-Identifier: Apache-2.0
"""Hosts with several interfaces and addresses, in namespaces: which are used without a setting, and by one."""

import contextlib
import logging
import os
import re
import secrets
import time

import numpy as np
import pytest
from process_worker import hear, here, say
from processes import Pool
from rail_cases import case_closed_connections, case_join, joined

import jhetcc


def join(both, address="10.70.0.1:7000", per_process=({}, {}), **options):
    """Both processes join and work; what each told, and its output."""
    own = [{f"JHETCC_{name.upper()}": value for name, value in one.items()} for one in per_process]
    with contextlib.closing(both.pool()) as pool:
        running = pool.start(case_join_as, address, secrets.token_hex(32), options | {"log": "info"}, own, world=False)
        outcomes = running.finish()
    return [outcome.get() for outcome in outcomes], [outcome.output for outcome in outcomes]


def case_join_as(address, key, options, own):
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    os.environ.update(own[here()["process_id"]])
    return case_join(address, key, options)


def ends(paths, tier=0):
    return [(path["local"], path["remote"]) for path in paths if path["tier"] == tier]


def test_all_that_lead_out_are_used(hosts):
    """C090: a dead interface listed first is left out; the log says which were chosen, and how to choose others."""
    both = hosts(2)
    for k in range(2):
        both.do(
            k,
            "ip link add dead0 type veth peer name dead1 && ip address add 10.1.0.9/24 dev dead0 && ip link set dead0 up",
        )
    for k in range(2):
        both.join(0, 1, f"eth{k}", f"en{k}", addresses=(f"10.7{k}.0.1/24", f"10.7{k}.0.2/24"))
    (one, two), logs = join(both)
    assert ends(one[0]) == [("eth0 10.70.0.1", "10.70.0.2"), ("eth1 10.71.0.1", "10.71.0.2")]
    assert ends(two[0]) == [("en0 10.70.0.2", "10.70.0.1"), ("en1 10.71.0.2", "10.71.0.1")]
    assert (
        "NICs: eth0 10.70.0.1 (10 Gbit/s), eth1 10.71.0.1 (10 Gbit/s) (chosen here; JHETCC_INTERFACE names others)"
        in logs[0]
    )
    assert all(path["state"] == "healthy" for path in one[0] if path["tier"] == 0)


def with_ways_elsewhere(hosts):
    """Two hosts with a link, and each with one to a third that passes nothing on."""
    both = hosts(3)
    both.join(0, 1, "eth0", "en0", addresses=("10.70.0.1/24", "10.70.0.2/24"))
    both.join(0, 2, "far0", "far1", addresses=("10.80.0.1/24", "10.80.0.3/24"))
    both.join(1, 2, "far2", "far3", addresses=("10.80.0.2/24", "10.81.0.3/24"))
    both.settle()
    both.count = 2
    return both


def test_an_interface_that_leads_elsewhere(hosts):
    """C090: one with a carrier that does not reach the peers costs a moment, and one line that names it."""
    both = with_ways_elsewhere(hosts)
    (one, two), logs = join(both)
    assert [path["state"] for path in one[0]][:2] == ["healthy", "lost"]
    assert one[1] < 15 and two[1] < 15
    assert "no connection between far2 10.80.0.2 (10 Gbit/s) here and 10.80.0.1 of process 0" in logs[1]


def case_refused(address, key, options, own):
    """What init() raises."""
    with pytest.raises(jhetcc.OperationTimeoutError) as refused:
        joined(address, key, seconds=6, **options)
    return str(refused.value)


def test_only_interfaces_that_lead_elsewhere(hosts):
    """C141: the error names the addresses that were tried, how long, and the setting."""
    both = with_ways_elsewhere(hosts)
    with contextlib.closing(both.pool()) as pool:
        options = {"interface": "far0,far2"}
        running = pool.start(case_refused, "10.70.0.1:7000", secrets.token_hex(32), options, None, world=False)
        told = [outcome.get() for outcome in running.finish()]
    # Who gives up first is told by the other, too.
    ways = ("calling 10.80.0.1:", "waiting for its call at 10.80.0.1:")
    assert all(any(way in one for way in ways) for one in told), told
    assert all("JHETCC_INTERFACE names the NICs to use" in one for one in told), told


def case_no_route(address, key, own):
    """What init() raises where it cannot succeed, and after how many seconds."""
    begun = time.monotonic()
    with pytest.raises(jhetcc.Error) as refused:
        joined(address, key, **own[here()["process_id"]])
    return refused.value.code, str(refused.value), time.monotonic() - begun


@pytest.mark.parametrize(
    "own", [({"interface": "lo"}, {}), ({}, {"interface": "127.0.0.1"}), ({"interface": "lo"},) * 2]
)
def test_loopback_between_hosts(hosts, own):
    """Nobody waits for calls that cannot come: both fail at once, and say which process chose what."""
    both = hosts(2)
    both.join(0, 1, "eth0", "en0", addresses=("10.70.0.1/24", "10.70.0.2/24"))
    with contextlib.closing(both.pool()) as pool:
        running = pool.start(case_no_route, "10.70.0.1:7000", secrets.token_hex(32), own, world=False)
        told = [outcome.get() for outcome in running.finish()]
    chosen = next(one["interface"] for one in own if one)
    for code, text, seconds in told:
        assert seconds < 15 and code in ("no_route", "init_failed"), told
        assert f"listens on loopback only, lo 127.0.0.1, by JHETCC_INTERFACE={chosen} of that process" in text, told
        assert "on another host cannot reach it there. Unset JHETCC_INTERFACE" in text, told
    assert any(code == "no_route" for code, _, _ in told)


def test_names_that_differ_between_hosts(hosts):
    """C093: one list of names for all, or a subnet."""
    both = hosts(2)
    both.join(0, 1, "en1", "eth7", addresses=("10.70.0.1/24", "10.70.0.2/24"))
    both.join(0, 1, "en2", "eth8", addresses=("10.71.0.1/24", "10.71.0.2/24"))
    for spec in ("en1,eth7", "10.70.0.0/24"):
        (one, two), _ = join(both, interface=spec)
        assert ends(one[0]) == [("en1 10.70.0.1", "10.70.0.2")]
        assert ends(two[0]) == [("eth7 10.70.0.2", "10.70.0.1")]
    (one, _), _ = join(both, per_process=({"interface": "en2"}, {"interface": "eth8"}))
    assert ends(one[0]) == [("en2 10.71.0.1", "10.71.0.2")]


def test_a_link_local_address_beside_a_routable_one(hosts):
    """C094: the routable one is told to the others."""
    both = hosts(2)
    both.join(0, 1, "ll0", "ll1", addresses=("169.254.3.1/16", "169.254.3.2/16"))
    both.join(0, 1, "eth0", "en0", addresses=("169.254.9.1/16 10.70.0.1/24", "169.254.9.2/16 10.70.0.2/24"))
    (one, two), _ = join(both)
    assert ends(one[0]) == [("eth0 10.70.0.1", "10.70.0.2")]
    assert ends(two[0]) == [("en0 10.70.0.2", "10.70.0.1")]


def test_equal_bridges_on_both_hosts(hosts):
    """C098: works without settings, and nothing goes to the bridge; nor where the user asks for everything."""
    both = hosts(2)
    for k in range(2):
        both.do(
            k, "ip link add docker0 type bridge && ip address add 172.17.0.1/16 dev docker0 && ip link set docker0 up"
        )
        both.do(
            k,
            "ip link add port0 type veth peer name port1 && ip link set port0 master docker0 up && ip link set port1 up",
        )
    both.join(0, 1, "eth0", "en0", addresses=("10.70.0.1/24", "10.70.0.2/24"))
    for spec in ({}, {"interface": "docker0,eth0,en0"}):
        (one, two), _ = join(both, **spec)
        assert ends(one[0]) == [("eth0 10.70.0.1", "10.70.0.2")], spec
        assert ends(two[0]) == [("en0 10.70.0.2", "10.70.0.1")], spec


def case_reconnect(address, key, host):
    comm = joined(address, key, interface="10.70.0.11,10.70.0.12,10.70.0.21,10.70.0.22")
    told = case_closed_connections(comm, host)
    comm.barrier()
    comm.close()
    return told


def test_several_addresses_of_one_interface(hosts):
    """C099: one NIC; and several where each is named, of which each is found again when its connections end."""
    both = hosts(2)
    addresses = [" ".join(f"10.70.0.{10 * k + side}/24" for k in range(3)) for side in (1, 2)]
    both.join(0, 1, "eth0", "en0", addresses=addresses)
    (one, two), _ = join(both)
    assert ends(one[0]) == [("eth0 10.70.0.1", "10.70.0.2")]
    (one, two), _ = join(both, interface="10.70.0.11,10.70.0.12,10.70.0.21,10.70.0.22")
    assert ends(one[0]) == [("eth0 10.70.0.11", "10.70.0.12"), ("eth0 10.70.0.21", "10.70.0.22")]
    assert len(ends(two[0], 1)) == 2
    with contextlib.closing(both.pool()) as pool:
        running = pool.start(case_reconnect, "10.70.0.1:7000", secrets.token_hex(32), "10.70.0.21", world=False)
        for outcome in running.finish():
            hit, _, lost, after, aborts = outcome.get()
            assert 1 in hit and aborts == 0
            assert all(lost[k]["losses"] == 1 and after[k]["state"] == "healthy" for k in hit), after
            assert [(path["local"], path["remote"]) for path in after] == [
                (path["local"], path["remote"]) for path in lost
            ]


def test_a_bridge_as_the_only_interface(hosts):
    """C100: it is used, whatever it is called."""
    both = hosts(2)
    both.join(0, 1, "port0", "port1")
    for k in range(2):
        both.do(k, f"ip link add virbr0 type bridge && ip link set port{k} master virbr0")
        both.do(k, f"ip address add 10.70.0.{k + 1}/24 dev virbr0 && ip link set virbr0 up")
    (one, two), _ = join(both)
    assert ends(one[0]) == [("virbr0 10.70.0.1", "10.70.0.2")]
    assert ends(two[0]) == [("virbr0 10.70.0.2", "10.70.0.1")]


LISTENING = "cat /proc/net/tcp | awk '$4 == \"0A\" && $2 ~ /:1B58$/ { print $2 }'"  # port 7000; addresses as the kernel writes them
KERNEL = {"10.70.0.1": "0100460A", "10.71.0.1": "0100470A"}


@pytest.mark.parametrize(
    ("own", "used"),
    [
        ("10.70.0.1", ("10.70.0.1", "10.70.0.1")),
        ("10.71.0.1", ("10.71.0.1", "10.71.0.1")),
        ("head", ("10.70.0.1", "10.71.0.1")),
    ],
)
def test_a_coordinator_with_two_addresses(hosts, tmp_path, own, used):
    """C096: process 0 listens at the address it is given and there only, or at all that a name has, and workers use one each.

    Data takes what joins each pair.
    """
    three = hosts(3)
    three.join(0, 1, "eth0", "en0", addresses=("10.70.0.1/24", "10.70.0.2/24"))
    three.join(0, 2, "eth1", "en0", addresses=("10.71.0.1/24", "10.71.0.2/24"))
    three.do(0, "echo 1 > /proc/sys/net/ipv4/ip_forward")
    three.do(1, "ip route add 10.71.0.0/24 via 10.70.0.1")
    three.do(2, "ip route add 10.70.0.0/24 via 10.71.0.1")
    names = tmp_path / "hosts"
    names.write_text("10.70.0.1 head\n10.71.0.1 head\n")
    prefixes = [(*three.prefix(0), *with_hosts(names)), three.prefix(1), three.prefix(2)]
    three.settle()
    with contextlib.closing(Pool((1, 1, 1), prefixes=prefixes)) as pool:
        running = pool.start(case_sum, [f"{one}:7000" for one in (own, *used)], secrets.token_hex(32), world=False)
        running.expect(0, 1, 2, word="joined")
        listening = three.do(0, LISTENING).split()
        for k in range(3):
            running.tell(k)
        for outcome in running.finish():
            assert outcome.get() == 6
    assert sorted(one.partition(":")[0] for one in listening) == sorted(KERNEL[one] for one in set(used)), listening


def with_hosts(names):
    """Lets a process have its own /etc/hosts."""
    return ("unshare", "--mount", "sh", "-ec", 'mount --bind "$0" /etc/hosts; exec "$@"', str(names))


def case_sum(addresses, key):
    comm = jhetcc.init(**here() | {"coordinator": addresses[here()["process_id"]], "secret": key, "timeout": 40})
    total = int(comm.all_reduce(np.array(comm.rank + 1)))
    comm.barrier()
    say("joined")
    hear()
    comm.close()
    return total


def case_nobody_here(address, key):
    """What init() raises where the coordinator is another host's loopback."""
    if here()["process_id"] == 0:
        return None
    with pytest.raises(jhetcc.OperationTimeoutError) as refused:
        joined(address, key, seconds=1.5)
    return str(refused.value)


def test_localhost_of_another_host(hosts):
    """C097: who asks there is told that it is loopback, that nobody answers, and for how long it asked."""
    both = hosts(2)
    both.join(0, 1, "eth0", "en0", addresses=("10.70.0.1/24", "10.70.0.2/24"))
    with contextlib.closing(both.pool()) as pool:
        running = pool.start(case_nobody_here, "localhost:7000", secrets.token_hex(32), world=False)
        text = running.finish()[1].get()
    assert "found no coordinator at localhost:7000" in text and "Connection refused" in text, text
    assert "It is a loopback address: only processes on this machine listen there" in text, text


def test_localhost_without_ipv6(hosts, tmp_path):
    """C102: its name has an IPv6 address, too, which this host does not; one line of the log at most."""
    one = hosts(1)
    one.do(0, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
    names = tmp_path / "hosts"
    names.write_text("::1 localhost\n127.0.0.1 localhost\n")
    with contextlib.closing(Pool((1, 1), prefixes=[(*one.prefix(0), *with_hosts(names))] * 2)) as pool:
        running = pool.start(case_sum, ["localhost:7000"] * 2, None, world=False)
        running.expect(0, 1, word="joined")
        for k in range(2):
            running.tell(k)
        for outcome in running.finish():
            assert outcome.get() == 3 and outcome.output.count("\n") <= 1, outcome.output


def test_a_host_without_ipv6(hosts):
    """C102: works over IPv4, and the log has no word of IPv6."""
    both = hosts(2)
    for k in range(2):
        both.do(k, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
    both.join(0, 1, "eth0", "en0", addresses=("10.70.0.1/24", "10.70.0.2/24"))
    (one, _), logs = join(both)
    assert ends(one[0]) == [("eth0 10.70.0.1", "10.70.0.2")]
    for log in logs:
        assert "NICs: " in log and not re.search(r"ipv6|::|address family", log, re.IGNORECASE), log


@pytest.mark.parametrize("network", ["fd00:70::", "fe80::70:"])
def test_ipv6(hosts, network):
    """Link-local addresses too, whose scope is another on each host."""
    both = hosts(2)
    both.do(1, "ip link add more0 type veth peer name more1")  # so that numbers of interfaces differ
    both.join(0, 1, "eth0", "en0", addresses=(f"{network}1/64", f"{network}2/64"))
    scope = ("%eth0", "%en0") if network.startswith("fe80") else ("", "")
    per_process = ({"interface": f"{network}1"}, {"interface": f"{network}2"})
    addresses = [f"[{network}1{one}]:7000" for one in scope]
    with contextlib.closing(both.pool()) as pool:
        own = [{"JHETCC_INTERFACE": one["interface"]} for one in per_process]
        running = pool.start(case_join_at, addresses, secrets.token_hex(32), own, world=False)
        told = [outcome.get() for outcome in running.finish()]
    assert [path["remote"].partition("%")[0] for path in told[0][0]] == [f"{network}2"] * 2


def case_join_at(addresses, key, own):
    return case_join_as(addresses[here()["process_id"]], key, {}, own)


@pytest.mark.parametrize("alone", [False, True], ids=["as the system is", "arp_ignore"])
def test_nics_of_one_subnet(hosts, alone):
    """Two cables in one subnet: each carries its own path where nobody answers for the other; else one line says so."""
    both = hosts(2)
    for k in range(2):
        if alone:
            both.do(k, "sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2")
    for k in range(2):
        both.join(0, 1, f"eth{k}", f"en{k}", addresses=(f"10.70.0.{10 * k + 1}/24", f"10.70.0.{10 * k + 2}/24"))
    (one, _), logs = join(both)
    assert ends(one[0]) == [("eth0 10.70.0.1", "10.70.0.2"), ("eth1 10.70.0.11", "10.70.0.12")]
    assert [path["state"] for path in one[0]][:2] == ["healthy"] * 2
    if alone:
        assert bytes_sent(both, 0, "eth1") > one[0][1]["sent_bytes"] > 0
    assert ("shares its subnet with another one here" in logs[0]) is not alone


def bytes_sent(both, number, interface):
    (line,) = [line for line in both.do(number, "cat /proc/net/dev").splitlines() if interface in line]
    return int(line.partition(":")[2].split()[8])


@pytest.mark.parametrize("flows", [None, 1])
def test_one_nic_each_says_what_that_protects(hosts, flows):
    """Two flows, and one line a process about them; one flow has no spare, which is a warning (C106)."""
    both = hosts(2)
    both.join(0, 1, "eth0", "en0", addresses=("10.70.0.1/24", "10.70.0.2/24"))
    (one, _), logs = join(both, **({"paths_per_nic": str(flows)} if flows else {}))
    assert len(one[0]) == (flows or 2)
    for log, nic in zip(logs, ("eth0 10.70.0.1", "en0 10.70.0.2"), strict=True):
        told = [line for line in log.splitlines() if "one NIC joins this process with" in line]
        assert len(told) == (flows is None)
        if told:
            assert (
                f"2 flows go over {nic}" in told[0]
                and "not against that of the NIC, its cable or its switch" in told[0]
            )
        assert ("no spare path to rank" in log) == (flows == 1)
