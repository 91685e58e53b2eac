# SPDX-License-Identifier: Apache-2.0
"""Where a cluster's library is looked for."""

import pytest

import jhetcc
from jhetcc.world.library import find


@pytest.fixture
def fetched(tmp_path):
    """A folder as `make libraries` makes it, with an empty file for each library."""
    for file in ("oneccl/libccl.so.2", "mpich/lib/libmpi_abi.so.1", "mpich/lib/mpich/libfabric.so.1"):
        path = tmp_path / "libraries" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / "libraries"


def test_a_folder_with_a_folder_a_library(fetched, tmp_path):
    assert find("oneccl", str(fetched), "/nowhere") == str(fetched / "oneccl")
    assert find("mpi", str(fetched), "/nowhere") == str(fetched / "mpich")
    intel = tmp_path / "other" / "impi" / "lib" / "libmpi_abi.so.1"
    intel.parent.mkdir(parents=True)
    intel.touch()
    assert find("mpi", str(tmp_path / "other"), "/nowhere") == str(tmp_path / "other" / "impi")


@pytest.mark.parametrize("below", ["oneccl", "mpich/lib", "mpich/lib/libmpi_abi.so.1", "nothing"])
def test_any_other_path_stays_as_it_is(fetched, below):
    name = "oneccl" if below == "oneccl" else "mpi"
    assert find(name, str(fetched / below), str(fetched.parent)) == str(fetched / below)


def test_without_a_path_the_python_environment_comes_before_the_system(fetched):
    assert find("mpi", None, str(fetched.parent)) == str(fetched / "mpich")
    assert find("oneccl", "", str(fetched.parent)) == str(fetched / "oneccl")
    assert find("oneccl", None, "/nowhere") == find("nccl", None, str(fetched.parent)) == ""


@pytest.mark.parametrize("path", ["/nowhere/at/all", "."])
def test_a_place_that_is_not_there_is_refused_of_a_process_alone_too(monkeypatch, path):
    monkeypatch.setenv("JHETCC_LIBRARY", "mpi")
    monkeypatch.setenv("JHETCC_LIBRARY_PATH", path)
    if path == ".":
        jhetcc.init(num_processes=1, devices=1).close()  # it calls no library, so none is loaded
        return
    with pytest.raises(
        jhetcc.UnavailableError, match=r"JHETCC_LIBRARY_PATH=/nowhere/at/all: there is no such"
    ) as caught:
        jhetcc.init(num_processes=1, devices=1)
    assert caught.value.code == "library_missing"
