// SPDX-License-Identifier: Apache-2.0
// The CPU as a device: plain memory, and streams on which everything is done when the call returns. Any thread.
#pragma once

#include <memory>

#include "device/device.h"

namespace jhetcc::device::host {

std::unique_ptr<Device> create();

}  // namespace jhetcc::device::host
