// SPDX-License-Identifier: Apache-2.0
// Shared by the topic files of _core.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>

#include "base/status.h"

namespace jhetcc::py {

/// Raises the Python error of this status; nothing when it is ok. The Python lock is held.
void raiseIfError(const Status& status);
/// The same after a wait: one that Ctrl-C ended has its KeyboardInterrupt set already, which goes out instead.
void raiseAfterWait(const Status& status);
/// True when the main thread has a signal to handle (Ctrl-C): takes the Python lock for the look.
bool interrupted();

void bindProcess(nanobind::module_& module);
void bindRawCall(nanobind::module_& module);
void bindNet(nanobind::module_& module);
void bindReduce(nanobind::module_& module);
void bindFfi(nanobind::module_& module);
void bindLog(nanobind::module_& module);

}  // namespace jhetcc::py
