// SPDX-License-Identifier: Apache-2.0
// The FFI handlers, and the process they serve. Any thread.
#pragma once

#include <memory>
#include <string>

#include "runtime/process.h"

namespace jhetcc::ffi_room {

/// The process every handler uses; null after close(). Calls in flight keep the old one alive.
void setProcess(std::shared_ptr<runtime::Process> process);
std::shared_ptr<runtime::Process> currentProcess();

/// Addresses of the XLA_FFI_Handler functions.
void* collectiveHandler();
void* rankHandler();

/// FFI API version these handlers were compiled against.
int apiMajor();
int apiMinor();

/// Text that carries a status through XLA; jhetcc/errors.py reads it back.
std::string encodeStatus(const Status& status);

}  // namespace jhetcc::ffi_room
