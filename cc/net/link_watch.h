// SPDX-License-Identifier: Apache-2.0
// Hears from the kernel that interfaces or addresses changed: a descriptor for a poll loop. One thread.
#pragma once

#include "base/fd.h"
#include "base/status.h"

namespace jhetcc::net {

/// What changed is not told: whoever hears of it looks at listInterfaces(). So nothing is missed where the kernel drops
/// messages.
class LinkWatch {
 public:
  /// kUnavailable where the system offers no such socket.
  static Result<LinkWatch> create();
  /// Readable when something changed; -1 where there is no watch.
  int descriptor() const { return fd_.get(); }
  /// Takes what came.
  void clear();

  LinkWatch() = default;

 private:
  explicit LinkWatch(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace jhetcc::net
