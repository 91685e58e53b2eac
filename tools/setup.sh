#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the two virtual environments of a checkout: $VENV to run in, $VENV/build to build with. Says in one line what is missing.
# Usage: tools/setup.sh PYTHON VENV
set -euo pipefail
python=$1 venv=$2

fail() {
  echo "setup: $*" >&2
  exit 1
}

command -v "$python" > /dev/null || fail "no $python found: install Python 3.11 or later, or name one with PYTHON=..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$python is $("$python" -V 2>&1): Python 3.11 or later is needed, name one with PYTHON=..."
compiler=${CXX:-c++}
command -v "$compiler" > /dev/null || fail "no C++ compiler $compiler found: install one (Debian: apt-get install g++), or set CXX=..."

make_venv() {
  [ -x "$1/bin/pip" ] && return
  if "$python" -c 'import ensurepip' 2> /dev/null; then
    "$python" -m venv "$1"
  elif "$python" -m pip --version > /dev/null 2>&1; then
    # Debian splits ensurepip off; an installed pip can fill the environment just as well.
    "$python" -m venv --without-pip "$1"
    "$python" -m pip --quiet --python "$1/bin/python" install pip
  else
    fail "$python has neither ensurepip nor pip: install one (Debian: apt-get install python3-venv)"
  fi
}
make_venv "$venv"
make_venv "$venv/build"

# The build requirements of pyproject.toml, in one place that stays, so that rebuilds are incremental.
requires=$("$python" -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"]))')
printf '%s\ncmake\nninja\n' "$requires" > "$venv/build/requirements.txt"
"$venv/build/bin/pip" install --quiet --disable-pip-version-check -r "$venv/build/requirements.txt"
