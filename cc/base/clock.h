// SPDX-License-Identifier: Apache-2.0
// Time is handed in, so that the simulator can play it.
#pragma once

#include <cstdint>

namespace jhetcc {

class Clock {
 public:
  virtual ~Clock() = default;
  /// Monotonic nanoseconds; only differences mean anything.
  virtual int64_t nowNs() const = 0;
};

/// CLOCK_MONOTONIC.
class SystemClock final : public Clock {
 public:
  int64_t nowNs() const override;
};

constexpr int64_t kNsPerMs = 1'000'000;

}  // namespace jhetcc
