# SPDX-License-Identifier: Apache-2.0
"""The picture: every box inside its parent, nothing on top of anything else, every text clear of every edge and line."""

import dataclasses
import itertools
import json
import xml.etree.ElementTree as ElementTree

import pytest
from trees import server

from jhetcc import topology as topo
from jhetcc.topology import layout
from jhetcc.topology import picture as picture_module
from jhetcc.topology.layout import CHARACTER, FONT, Box

SVG = "{http://www.w3.org/2000/svg}"
EIGHT = '{"jhetcc_topology": 1, "hosts": [{"name": "%s", "devices": [{"name": "gpu[0-7]", "vendor": "amd"}], "nics": [{"name": "%s"}]}]}'


def nothing(name):
    raise ImportError(name)


def mixed(left, right, nics, *, one_host=False, name="host"):
    """Two vendors; NICs by number a host."""
    parts = [("nvidia", left), ("amd", right)]
    hosts = []
    for index, (vendor, count) in enumerate(parts):
        devices = [
            {"name": f"{vendor}{k}", "vendor": vendor, "pci": f"rc0/s{k % max(nics, 1)}/{vendor}{k}"}
            for k in range(count)
        ]
        ports = [
            {
                "name": f"n{k}",
                "pci": f"rc0/s{k}/n",
                "gbit_per_s": 200,
                "network": f"rail{k % 2}",
                "address": f"10.0.{index}.{k}",
            }
            for k in range(nics)
        ]
        hosts.append({"name": f"{name}{index}", "devices": devices, "nics": ports})
    if one_host:
        hosts = [hosts[0] | {"devices": hosts[0]["devices"] + hosts[1]["devices"]}]
    return topo.loads(json.dumps({"jhetcc_topology": 1, "hosts": hosts}))


def with_down(topology):
    host = topology.hosts[0]
    nics = (dataclasses.replace(host.nics[0], is_up=False, network="far-away"), *host.nics[1:])
    return dataclasses.replace(topology, hosts=(dataclasses.replace(host, nics=nics), *topology.hosts[1:]))


def idle(topology):
    """The first rank's device takes no part."""
    identities = [topo.Identity.of_vendor(topology.device_of(rank).vendor) for rank in range(1, topology.size)]
    return dataclasses.replace(topology, ranks=topology.ranks[1:], clusters=topo.form_clusters(identities))


TOPOLOGIES = {
    "one and one": lambda path: mixed(1, 1, 1),
    "unequal": lambda path: mixed(9, 2, 4),
    "two vendors in one host": lambda path: mixed(3, 5, 2, one_host=True),
    "more NICs than devices": lambda path: mixed(1, 2, 12),
    "long names": lambda path: mixed(2, 2, 2, name="a-host-whose-name-is-much-longer-than-its-few-devices-are-wide"),
    "no NIC": lambda path: mixed(2, 2, 0),
    "a NIC that is down": lambda path: with_down(mixed(2, 2, 3)),
    "an idle device": lambda path: idle(mixed(3, 2, 2)),
    "one cluster": lambda path: topo.loads(EIGHT % ("h[0-2]", "n[0-3]")),
    "many clusters": lambda path: topo.loads(
        json.dumps(
            {
                "jhetcc_topology": 1,
                "hosts": [{"name": "h", "devices": [{"name": "cpu[0-8]", "vendor": "cpu"}], "nics": [{"name": "n0"}]}],
                "clusters": [{"vendor": "cpu", "name": f"c{k}", "ranks": [k]} for k in range(9)],
            }
        )
    ),
    "nothing": lambda path: topo.Topology(()),
    "a bare host": lambda path: topo.Topology((topo.Host("h"),)),
    "discovered": lambda path: topo.discover(
        server(path).root, [topo.Seen(p) for p in ("cpu", "cuda", "rocm", "cuda")], load=nothing
    ),
    "a version that XML would read": lambda path: topo.Topology(
        (topo.Host("h", (topo.Device("d", "cpu"),)),),
        (topo.Rank("h", "d"),),
        (topo.Cluster("c", "cpu", "mpi", "<&\"'>", (0,)),),
    ),
}


@pytest.fixture(params=TOPOLOGIES, ids=lambda name: name.replace(" ", "-"))
def drawn(request, tmp_path):
    topology = TOPOLOGIES[request.param](tmp_path)
    return topology, ElementTree.fromstring(topo.svg(topology))


def rectangle(rect):
    x, y, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def extent(text):
    """Where the letters of a text are: a monospaced character is 0.6 of its size wide, its foot 0.25 below the base line."""
    x, base = float(text.get("x")), float(text.get("y"))
    return x, base - 0.8 * FONT, x + len(text.text) * CHARACTER, base + 0.25 * FONT


def is_inside(inner, outer):
    return outer[0] < inner[0] and outer[1] < inner[1] and inner[2] < outer[2] and inner[3] < outer[3]


def meets(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def boxes(picture):
    return {rect.get("data-key"): rect for rect in picture.iter(SVG + "rect")}


def segments(picture):
    for line in picture.iter(SVG + "polyline"):
        points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            assert x0 == x1 or y0 == y1
            yield line.get("data-key"), (min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1))


def test_everything_is_there(drawn):
    topology, picture = drawn
    keys = set(boxes(picture))
    for host in topology.hosts:
        assert f"host {host.name}" in keys
        assert {f"{host.name}/{part.name}" for part in (*host.devices, *host.nics)} <= keys
        assert {f"network {nic.network}" for nic in host.nics} <= keys
    assert {f"key {k}" for k in range(len(topology.clusters))} <= keys
    assert len(list(picture.iter(SVG + "rect"))) == len(keys), "keys are unique"
    for rank, place in enumerate(topology.ranks):
        texts = [t.text for t in picture.iter(SVG + "text") if t.get("data-of") == f"{place.host}/{place.device}"]
        assert f"rank {rank}" in texts
        group = boxes(picture)[f"{place.host}/{place.device}"].get("data-parent")
        assert group == f"{place.host} cluster {topology.cluster_of(rank)}"


def test_every_box_is_inside_its_parent(drawn):
    found = boxes(drawn[1])
    for key, rect in found.items():
        if key != "picture":
            assert is_inside(rectangle(rect), rectangle(found[rect.get("data-parent")])), key
    size = [float(drawn[1].get(name)) for name in ("width", "height")]
    assert rectangle(found["picture"]) == (0, 0, *size)


def test_boxes_of_one_parent_do_not_meet(drawn):
    for a, b in itertools.combinations(boxes(drawn[1]).values(), 2):
        if a.get("data-parent") == b.get("data-parent"):
            assert not meets(rectangle(a), rectangle(b)), (a.get("data-key"), b.get("data-key"))


def test_texts_are_inside_their_box_and_clear_of_every_edge(drawn):
    found = boxes(drawn[1])
    for text in drawn[1].iter(SVG + "text"):
        where = extent(text)
        assert is_inside(where, rectangle(found[text.get("data-of")])), text.text
        for key, rect in found.items():
            box = rectangle(rect)
            crosses = meets(where, box) and not is_inside(where, box)
            assert not crosses, f"the edge of {key} crosses {text.text!r}"


def test_texts_do_not_meet_each_other_nor_a_line(drawn):
    texts = [(text.text, extent(text)) for text in drawn[1].iter(SVG + "text")]
    for (a, one), (b, other) in itertools.combinations(texts, 2):
        assert not meets(one, other), (a, b)
    for key, line in segments(drawn[1]):
        for text, where in texts:
            crossed = line[0] < where[2] and where[0] < line[2] and line[1] < where[3] and where[1] < line[3]
            touched = line[0] <= where[2] and where[0] <= line[2] and line[1] <= where[3] and where[1] <= line[3]
            assert not (crossed or touched), f"{key} crosses {text!r}"


def test_lines_lead_from_edge_to_edge_and_through_no_device(drawn):
    topology, picture = drawn
    found = {key: rectangle(rect) for key, rect in boxes(picture).items()}
    kinds = {key: rect.get("data-kind") for key, rect in boxes(picture).items()}
    ends = {}
    for key, line in segments(picture):
        for name, box in found.items():
            if kinds[name] in ("device", "nic", "key"):
                assert not (line[0] < box[2] and box[0] < line[2] and line[1] < box[3] and box[1] < line[3]), (
                    key,
                    name,
                )
                assert not (
                    line[0] == line[2] and box[0] < line[0] < box[2] and line[1] < box[3] and box[1] < line[3]
                ), (key, name)
                assert not (
                    line[1] == line[3] and box[1] < line[1] < box[3] and line[0] < box[2] and box[0] < line[2]
                ), (key, name)
        ends.setdefault(key, []).append(line)
    expected = {
        f"{topology.ranks[b.rank].host}/{topology.device_of(b.rank).name} to {b.nic}" for b in topo.borders(topology)
    }
    if len(topology.clusters) < 2:
        expected = {f"{h.name}/{c.device} to {c.nic}" for h in topology.hosts for c in topo.choose_nics(h) if c.nic}
    paths = {f"{h.name}/{n.name} to network {n.network}" for h in topology.hosts for n in h.nics if n.is_up}
    assert set(ends) == expected | paths
    for line in picture.iter(SVG + "polyline"):
        start, *_, last = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        a, b = line.get("data-key").split(" to ")
        b = b if b in found else f"{a.split('/')[0]}/{b}"
        for point, name in ((start, a), (last, b)):
            box = found[name]
            assert box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3], (line.get("data-key"), name)


def test_two_lines_never_lie_on_each_other(drawn):
    for (a, one), (b, other) in itertools.combinations(segments(drawn[1]), 2):
        if a != b and not (a.endswith(b.split(" to ")[1]) and "network" in a):
            same_row = one[1] == one[3] == other[1] == other[3] and one[0] < other[2] and other[0] < one[2]
            same_column = one[0] == one[2] == other[0] == other[2] and one[1] < other[3] and other[1] < one[3]
            assert not same_row and not same_column, (a, b)


def test_border_ranks_and_nics_that_are_down_stand_out():
    picture = ElementTree.fromstring(topo.svg(with_down(mixed(2, 2, 3))))
    found = boxes(picture)
    assert found["host0/n0"].get("stroke-dasharray") and not found["host0/n1"].get("stroke-dasharray")
    borders = {key for key, rect in found.items() if rect.get("stroke-width") == "3"}
    assert borders == {f"host{h}/{v}{k}" for h, v in ((0, "nvidia"), (1, "amd")) for k in range(2)}
    colours = {rect.get("stroke") for rect in found.values() if rect.get("data-kind") == "device"}
    assert len(colours) == 2


def test_coordinates_of_a_tall_picture_are_exact():
    box = Box("h", "picture", "host", 0.0, 1234567.5, 10.0, 10.0)
    assert 'y="1234567.5"' in picture_module._rect(box)


def test_borders_are_found_once_a_picture(monkeypatch):
    """Not once a host: an effort that grows with the square of the hosts takes half a minute for 256 of them."""
    asked = []
    monkeypatch.setattr(layout, "borders", lambda topology: asked.append(1) or topo.borders(topology))
    topo.svg(mixed(2, 2, 2))
    assert asked == [1]
