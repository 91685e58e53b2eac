// SPDX-License-Identifier: Apache-2.0
// The flight recorder and the counters of one process, together.
#pragma once

#include <memory>

#include "trace/counters.h"
#include "trace/recorder.h"

namespace jhetcc::trace {

struct Trace {
  std::unique_ptr<Recorder> recorder;
  Counters counters;
};

}  // namespace jhetcc::trace
