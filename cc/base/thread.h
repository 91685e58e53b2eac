// SPDX-License-Identifier: Apache-2.0
// Starts a thread of ours: named, and deaf to signals, which belong to the host program's threads.
#pragma once

#include <functional>
#include <thread>

#include "base/status.h"

namespace jhetcc {

/// `name` has at most 15 characters and outlives the call's thread (a literal). The body must not let an exception out.
/// kResource if the system gives no thread.
Result<std::thread> startThread(const char* name, std::function<void()> body);

}  // namespace jhetcc
