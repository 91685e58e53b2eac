// SPDX-License-Identifier: Apache-2.0
// How long a call may wait, and who may end it early. Every wait of this room takes one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace jhetcc::net {

/// `cancelled` is asked on the waiting thread at least every 50 ms; it may be empty.
struct Deadline {
  const Clock& clock;
  int64_t at_ns;
  std::function<bool()> cancelled = {};

  static Deadline after(const Clock& clock, int64_t ns, std::function<bool()> cancelled = {}) {
    return {clock, clock.nowNs() + ns, std::move(cancelled)};
  }
  int64_t remainingNs() const { return at_ns - clock.nowNs(); }
  bool isCancelled() const { return cancelled && cancelled(); }
  /// The earlier of this and now + ns.
  Deadline within(int64_t ns) const;
};

constexpr int64_t kSliceNs = 50 * kNsPerMs;

/// Ok while there is time; kTimeout or kAborted, with `what` ("receiving from ...") in front.
Status checkDeadline(const Deadline& deadline, const std::string& what);

/// Waits for poll() events on `fd` (errors and hang-ups count as ready; the next read or write tells).
Status waitFor(int fd, short events, const Deadline& deadline, const std::string& what);

/// poll() timeout until `at_ns`, rounded up, within [0, slice]; -1 where at_ns is INT64_MAX and no slice is given.
int pollTimeoutMs(const Clock& clock, int64_t at_ns, int64_t slice_ns = INT64_MAX);

}  // namespace jhetcc::net
