// SPDX-License-Identifier: Apache-2.0
// For tests: a host access to a virtual accelerator's memory ends the process with a text instead of a bare SIGSEGV.
#pragma once

#include "base/status.h"

namespace jhetcc::device::fake {

constexpr int kStrayExit = 86;

/// Of the whole process, from now on. The text names address, allocation and device; the exit status is kStrayExit.
/// Faults elsewhere go to the handler that was there before.
Status catchStrays();

}  // namespace jhetcc::device::fake
