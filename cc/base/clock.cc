// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <ctime>

namespace jhetcc {

int64_t SystemClock::nowNs() const {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

}  // namespace jhetcc
