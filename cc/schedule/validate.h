// SPDX-License-Identifier: Apache-2.0
// Private to this room: the checks a schedule passes before anyone runs it.
#pragma once

#include <string>

#include "schedule/schedule.h"

namespace jhetcc::schedule {

/// The error of this room: "schedule: what", code "bad_schedule".
Status badSchedule(const std::string& what);

/// Ranges inside buffers, dependencies on existing steps, kinds, wraps, one step a stream and peer. Values that came
/// from outside: enumerations may hold any byte.
Status validate(const Schedule& schedule);

}  // namespace jhetcc::schedule
