# SPDX-License-Identifier: Apache-2.0
"""jhetcc demo failover, a short run of each kind: same bits as undisturbed, a picture, nothing left; and that its checks can say no."""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree

import pytest
from processes import environment

from jhetcc.cli import demo
from jhetcc.cli.demo_picture import Curve, Mark, Panel, svg
from jhetcc.errors import UnavailableError

DEADLINE_S = 120
TOOLS = all(shutil.which(name) for name in ("unshare", "nsenter", "ip", "tc"))
needs_root = pytest.mark.skipif(os.geteuid() != 0 or not TOOLS, reason="network namespaces need root, ip and tc")


def of_session(leader):
    """Processes below one, by number: it leads a group, and those that it starts lead their own."""
    found, children = [], {}
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/stat", encoding="ascii") as file:
                children.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(number))
        except OSError:
            continue
    waiting = [leader]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def play(tmp_path, *arguments):
    path = tmp_path / "failover.svg"
    words = [sys.executable, "-P", "-m", "jhetcc", "demo", "failover", "--svg", str(path), *arguments]
    with subprocess.Popen(
        words, env=environment(1, {}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
    ) as process:
        seen = set()
        lines = []
        for line in process.stdout:
            lines.append(line)
            seen |= set(of_session(process.pid))
        process.wait(DEADLINE_S)
    output = "".join(lines)
    assert process.returncode == 0, output
    assert "check passed: weights bit-identical" in output and "check failed" not in output
    assert len(seen) >= 2 and not [one for one in seen if os.path.exists(f"/proc/{one}")], output
    return output, xml.etree.ElementTree.parse(path).getroot()


def curves(picture):
    return [one.get("data-name") for one in picture.iter("{http://www.w3.org/2000/svg}polyline")]


NAMES = ["path 0", "path 1", "path 2", "step time", "undisturbed", "with faults"]


def test_with_addresses_of_loopback(tmp_path):
    output, picture = play(tmp_path, "--loopback", "--steps", "100", "--links", "3")
    assert "path 1: 127.0.0.3 closed" in output and curves(picture) == NAMES


@needs_root
def test_with_links_between_namespaces(tmp_path):
    output, picture = play(tmp_path, "--steps", "90", "--links", "3", "--mbit", "400")
    assert "path 1: nic1 down" in output and "path 2: nic2 swallows all, silently" in output
    assert curves(picture) == NAMES
    titles = [one.text for one in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert titles.count("path 2: given back") == 3  # in each diagram


def trained(moved, losses=1, digest="a"):
    """One link, taken at 1.5 and given back at 3.5; a step a second, with what it had carried by then."""
    one = demo.Trained()
    for host in (0, 1):
        for time, count in enumerate(moved):
            path = {"bytes": count, "state": "healthy", "losses": losses, "event": ""}
            one.steps[host].append({"step": time, "time": float(time), "seconds": 1.0, "loss": 1.0, "paths": [path]})
        one.ends[host] = {"digest": digest, "aborts": 0}
    one.marks = [(1.5, "taken", False, 0), (3.5, "back", True, 0)]
    return one


def test_a_link_that_was_not_hit_is_named():
    assert demo.missed(trained([1, 2, 2, 2, 3, 4]), 1) == []
    assert demo.missed(trained([1, 2, 2, 2, 3, 4], losses=0), 1) == ["path 0 was never lost"]
    assert demo.missed(trained([0, 0, 2, 2, 3, 4]), 1) == ["path 0 carried nothing before it was taken away"]
    assert demo.missed(trained([1, 2, 2, 2, 2, 2]), 1) == ["path 0 carried nothing after its return"]
    on_loopback = trained([1, 2, 2, 2, 2, 2])
    assert demo.missed(on_loopback, 1, is_shaped=False) == []
    on_loopback.steps[0][-1]["paths"] = [{"bytes": 2, "state": "settling", "losses": 1}]
    assert demo.missed(on_loopback, 1, is_shaped=False) == ["path 0 did not come back"]


def test_other_weights_are_found(tmp_path, capsys):
    values = demo.parse(["failover", "--svg", str(tmp_path / "x.svg")])
    hosts = demo.Loopback(1, print)
    moved = [1, 2, 2, 2, 3, 4]
    assert demo.report(values, hosts, trained(moved), trained(moved)) == 0
    assert "check passed" in capsys.readouterr().out
    assert demo.report(values, hosts, trained(moved), trained(moved, digest="b")) == 1
    said = capsys.readouterr().out
    assert "check failed: the weights differ" in said and "check passed" not in said


def test_without_root_there_are_no_namespaces(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnavailableError, match="network namespaces need root"):
        demo.Namespaces(3, 100)


def test_a_picture_has_curves_marks_and_no_markup_of_texts():
    text = svg("<a>", [Panel("b", [Curve("c & d", [(0, 1), (2, 0)], "#000000")])], [Mark(1, "down <", False)])
    root = xml.etree.ElementTree.fromstring(text)
    assert curves(root) == ["c & d"]
    (line,) = root.iter("{http://www.w3.org/2000/svg}line")
    assert line.get("x1") == line.get("x2") == "450"
