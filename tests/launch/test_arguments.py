# SPDX-License-Identifier: Apache-2.0
"""The launcher's command line."""

import math

import pytest

from jhetcc.errors import BadArgumentError, UnavailableError
from jhetcc.launch import Island, parse_islands, read_arguments


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("")
    return str(path)


def test_islands():
    assert parse_islands("cpu:2,cpu:1,cpu") == (Island("cpu", 2), Island("cpu", 1), Island("cpu", 1))


def test_islands_with_a_library():
    found = parse_islands("cpu:2,cpu:1@oneccl, cpu@mpi,cpu:2@none")
    assert found == (Island("cpu", 2), Island("cpu", 1, "oneccl"), Island("cpu", 1, "mpi"), Island("cpu", 2, "none"))
    assert [str(each) for each in found] == ["cpu:2", "cpu:1@oneccl", "cpu:1@mpi", "cpu:2@none"]


@pytest.mark.parametrize("text", ["cpu:1@", "cpu:1@ccl", "cpu@mpi@mpi", "cpu:2,cpu:1@MPI"])
def test_unknown_libraries(text):
    with pytest.raises(BadArgumentError, match=r"unknown library .* write cpu:N@NAME, with NAME none, oneccl or mpi"):
        parse_islands(text)


@pytest.mark.parametrize("name", ["oneccl", "mpi"])
def test_a_library_for_one_rank_of_a_process(name):
    with pytest.raises(BadArgumentError, match=f"{name} joins one rank of a process.*write cpu:1@{name} 3 times"):
        parse_islands(f"cpu:1,cpu:3@{name}")


@pytest.mark.parametrize("text", ["", "cpu:", "cpu:0", "cpu:x", "cpu:-1", "cpu:2,", "npu:1", "cpu:99999"])
def test_bad_islands(text):
    with pytest.raises(BadArgumentError, match="cpu:N"):
        parse_islands(text)


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_platforms_without_devices_are_refused_by_name(platform):
    with pytest.raises(UnavailableError, match=f"platform {platform}"):
        parse_islands(f"cpu:1,{platform}:1")


def test_the_script_keeps_its_arguments(script):
    job = read_arguments(["-n", "3", "--timeout", "5", script, "-n", "7", "--islands", "x", "--", "-m"])
    assert job.islands == (Island("cpu", 1),) * 3 and job.timeout == 5.0
    assert job.command == (script, "-n", "7", "--islands", "x", "--", "-m")
    assert read_arguments(["--", script, "-h"]).command == (script, "-h")


def test_grace(script):
    assert read_arguments([script]).grace == 3.0
    assert read_arguments(["--grace", "0.5", script]).grace == 0.5
    assert read_arguments(["--grace", "inf", script, "--grace", "7"]).grace == math.inf


def test_module():
    assert read_arguments(["-n", "2", "-m", "json.tool", "--help"]).command == ("-m", "json.tool", "--help")


def test_one_process_is_the_default(script):
    assert read_arguments([script]).islands == (Island("cpu", 1),)


@pytest.mark.parametrize(
    "arguments",
    [
        ["-n", "0"],
        ["-n", "2"],
        ["nowhere.py"],
        ["-m"],
        ["--timeout", "0", "-m", "x"],
        ["--grace", "-1", "-m", "x"],
        ["--grace", "nan", "-m", "x"],
    ],
)
def test_bad_usage(arguments):
    with pytest.raises(BadArgumentError, match="jhetcc launch --help"):
        read_arguments(arguments)


def test_number_and_islands_exclude_each_other(script, capsys):
    with pytest.raises(SystemExit):
        read_arguments(["-n", "2", "--islands", "cpu:1", script])
    assert "not allowed with" in capsys.readouterr().err
