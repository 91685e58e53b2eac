// SPDX-License-Identifier: Apache-2.0
// The system's own words for an errno; any thread.
#pragma once

#include <string>
#include <system_error>

namespace jhetcc {

inline std::string systemText(int error_number) { return std::generic_category().message(error_number); }

}  // namespace jhetcc
