#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes what reads bytes of strangers, for $1 seconds (25): libFuzzer, which comes with clang, from the corpus in cc/tests/fuzz/corpus.
# Where there is no clang and none can be installed, says so in one line; the corpus itself is replayed by test_fuzz in every build.
# What it finds is written to build/fuzz: `fuzz_hostile FILE` runs it again, and a fix adds it to the corpus.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-25}

# The newest clang++ that has libFuzzer.
find_clang() {
  local candidate
  for candidate in clang++ $(compgen -c clang++- | grep -E '^clang\+\+-[0-9]+$' | sort -t- -k2 -n -r -u); do
    if echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
      "$candidate" -x c++ -fsanitize=fuzzer,address - -o /dev/null > /dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
}

install_clang() {
  [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null || return 1
  apt-get update || return 1
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -y --no-install-recommends clang libclang-rt-dev || apt-get install -y clang
}

clang=$(find_clang)
if [ -z "$clang" ]; then
  install_clang > /dev/null 2>&1 || true
  clang=$(find_clang)
fi
if [ -z "$clang" ]; then
  echo "fuzzing skipped: no clang++ with libFuzzer, and apt-get could not install one"
  exit 0
fi

cmake --preset fuzz -DCMAKE_CXX_COMPILER="$clang" > /dev/null
cmake --build --preset fuzz > build/fuzz.log 2>&1 || { cat build/fuzz.log; exit 1; }
mkdir -p build/fuzz
corpus=$(mktemp -d)
trap 'rm -rf "$corpus"' EXIT
steady="$(setarch -R true 2> /dev/null && echo 'setarch -R')" # older sanitizers do not bear much randomisation of addresses
export JHETCC_FUZZ_SEEDS=$corpus # what honest peers say in this version
if $steady build/tests/fuzz/cc/tests/fuzz_hostile "$corpus" cc/tests/fuzz/corpus -max_total_time="$seconds" -max_len=4096 -timeout=10 \
  -rss_limit_mb=2048 -artifact_prefix=build/fuzz/ > build/fuzz.log 2>&1; then
  grep -E '^(Done|stat::)' build/fuzz.log
else
  tail -60 build/fuzz.log
  exit 1
fi
