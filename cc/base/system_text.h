// SPDX-License-Identifier: Apache-2.0
// The system's own words for an errno, and the limit where one is reached; any thread.
#pragma once

#include <sys/resource.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace jhetcc {

inline std::string systemText(int error_number) {
  std::string text = std::generic_category().message(error_number);
  rlimit limit{};
  if (error_number == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    text += " (this process may have " + std::to_string(limit.rlim_cur) + ": raise that by ulimit -n)";
  } else if (error_number == ENFILE) {
    text += " (the whole system has none left: raise fs.file-max)";
  }
  return text;
}

}  // namespace jhetcc
