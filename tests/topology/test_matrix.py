# SPDX-License-Identifier: Apache-2.0
"""What `jhetcc topo` prints, and its ways in and out."""

import json
import re

import pytest
from trees import server

from jhetcc import cli
from jhetcc import topology as topo
from jhetcc.topology.distance import MEANINGS
from jhetcc.topology.matrix import matrix


def nothing(name):
    raise ImportError(name)


@pytest.fixture(autouse=True)
def no_options(monkeypatch):
    import os

    for name in [name for name in os.environ if name.startswith("JHETCC_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def found(tmp_path):
    return topo.discover(server(tmp_path).root, None, name="h", load=nothing)


def test_the_matrix(found):
    rows = [line.split() for line in matrix(found.hosts[0]).splitlines()]
    assert rows[0] == ["gpu0", "gpu1", "gpu2", "gpu3", "eno1", "ens0", "ens1", "CPU", "Affinity", "NUMA", "Affinity"]
    assert rows[1] == ["gpu0", "X", "PIX", "SYS", "SYS", "NODE", "PIX", "SYS", "0-7", "0"]
    assert rows[7] == ["ens1", "SYS", "SYS", "PIX", "PIX", "SYS", "SYS", "X", "8-15", "1"]
    square = [row[1:8] for row in rows[1:]]
    assert square == [list(column) for column in zip(*square, strict=True)]


def test_direct_links_stand_in_the_matrix(found):
    import dataclasses

    host = dataclasses.replace(
        found.hosts[0], links=(topo.Link("gpu0", "gpu1", "NV18"), topo.Link("gpu2", "gpu3", "XGMI"))
    )
    rows = [line.split() for line in matrix(host).splitlines()]
    assert rows[1][2] == rows[2][1] == "NV18" and rows[3][4] == rows[4][3] == "XGMI"
    page = topo.text(dataclasses.replace(found, hosts=(host,)))
    assert re.search(r"NV# +=", page) and re.search(r"XGMI +=", page)


def test_the_page_names_choices_clusters_borders_and_what_is_not_known(found):
    page = topo.text(found)
    for name in MEANINGS:
        assert re.search(rf"^  {name} +=", page, re.MULTILINE), name
    assert re.search(
        r"gpu0 +-> +ens0 +PIX +one PCIe switch between them, below 0000:11:00.0; nearer than ens1$", page, re.MULTILINE
    )
    assert re.search(r"nvidia-nccl +nvidia +nccl +unknown +0-1 +h", page)
    assert re.search(r"amd-rccl +rank 2 +h/gpu2 +ens1 +PIX", page) and re.search(
        r"amd-rccl +rank 3 +h/gpu3 +ens0 +SYS", page
    )
    assert re.search(r"HIP devices +hip-python is not installed", page)
    assert not re.search(r" $", page, re.MULTILINE)


def test_pages_of_nothing():
    assert "neither devices nor NICs" in topo.text(topo.Topology((topo.Host("h"),)))
    assert "no device takes part" in topo.text(topo.Topology(()))
    page = topo.text(
        topo.loads('{"jhetcc_topology": 1, "hosts": [{"name": "h", "devices": [{"name": "cpu0", "vendor": "cpu"}]}]}')
    )
    assert "the host has no NIC" in page and "Border ranks" not in page


# -- the command
FILE = '{"jhetcc_topology": 1, "hosts": [{"name": "left", "devices": [{"name": "gpu[0-1]", "vendor": "amd"}], "nics": [{"name": "n0"}]}]}'


def test_a_file_by_argument_and_by_option(tmp_path, monkeypatch, capsys):
    path, other = tmp_path / "t.json", tmp_path / "u.json"
    path.write_text(FILE)
    other.write_text(FILE.replace("left", "right"))
    assert cli.main(["topo", str(path)]) == 0
    assert "Host left:" in capsys.readouterr().out
    monkeypatch.setenv("JHETCC_TOPOLOGY", str(other))
    assert cli.main(["topo"]) == 0
    assert "Host right:" in capsys.readouterr().out
    assert cli.main(["topo", str(path)]) == 0
    assert "Host left:" in capsys.readouterr().out


def test_json_and_picture(tmp_path, capsys):
    path, picture = tmp_path / "t.json", tmp_path / "t.svg"
    path.write_text(FILE)
    assert cli.main(["topo", str(path), "--json", "--svg", str(picture)]) == 0
    assert topo.loads(capsys.readouterr().out) == topo.loads(FILE)
    assert picture.read_text().startswith("<svg ")
    assert cli.main(["topo", str(path), "--svg", str(tmp_path / "no" / "where.svg")]) == 2
    err = capsys.readouterr().err
    assert "No such file" in err and err.count("\n") == 1


def test_a_wrong_file_is_one_line(tmp_path, capsys):
    assert cli.main(["topo", str(tmp_path / "none.json")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("jhetcc topo: ") and err.count("\n") == 1


def test_this_machine(monkeypatch, capsys):
    monkeypatch.setenv("JHETCC_CLUSTER", "left")
    assert cli.main(["topo", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["clusters"][0]["name"] == "left"
    assert any(device["vendor"] == "cpu" for device in data["hosts"][0]["devices"])
