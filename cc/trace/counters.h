// SPDX-License-Identifier: Apache-2.0
// Totals since the start, cheap enough to always count. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace jhetcc::trace {

enum class Counter : uint8_t {
  kBytesMoved = 0,  ///< by operations, sent and received
  kOperationsStarted,
  kOperationsFinished,
  kOperationsFailed,
  kSleeps,
  kAborts,
  kCounters,
};
constexpr size_t kCounters = static_cast<size_t>(Counter::kCounters);

constexpr const char* counterName(Counter counter) {
  constexpr const char* kNames[] = {
      "bytes_moved", "operations_started", "operations_finished", "operations_failed", "sleeps", "aborts"};
  static_assert(std::size(kNames) == kCounters);
  return kNames[static_cast<size_t>(counter)];
}

/// Each total is exact; totals read together are of slightly different moments.
class Counters {
 public:
  void add(Counter counter, uint64_t amount = 1) {
    totals_[static_cast<size_t>(counter)].fetch_add(amount, std::memory_order_relaxed);
  }
  uint64_t get(Counter counter) const { return totals_[static_cast<size_t>(counter)].load(std::memory_order_relaxed); }
  std::array<uint64_t, kCounters> snapshot() const {
    std::array<uint64_t, kCounters> values{};
    for (size_t i = 0; i < kCounters; ++i) values[i] = totals_[i].load(std::memory_order_relaxed);
    return values;
  }

 private:
  std::array<std::atomic<uint64_t>, kCounters> totals_{};
};

}  // namespace jhetcc::trace
