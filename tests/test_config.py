# SPDX-License-Identifier: Apache-2.0
"""The option table: units, refusals with suggestions, limits that fit each other, the generated page."""

import math
import pathlib
import tomllib

import pytest

from jhetcc import config
from jhetcc.errors import BadArgumentError

ROOT = pathlib.Path(__file__).parent.parent


def test_units():
    options = config.read(
        {
            "JHETCC_CHUNK_BYTES": "8kb",
            "JHETCC_OPERATION_TIMEOUT": "inf",
            "JHETCC_INIT_TIMEOUT": "5m",
            "JHETCC_ABORT_GATHER": "250ms",
            "JHETCC_SPIN_US": "50",
            "JHETCC_PROCESS_ID": "3",
            "JHETCC_ALLOW_INSECURE": "yes",
            "JHETCC_TRANSPORT": "TCP",
        }
    )
    assert options.chunk_bytes == 8192
    assert math.isinf(options.operation_timeout)
    assert options.init_timeout == 300.0
    assert options.abort_gather == 0.25
    assert options.spin_us == 50.0
    assert options.process_id == 3
    assert options.allow_insecure
    assert options.transport == "tcp"
    assert config.read({"JHETCC_SPIN_US": "2ms"}).spin_us == 2000.0


def test_defaults():
    options = config.read({"PATH": "/bin"})
    assert options == config.Options()
    assert options.chunk_bytes is None and options.operation_timeout == 300.0 and options.warn_after == 30.0


@pytest.mark.parametrize(
    ("variable", "text", "needle"),
    [
        ("JHETCC_CHUNK_BYTES", "8 furlongs", "8kb"),
        ("JHETCC_CHUNK_BYTES", "0", "at least 1"),
        ("JHETCC_OPERATION_TIMEOUT", "soon", "10s"),
        ("JHETCC_OPERATION_TIMEOUT", "0", "longer than nothing"),
        ("JHETCC_INIT_TIMEOUT", "inf", "needs an end"),
        ("JHETCC_PROCESS_ID", "-1", "whole number"),
        ("JHETCC_ALGORITHM", "rng", "did you mean ring"),
        ("JHETCC_TRANSPORT", "carrier-pigeon", "shm, tcp"),
        ("JHETCC_LOG", "loud", "warn,net=debug"),
        ("JHETCC_PROFILE", "outo", "off, auto, or the path"),
        ("JHETCC_SECRET_FD", "x", "whole number"),
    ],
)
def test_bad_values_name_variable_value_and_remedy(variable, text, needle):
    with pytest.raises(BadArgumentError) as caught:
        config.read({variable: text})
    assert variable in str(caught.value) and text in str(caught.value) and needle in str(caught.value)
    assert caught.value.code == "bad_option"


def test_unknown_variable_is_refused_with_a_suggestion():
    with pytest.raises(BadArgumentError) as caught:
        config.read({"JHETCC_OPERATION_TIMEUOT": "10s"})
    text = str(caught.value)
    assert "did you mean JHETCC_OPERATION_TIMEOUT?" in text
    assert "JHETCC_CHUNK_BYTES" in text, "legal names are listed"
    with pytest.raises(BadArgumentError, match="did you mean chunk_bytes"):
        config.read({}, {"chunk_byte": 1})


def test_arguments_win():
    environment = {"JHETCC_PROCESS_ID": "1", "JHETCC_OPERATION_TIMEOUT": "60s"}
    options = config.read(environment, {"process_id": 2, "operation_timeout": None})
    assert options.process_id == 2 and options.operation_timeout == 60.0


def test_costs_and_where_they_are_kept():
    assert config.Options().profile == "off" and config.Options().cache_dir is None
    for text, value in (("AUTO", "auto"), ("here/costs", "here/costs"), ("Costs.json", "Costs.json")):
        assert config.read({"JHETCC_PROFILE": text}).profile == value
    assert config.difference(config.read({"JHETCC_PROFILE": "auto"}).agreed(), config.Options().agreed())
    for environment, value in (
        ({"HOME": "/home/me"}, "/home/me/.cache/jhetcc"),
        ({"HOME": "/home/me", "XDG_CACHE_HOME": "/fast"}, "/fast/jhetcc"),
        ({"HOME": "/home/me", "XDG_CACHE_HOME": "not/absolute"}, "/home/me/.cache/jhetcc"),
        ({"HOME": "/home/me", "JHETCC_CACHE_DIR": "/mine"}, "/mine"),
        ({}, None),
    ):
        assert config.read(environment).cache_dir == value
    rows = {row.name: row for row in config.settings({"HOME": "/home/me"})}
    assert (rows["cache_dir"].value, rows["cache_dir"].source) == ("/home/me/.cache/jhetcc", "XDG_CACHE_HOME, or HOME")


def test_contradicting_limits_are_refused_with_an_explanation():
    with pytest.raises(BadArgumentError) as caught:
        config.read({"JHETCC_WARN_AFTER": "20s", "JHETCC_OPERATION_TIMEOUT": "10s"})
    assert (
        "warn_after=20s" in str(caught.value)
        and "operation_timeout=10s" in str(caught.value)
        and "before" in str(caught.value)
    )
    for first, second in (("CONNECT_TIMEOUT", "INIT_TIMEOUT"), ("ABORT_GATHER", "ABORT_CONFIRM")):
        with pytest.raises(BadArgumentError, match="is not below"):
            config.read({f"JHETCC_{first}": "9s", f"JHETCC_{second}": "8s"})
    with pytest.raises(BadArgumentError, match="Raise abort_confirm"):
        config.read({"JHETCC_ABORT_GATHER": "3s"})


def test_rdma_and_encrypted_data_are_refused_together():
    with pytest.raises(BadArgumentError, match="transport=verbs and tls=all contradict each other"):
        config.read({"JHETCC_TRANSPORT": "verbs", "JHETCC_TLS": "all"})
    assert config.read({"JHETCC_TRANSPORT": "verbs"}).tls == "control"


def test_defaults_yield_to_set_limits():
    options = config.read(
        {"JHETCC_INIT_TIMEOUT": "10s", "JHETCC_OPERATION_TIMEOUT": "6s", "JHETCC_ABORT_CONFIRM": "500ms"}
    )
    assert options.connect_timeout == 10.0 and options.warn_after == 3.0 and options.abort_gather == 0.25


def test_agreed_texts():
    mine = config.read({"JHETCC_CHUNK_BYTES": "64kb", "JHETCC_PROCESS_ID": "0"}).agreed()
    assert (
        config.difference(mine, config.read({"JHETCC_CHUNK_BYTES": "64kb", "JHETCC_PROCESS_ID": "1"}).agreed()) is None
    )
    assert config.difference(mine, config.read({}).agreed()) == "chunk_bytes is 65536 here and auto there"
    assert (
        config.difference(mine, mine.replace("library=" + config.VERSION, "library=9"))
        == f"library is {config.VERSION} here and 9 there"
    )
    assert "unknown there" in str(config.difference(mine, "\n".join(mine.splitlines()[:-1])))


def test_secret_is_never_shown():
    environment = {"JHETCC_SECRET": "hunter2-hunter2-hunter2"}
    assert "hunter2" not in repr(config.read(environment))
    assert all("hunter2" not in repr(row) for row in config.settings(environment))


def test_settings_say_where_a_value_comes_from():
    rows = {row.name: row for row in config.settings({"JHETCC_OPERATION_TIMEOUT": "10s", "JHETCC_LOG": "debug"})}
    assert (rows["operation_timeout"].value, rows["operation_timeout"].source) == ("10s", "JHETCC_OPERATION_TIMEOUT")
    assert (rows["warn_after"].value, rows["warn_after"].source) == ("5s", "default, lowered to fit")
    assert (rows["chunk_bytes"].value, rows["chunk_bytes"].source) == ("auto", "default")


def test_page_is_fresh():
    page = (ROOT / "docs" / "options.md").read_text()
    assert page == config.markdown(), "run: python -m jhetcc env --markdown > docs/options.md"


def test_version_is_the_packages():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == config.VERSION


def test_algorithms_are_the_planners():
    from jhetcc.planner import ALGORITHMS, HIERARCHICAL

    names = [*ALGORITHMS, *HIERARCHICAL]
    for name in names:
        assert config.read({"JHETCC_ALGORITHM": name}).algorithm == name
    with pytest.raises(BadArgumentError) as caught:
        config.read({"JHETCC_ALGORITHM": "none of them"})
    assert f"write one of {', '.join(names)}" in str(caught.value)
