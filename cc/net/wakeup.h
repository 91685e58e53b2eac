// SPDX-License-Identifier: Apache-2.0
// Wakes a poll loop from another thread.
#pragma once

#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>

#include "base/fd.h"
#include "base/status.h"
#include "base/system_text.h"

namespace jhetcc::net {

class Wakeup {
 public:
  static Result<Wakeup> create() {
    Fd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!fd.isOpen()) {
      return Status(Kind::kResource, Scope::kProcess, "eventfd", "no eventfd: " + systemText(errno));
    }
    return Wakeup(std::move(fd));
  }
  /// Any thread.
  void signal() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof(one));  // full means signalled already
  }
  /// The loop's thread, when descriptor() was readable.
  void clear() {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(fd_.get(), &count, sizeof(count));
  }
  int descriptor() const { return fd_.get(); }

 private:
  explicit Wakeup(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace jhetcc::net
