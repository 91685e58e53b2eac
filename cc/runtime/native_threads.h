// SPDX-License-Identifier: Apache-2.0
// Threads that call vendors' libraries: nobody joins them, for one may be stuck for ever; close() waits a while for
// all.
#pragma once

#include <cstdint>
#include <functional>

#include "base/status.h"

namespace jhetcc::runtime {

/// kResource if the system gives no thread.
Status detachedThread(const char* name, std::function<void()> body);

/// Waits until none of these threads is left. False: some are stuck in a library at the deadline.
bool waitForNativeThreads(int64_t timeout_ns);

}  // namespace jhetcc::runtime
