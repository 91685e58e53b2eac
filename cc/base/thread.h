// SPDX-License-Identifier: Apache-2.0
// Starts a thread of ours: named, and deaf to signals, which belong to the host program's threads.
#pragma once

#include <functional>
#include <thread>

namespace jhetcc {

/// `name` has at most 15 characters. The body must not let an exception out.
std::thread startThread(const char* name, std::function<void()> body);

}  // namespace jhetcc
