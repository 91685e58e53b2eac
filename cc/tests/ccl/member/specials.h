// SPDX-License-Identifier: Apache-2.0
// Infinities and NaNs by their bits, and what a library's sums make of them. One thread.
#pragma once

#include <cstdio>
#include <set>

#include "ccl/member/memory.h"

namespace jhetcc::ccl {

enum class Special { kInfinity, kNan, kNegativeNan };  ///< the NaNs are quiet and have a payload

/// Of rank 0; of the others: the other infinity, or zero.
inline std::vector<uint8_t> special(schedule::DataType type, Special which, bool is_first) {
  const size_t bytes = schedule::itemSize(type);
  std::vector<uint8_t> result(bytes);
  if (which != Special::kInfinity && !is_first) return result;
  const int fraction = type == schedule::DataType::kFloat16 ? 10 : bytes == 2 ? 7 : bytes == 4 ? 23 : 52;
  const int bits = static_cast<int>(bytes) * 8;
  uint64_t value = ((uint64_t{1} << (bits - 1 - fraction)) - 1) << fraction;
  if (which != Special::kInfinity) value |= (uint64_t{1} << (fraction - 1)) | 5;
  if (which == Special::kNegativeNan || (which == Special::kInfinity && is_first)) value |= uint64_t{1} << (bits - 1);
  std::memcpy(result.data(), &value, bytes);  // little endian
  return result;
}

inline std::string textOf(const std::vector<uint8_t>& little_endian) {
  std::string text;
  for (auto byte = little_endian.rbegin(); byte != little_endian.rend(); ++byte) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", *byte);
    text += digits;
  }
  return text;
}

/// The bits of all elements of a sum of these: "ffc00000", and several joined by "or" where they differ.
inline std::string sumOfSpecials(Communicator& communicator, Place& place, schedule::DataType type, int32_t rank,
                                 Special which) {
  constexpr size_t kCount = 1003;
  const std::vector<uint8_t> one = special(type, which, rank == 0);
  std::vector<uint8_t> all;
  for (size_t i = 0; i < kCount; ++i) all.insert(all.end(), one.begin(), one.end());
  Block source(place, all.size()), target(place, all.size());
  source.put(all);
  require(communicator.allReduce(source.data(), target.data(), kCount, type, schedule::ReduceOp::kSum, place.stream()),
          "special values");
  all = target.seen();
  std::set<std::string> different;
  for (auto at = all.begin(); at != all.end(); at += static_cast<ptrdiff_t>(one.size())) {
    different.insert(textOf({at, at + static_cast<ptrdiff_t>(one.size())}));
  }
  std::string text;
  for (const std::string& each : different) text += (text.empty() ? "" : " or ") + each;
  return text;
}

}  // namespace jhetcc::ccl
