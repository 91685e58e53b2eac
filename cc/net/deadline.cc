// SPDX-License-Identifier: Apache-2.0
#include "net/deadline.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "base/system_text.h"

namespace jhetcc::net {

Deadline Deadline::within(int64_t ns) const {
  const int64_t now_ns = clock.nowNs();
  return {clock, std::min(at_ns, now_ns > INT64_MAX - ns ? INT64_MAX : now_ns + ns), cancelled};
}

Status checkDeadline(const Deadline& deadline, const std::string& what) {
  if (deadline.isCancelled()) {
    return Status(Kind::kAborted, Scope::kCall, "cancelled", what + " was cancelled");
  }
  if (deadline.remainingNs() <= 0) {
    return Status(Kind::kTimeout, Scope::kCall, "deadline", what + " did not finish before its deadline");
  }
  return Status::ok();
}

int pollTimeoutMs(const Clock& clock, int64_t at_ns, int64_t slice_ns) {
  if (at_ns == INT64_MAX && slice_ns == INT64_MAX) return -1;
  const int64_t wait_ns = std::min(at_ns == INT64_MAX ? INT64_MAX : at_ns - clock.nowNs(), slice_ns);
  if (wait_ns <= 0) return 0;
  return static_cast<int>(std::min<int64_t>((wait_ns + kNsPerMs - 1) / kNsPerMs, 60'000));
}

Status waitFor(int fd, short events, const Deadline& deadline, const std::string& what) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, pollTimeoutMs(deadline.clock, deadline.at_ns, kSliceNs));
    if (ready > 0) return Status::ok();
    if (ready < 0 && errno != EINTR) {
      return Status(Kind::kInternal, Scope::kCall, "poll", what + ": poll failed: " + systemText(errno));
    }
    JHETCC_RETURN_IF_ERROR(checkDeadline(deadline, what));
  }
}

}  // namespace jhetcc::net
