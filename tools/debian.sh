#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages the C++ tests use where they are missing and may be installed; else says in one line what is skipped.
set -euo pipefail

missing=()
[ -e /usr/include/doctest/doctest.h ] || missing+=(doctest-dev)
command -v ccache > /dev/null || missing+=(ccache)
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
  (apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}") > /dev/null 2>&1 && exit 0
  why="apt-get could not install it"
else
  why="not root, or no apt-get"
fi
case " ${missing[*]} " in
  *doctest-dev*) echo "debian packages: ${missing[*]} missing ($why): the C++ tests are skipped" ;;
  *) echo "debian packages: ${missing[*]} missing ($why): C++ is compiled without a cache" ;;
esac
