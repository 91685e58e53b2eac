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
/// Without the Python lock while alive. A daemon thread that comes back when the interpreter ends never gets the lock
/// again: Python would unwind it by force, through C++ that forbids it, and end the process with an abort. It rests
/// here instead.
class LockReleased {
 public:
  LockReleased() : state_(PyEval_SaveThread()) {}
  ~LockReleased() {
    restIfExiting();
    PyEval_RestoreThread(state_);
  }
  LockReleased(const LockReleased&) = delete;
  LockReleased& operator=(const LockReleased&) = delete;
  /// The calling thread ends the interpreter: from now on the others rest.
  static void beginExit();
  static void restIfExiting();

 private:
  PyThreadState* state_;
};

/// True when the main thread has a signal to handle (Ctrl-C): takes the Python lock for the look.
bool interrupted();

void bindProcess(nanobind::module_& module);
void bindRawCall(nanobind::module_& module);
void bindNet(nanobind::module_& module);
void bindReduce(nanobind::module_& module);
void bindFfi(nanobind::module_& module);
void bindLog(nanobind::module_& module);
void bindLibrary(nanobind::module_& module);

}  // namespace jhetcc::py
