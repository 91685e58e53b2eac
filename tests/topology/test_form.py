# SPDX-License-Identifier: Apache-2.0
"""The JSON form: short ones are read, others refused by name, round trips and hashes."""

import dataclasses
import itertools
import json
import pathlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jhetcc import topology as topo
from jhetcc.errors import BadArgumentError
from jhetcc.topology import form

SHORT = """{
  "jhetcc_topology": 1,
  "hosts": [
    {"name": "left[0-1]", "devices": [{"name": "gpu[0-3]", "vendor": "nvidia", "pci": "rc[4-7]/sw/gpu"}], "nics": [{"name": "n0"}]},
    {"name": "right", "devices": [{"name": "gpu0", "vendor": "amd"}]}
  ]
}"""


def test_a_short_form():
    found = topo.loads(SHORT)
    assert [host.name for host in found.hosts] == ["left0", "left1", "right"]
    assert [device.pci for device in found.hosts[1].devices] == [f"rc{k}/sw/gpu" for k in range(4, 8)]
    assert found.ranks[4] == topo.Rank("left1", "gpu0") and found.size == 9
    assert [(each.name, each.ranks) for each in found.clusters] == [
        ("nvidia-nccl", tuple(range(8))),
        ("amd-rccl", (8,)),
    ]


def test_ranks_and_clusters_by_hand():
    data = json.loads(SHORT) | {
        "ranks": ["right/gpu0", "left0/gpu1", "left1/gpu0", "left0/gpu0"],
        "clusters": [
            {"vendor": "amd", "ranks": [0]},
            {"name": "old", "vendor": "nvidia", "library": "nccl", "version": "2.20", "ranks": "1-2"},
            {"vendor": "nvidia", "version": "2.27", "ranks": "3"},
        ],
    }
    found = topo.loads(json.dumps(data))
    assert [str(each) for each in found.clusters] == [
        "amd-rccl (amd, rccl)",
        "old (nvidia, nccl, 2.20)",
        "nvidia-nccl-2.27 (nvidia, nccl, 2.27)",
    ]
    assert found.clusters[1].ranks == (1, 2)
    assert topo.loads(topo.dumps(found)) == found


def changed(path, value):
    data = json.loads(SHORT)
    *way, last = path
    place = data
    for step in way:
        place = place[step]
    place[last] = value
    return json.dumps(data)


DEVICE, NIC = ("hosts", 0, "devices", 0), ("hosts", 0, "nics", 0)


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ("[1]", "is a list, not a table"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"jhetcc_topology": 1, "jhetcc_topology": 1, "hosts": []}', "'jhetcc_topology' occurs twice"),
        ('{"hosts": []}', "lacks 'jhetcc_topology'"),
        (changed(["jhetcc_topology"], 2), "jhetcc_topology is 2; this version reads 1"),
        (changed(["jhetcc_topology"], True), "this version reads 1"),
        (changed(["host"], []), "unknown key 'host'; did you mean hosts?"),
        (changed(["hosts"], {}), "hosts is a table, not a list"),
        (changed(["hosts", 0], 3), "hosts[0]: is no table {...} with a name"),
        (changed(["hosts", 0, "nic"], []), "hosts[0]: unknown key 'nic'; did you mean nics?"),
        (changed([*DEVICE, "vendr"], "x"), "hosts[0], devices[0]: unknown key 'vendr'; did you mean vendor?"),
        (changed([*DEVICE, "vendor"], 3), "vendor is a number, not a string"),
        (changed([*DEVICE, "vendor"], None), "vendor is null, not a string"),
        (changed([*DEVICE, "socket"], "0"), "socket is a string, not a whole number"),
        (changed([*DEVICE, "socket"], True), "socket is true or false, not a whole number"),
        (changed([*DEVICE, "socket"], 1.5), "socket is a number, not a whole number"),
        (changed([*DEVICE, "socket"], -1), "0 or more"),
        (changed([*DEVICE, "memory_bytes"], 0), "memory_bytes is 0"),
        (changed([*DEVICE, "name"], "gpu[0-99999]"), "too long"),
        (changed([*DEVICE, "name"], "gpu[3-0]"), "is empty"),
        (changed([*DEVICE, "name"], "gpu[0-1]"), "the range [4-7] has 4 numbers, that of the name 2"),
        (changed([*DEVICE, "name"], "gpu0"), "the range [4-7] has 4 numbers, that of the name 1"),
        (changed([*DEVICE, "name"], "gpu[0-7]"), "the range [4-7] has 4 numbers, that of the name 8"),
        (changed(DEVICE, {"name": "gpu0"}), "lacks 'vendor'"),
        (changed([*NIC, "gbit_per_s"], "fast"), "gbit_per_s is a string, not a number"),
        (changed([*NIC, "gbit_per_s"], True), "not a number"),
        (changed([*NIC, "gbit_per_s"], -1), "gbit_per_s is -1"),
        (changed([*NIC, "is_up"], 1), "is_up is a number, not true or false"),
        (changed(["hosts", 0, "name"], "left[0-70000]"), "too long"),
        (changed(["ranks"], ["left0"]), "ranks[0]: is 'left0'; write host/device"),
        (changed(["ranks"], ["left7/gpu0"]), "there is no left7/gpu0"),
        (changed(["clusters"], [{"vendor": "nvidia", "ranks": "0-8"}]), "rank 8 runs on a device of 'amd'"),
        (changed(["clusters"], [{"vendor": "nvidia", "ranks": "0-99999"}]), "more than 65536 ranks"),
        (changed(["clusters"], [{"vendor": "nvidia", "ranks": "0..7"}]), "for example 0-3,8"),
        (changed(["clusters"], [{"vendor": "nvidia", "ranks": 7}]), "neither a list of numbers"),
        (changed(["clusters"], [{"vendor": "nvidia", "ranks": [True]}]), "neither a list of numbers"),
        (changed(["clusters"], [{"vendor": "nvidia", "ranks": "7-0"}]), "one at least"),
        (changed(["clusters"], [{"vendor": 1, "ranks": "0"}]), "vendor is a number"),
        (changed(["unknown"], [{"what": "x"}]), "unknown[0]: lacks 'why'"),
    ],
)
def test_what_is_wrong_is_refused_by_name(text, needle):
    with pytest.raises(BadArgumentError) as caught:
        topo.loads(text)
    assert needle in str(caught.value)
    assert caught.value.code == "bad_topology"


def test_a_short_file_cannot_ask_for_more_than_memory_holds():
    text = (
        SHORT.replace("left[0-1]", "left[0-60000]")
        .replace("gpu[0-3]", "gpu[0-60000]")
        .replace(', "pci": "rc[4-7]/sw/gpu"', "")
    )
    with pytest.raises(BadArgumentError, match="devices and NICs in all"):
        topo.loads(text)


def test_files(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    with pytest.raises(BadArgumentError, match=r"No such file.*JHETCC_TOPOLOGY"):
        topo.load(path)
    path.write_bytes(b"\xff\xff")
    with pytest.raises(BadArgumentError, match="cannot be read"):
        topo.load(path)
    path.write_text(SHORT)
    assert topo.load(path) == topo.loads(SHORT)
    path.write_text("{}")
    with pytest.raises(BadArgumentError, match=re.escape(str(path))):
        topo.load(path)
    path.write_text(SHORT)
    monkeypatch.setattr(form, "_BYTES_MAX", 10)
    with pytest.raises(BadArgumentError, match="larger than"):
        topo.load(path)


def test_the_hash_is_of_what_is_there():
    found = topo.loads(SHORT)
    again = topo.loads(topo.dumps(found))
    assert topo.digest(again) == topo.digest(found) and re.fullmatch("[0-9a-f]{32}", topo.digest(found))
    noted = dataclasses.replace(found, unknown=(topo.Unknown("hip", "not installed"),))
    assert topo.digest(noted) == topo.digest(found) and noted != found
    host = found.hosts[0]
    for other in (
        dataclasses.replace(host, nics=(topo.Nic("n0", gbit_per_s=100.0),)),
        dataclasses.replace(host, nics=(topo.Nic("n0", is_up=False),)),
        dataclasses.replace(host, links=(topo.Link("gpu0", "gpu1", "NV4"),)),
        dataclasses.replace(host, sockets=(topo.Socket(0, "0-7"),)),
    ):
        assert topo.digest(dataclasses.replace(found, hosts=(other, *found.hosts[1:]))) != topo.digest(found)


names = st.from_regex(r"[a-zA-Z0-9_.:@+-]{1,6}", fullmatch=True)
pci = st.one_of(
    st.just(""), st.lists(st.sampled_from(["rc0", "a", "0000:17:00.0"]), min_size=2, max_size=5).map("/".join)
)
rates = st.one_of(st.none(), st.floats(1e-3, 1e6))
addresses = st.just("") | st.ip_addresses().map(str)
sockets = st.one_of(st.none(), st.integers(0, 3))
texts = st.text(max_size=8)


@st.composite
def topologies(draw):
    hosts = []
    for name in draw(st.lists(names, max_size=4, unique=True)):
        parts = draw(st.lists(names, max_size=6, unique=True))
        cut = draw(st.integers(0, len(parts)))
        devices = tuple(
            topo.Device(part, draw(st.sampled_from(["nvidia", "amd", "cpu"])), draw(texts), draw(sockets), draw(pci))
            for part in parts[:cut]
        )
        kinds = st.sampled_from(["ethernet", "infiniband", "virtual"])
        nics = tuple(
            topo.Nic(
                part,
                draw(kinds),
                draw(names),
                draw(sockets),
                draw(pci),
                draw(rates),
                draw(addresses),
                draw(st.booleans()),
            )
            for part in parts[cut:]
        )
        links = tuple(topo.Link(a.name, b.name, "NV4", draw(rates)) for a, b in itertools.pairwise(devices))
        hosts.append(topo.Host(name, devices, nics, links))
    places = draw(st.permutations([topo.Rank(host.name, device.name) for host in hosts for device in host.devices]))
    ranks = tuple(places[: draw(st.integers(0, len(places)))])
    vendors = {topo.Rank(host.name, device.name): device.vendor for host in hosts for device in host.devices}
    label = st.sampled_from(["", "", "x"])
    identities = [topo.Identity(vendors[rank], "lib", draw(st.sampled_from(["", "1.2"]))) for rank in ranks]
    identities = [
        dataclasses.replace(each, label=(draw(label) and f"{each.vendor}{each.version}")) for each in identities
    ]
    notes = tuple(topo.Unknown(draw(texts), draw(texts)) for _ in range(draw(st.integers(0, 2))))
    return topo.Topology(tuple(hosts), ranks, topo.form_clusters(identities), notes)


@given(topologies())
@settings(max_examples=150, deadline=None)
def test_every_topology_makes_the_round_trip(topology):
    text = topo.dumps(topology)
    again = topo.loads(text)
    assert again == topology
    assert topo.dumps(again) == text and topo.digest(again) == topo.digest(topology)


def test_the_example_of_the_page_is_read():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "topology.md").read_text()
    blocks = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert blocks
    for block in blocks:
        assert topo.loads(block).size > 0
