// SPDX-License-Identifier: Apache-2.0
// The fingerprint ranks compare: 64-bit FNV-1a. Not for secrets.
#pragma once

#include <cstdint>
#include <string_view>

namespace jhetcc {

constexpr uint64_t kFnvOffset = 0xcbf29ce484222325ULL;
constexpr uint64_t kFnvPrime = 0x100000001b3ULL;

/// Chains: hash(b, hash(a)) is the hash of a followed by b.
constexpr uint64_t hashText(std::string_view text, uint64_t hash = kFnvOffset) {
  for (char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * kFnvPrime;
  return hash;
}

/// Mixes eight bytes in, least significant first.
constexpr uint64_t hashNumber(uint64_t number, uint64_t hash) {
  for (int i = 0; i < 8; ++i) hash = (hash ^ ((number >> (8 * i)) & 0xff)) * kFnvPrime;
  return hash;
}

}  // namespace jhetcc
