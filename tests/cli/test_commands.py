# SPDX-License-Identifier: Apache-2.0
"""The commands: right use, wrong use in one line, no traceback."""

import os
import subprocess
import sys

import pytest

from jhetcc import cli, topology
from jhetcc.cli import doctor, status


@pytest.fixture(autouse=True)
def no_options(monkeypatch):
    for name in list(os.environ):
        if name.startswith("JHETCC_"):
            monkeypatch.delenv(name)


def test_usage_and_version(capsys):
    assert cli.main(["--help"]) == 0
    assert "launch" in capsys.readouterr().out
    assert cli.main([]) == 2
    assert cli.main(["--version"]) == 0


def test_unknown_command_gets_a_suggestion(capsys):
    assert cli.main(["lanch"]) == 2
    assert "did you mean launch?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["launch", "nowhere.py"],
        ["launch", "--islands", "cuda:1", "-m", "this"],
        ["launch", "-n", "0", "-m", "this"],
        ["plan", "psum(f32[4])", "--ranks", "0"],
        ["plan", "psum of something", "--ranks", "2"],
        ["plan", "psum(f32[4])", "--ranks", "2", "--algorithm", "magic"],
        ["plan", "psum(f32[4])", "--ranks", "2", "--clusters", "1,1"],
        ["plan", "psum(f32[4])", "--clusters", "2,0"],
        ["plan", "psum(f32[4])", "--clusters", "2", "--vendors", "a,b"],
        ["plan", "psum(f32[4])", "--ranks", "2", "--vendors", "a"],
        ["plan", "psum(f32[4])", "--topology", "/nonexistent"],
        ["plan", "psum", "64 bananas", "--clusters", "2,2"],
        ["plan", "send", "64MiB", "--clusters", "2,2"],
        ["plan", "psum", "64MiB", "--clusters", "2,2", "--profile", "/nonexistent"],
        ["plan", "psum", "64MiB", "--clusters", "2,2", "--vendors", "nccl,foo"],
        ["topo", "/nonexistent"],
        ["trace", "/nonexistent"],
    ],
)
def test_wrong_use_is_one_line(words, capsys):
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"jhetcc {words[0]}: ") and err.count("\n") == 1


def test_files_that_cannot_be_used_are_named_with_the_reason(tmp_path, capsys):
    damaged = tmp_path / "damaged.json"
    damaged.write_text('{"clock": {"wall_ns": 1, "monotonic_ns": 1}, "events": [{"event": "step started"}]}')
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for words, told in (
        (["topo", "/nonexistent"], "/nonexistent: cannot be read: No such file or directory"),
        (["topo", str(binary)], f"{binary}: cannot be read: 'utf-8' codec"),
        (["topo", str(tmp_path)], f"{tmp_path}: cannot be read: Is a directory"),
        (["plan", "psum", "1kb", "--topology", "/nonexistent"], "/nonexistent: cannot be read: No such file"),
        (["plan", "psum", "1kb", "--ranks", "2", "--profile", "/nonexistent"], "--profile /nonexistent: No such file"),
        (["plan", "psum", "1kb", "--ranks", "2", "--profile", str(damaged)], f"--profile {damaged}: profile: not an"),
        (["plan", "psum", "1kb", "--ranks", "2", "--profile", str(binary)], f"--profile {binary}: 'utf-8' codec"),
        (["plan", "psum", "1kb", "--clusters", "2,2", "--vendors", ",foo"], "no library 'foo'; there are mpi, nccl,"),
        (["trace", "/nonexistent"], "cannot read /nonexistent: No such file or directory"),
        (["trace", str(tmp_path)], f"cannot read {tmp_path}: Is a directory"),
        (["trace", str(binary)], f"{binary} is no recording of a process: 'utf-8' codec"),
        (["trace", str(damaged)], f"{damaged} is no recording of a process: its events are not those of one"),
    ):
        assert cli.main(words) == 2, words
        err = capsys.readouterr().err
        assert told in err and err.count("\n") == 1, err


def test_secret(tmp_path, capsys):
    assert cli.main(["secret"]) == 0
    assert len(capsys.readouterr().out.strip()) >= 43
    path = tmp_path / "secret"
    assert cli.main(["secret", "--output", str(path)]) == 0
    assert path.stat().st_mode & 0o777 == 0o600 and path.read_text().strip() not in capsys.readouterr().out
    assert cli.main(["secret", "--output", str(path)]) == 2
    assert "File exists" in capsys.readouterr().err


def test_env(capsys, monkeypatch):
    monkeypatch.setenv("JHETCC_OPERATION_TIMEOUT", "10s")
    assert cli.main(["env"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "JHETCC_OPERATION_TIMEOUT" in line)
    assert "10s" in line and "(JHETCC_OPERATION_TIMEOUT)" in line
    monkeypatch.setenv("JHETCC_TIMEOUT", "10s")
    assert cli.main(["env"]) == 2
    assert "unknown environment variable JHETCC_TIMEOUT" in capsys.readouterr().err


def test_plan(capsys):
    assert cli.main(["plan", "psum(f32[8])", "--ranks", "2", "--print"]) == 0
    out = capsys.readouterr().out
    assert "predicted" in out and "psum(f32[8]) on 2 ranks by" in out and "send" in out


def test_plan_over_clusters(capsys, tmp_path):
    assert cli.main(["plan", "psum", "64MiB", "--clusters", "4,4", "--vendors", "nccl,"]) == 0
    out = capsys.readouterr().out
    assert "psum(f32[16777216]) on 8 ranks" in out and "bounced through host memory: 0 bytes" in out
    for words in ("all_gather 1kb", "reduce 1kb", "scatter 1kb", "ppermute 1kb --dtype bf16", "psum_scatter 1kb"):
        assert cli.main(["plan", *words.split(), "--clusters", "2,1", "--algorithm", "hierarchical"]) == 0
        assert "border of cluster 1: rank 2" in capsys.readouterr().out
    machines = tmp_path / "topology.json"
    machines.write_text(
        '{"jhetcc_topology": 1, "hosts": [{"name": "a", "devices": [{"name": "g[0-1]", "vendor": "amd"}], "nics": [{"name": "e"}]},'
        ' {"name": "b", "devices": [{"name": "g[0-2]", "vendor": "nvidia"}], "nics": [{"name": "e"}]}]}'
    )
    words = ["plan", "psum", "64MiB", "--topology", str(machines), "--algorithm", "hierarchical"]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "3 ranks by nccl" in out and "border of cluster 1: rank 2 by b/e, 100.0% of its bytes" in out
    profile = tmp_path / "profile.json"
    profile.write_text('{"form": 1, "tcp": {"alpha": 1.0, "beta": 1e-9}}')
    assert cli.main(["plan", "psum", "64MiB", "--clusters", "4,4", "--profile", str(profile)]) == 0
    assert "us predicted" in capsys.readouterr().out


_ONE_HOST = '{"jhetcc_topology": 1, "hosts": [{"name": "here", "devices": [%s]}]}'
_TWO_HOSTS = (
    '{"jhetcc_topology": 1, "hosts": [{"name": "a", "devices": [{"name": "g[0-1]", "vendor": "amd"}]},'
    ' {"name": "b", "devices": [{"name": "g[0-2]", "vendor": "nvidia"}]}]}'
)


def test_plan_for_this_machine_or_an_imagined_one(capsys, tmp_path, monkeypatch):
    """The bare command plans for JHETCC_TOPOLOGY, else for what `jhetcc topo` shows; where that is one rank it says what to add."""
    here = _ONE_HOST % '{"name": "gpu[0-3]", "vendor": "nvidia"}'
    monkeypatch.setattr(topology, "discover", lambda **_: topology.loads(here))
    assert cli.main(["plan", "psum", "64MiB"]) == 0
    out, err = capsys.readouterr()
    assert (
        out.startswith("this machine: 4 ranks on 1 host\n") and "psum(f32[16777216]) on 4 ranks by" in out and not err
    )
    here = _ONE_HOST % '{"name": "cpu0", "vendor": "cpu"}'
    assert cli.main(["plan", "psum", "64MiB"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("this machine: 1 rank on 1 host\n") and "predicted" in out
    assert err.startswith("jhetcc plan: this machine has one rank") and "--ranks N" in err and err.count("\n") == 1
    here = _ONE_HOST % ""
    assert cli.main(["plan", "psum", "64MiB"]) == 2
    err = capsys.readouterr().err
    assert "no ranks to plan for" in err and "--ranks N" in err and err.count("\n") == 1
    file = tmp_path / "imagined.json"
    file.write_text(_TWO_HOSTS)
    monkeypatch.setenv("JHETCC_TOPOLOGY", str(file))
    assert cli.main(["plan", "psum", "64MiB"]) == 0
    out, err = capsys.readouterr()
    assert (
        out.startswith(f"JHETCC_TOPOLOGY={file}: 5 ranks on 2 hosts\n")
        and "link cluster 0 -> cluster 1" in out
        and not err
    )
    assert cli.main(["plan", "psum", "64MiB", "--ranks", "3"]) == 0
    assert "on 3 ranks by" in capsys.readouterr().out  # what is said counts more than what is set


def test_plan_without_any_argument_about_machines():
    """On whatever machine this is, also one without accelerators."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jhetcc", "plan", "psum", "64MiB"],
        env=dict(os.environ) | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("this machine: ") and "* " in done.stdout


def test_doctor_names_what_it_checks(capsys):
    code = cli.main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    names = {line.split()[0] + " " + line[9:20].strip() for line in lines[:-1]}
    assert {name.split(maxsplit=1)[1] for name in names} >= {
        "python",
        "jax",
        "xla ffi",
        "simd",
        "cma",
        "memfd",
        "interfaces",
        "cpus",
    }
    assert (code == 0) == (lines[-1] == "ready")


def test_doctor_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "CHECKS", (lambda: doctor.Finding("thing", "missing", "it is not there", "get it"),))
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().out == "missing  thing       it is not there; get it\nnot ready: thing missing\n"


def test_doctor_refuses_a_jax_out_of_range(monkeypatch):
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda package: "0.9.1")
    assert doctor.check_jax().state == "missing"
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda package: "0.12.0")
    assert doctor.check_jax().state == "ok"


def test_module_entry():
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jhetcc", "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and done.stdout.count(".") == 2


def test_status_names_the_rank_by_whose_way_two_others_meet():
    path = {
        "path": 65535,
        "state": "healthy",
        "tier": 255,
        "local": "relay",
        "remote": "rank 2",
        "bytes_per_second": 0.0,
    }
    path |= {"sent_bytes": 0, "received_bytes": 0, "resent_bytes": 0, "last_event": "", "seconds_since": None}
    other = path | {"path": 0, "state": "lost", "tier": 0, "local": "eth0 10.0.0.1", "remote": "10.0.0.2"}
    rank = {"rank": 0, "operation": None, "seconds_in_operations": 0.0, "rails": {"1": [other, path]}}
    place = {"number": 0, "of": 3, "host": "a", "pid": 1}
    lines = status.lines({"process": place, "ended": None, "ranks": [rank]})
    assert lines[-2].startswith("      0 lost     eth0 10.0.0.1 -> 10.0.0.2, "), lines
    assert lines[-1].startswith("      relay healthy  by way of rank 2, 0 B sent"), lines
    assert not any("65535" in line or "spare" in line for line in lines)


@pytest.mark.parametrize(
    ("sent", "rate", "told"),
    [
        (1234567, 2e9, "tcp a -> b, 1.23 MB sent, 2 GB/s"),
        (999, None, "tcp a -> b, 999 B sent"),
        (None, None, "tcp a -> b"),
    ],
)
def test_status_of_one_path_tells_what_is_known(sent, rate, told):
    path = {"path": 0, "state": "healthy", "last_event": "tcp a -> b", "sent_bytes": sent, "bytes_per_second": rate}
    rank = {"rank": 0, "operation": None, "seconds_in_operations": 0.0, "rails": {"1": [path]}}
    place = {"number": 0, "of": 2, "host": "a", "pid": 1}
    assert status.lines({"process": place, "ended": None, "ranks": [rank]})[-1] == f"    to rank 1: {told}"
