// SPDX-License-Identifier: Apache-2.0
// Ends a process in which a thread is stuck inside somebody else's library. Any thread.
#pragma once

#include <functional>

#include "base/status.h"

namespace jhetcc {

/// From now on exit(code) and a return from main end the process with their code, but without the exit handlers that
/// were registered before this call and without destructors of static objects: those of a library that holds a stuck
/// thread may wait for it, or pull down what it stands on. Output streams are flushed, after `last` was run. Call it
/// once the library is loaded, when a call is given up; each call moves it to the front again. kResource if the system
/// registers no more handlers.
Status exitWithoutDestructors(std::function<void()> last = {});

}  // namespace jhetcc
