// SPDX-License-Identifier: Apache-2.0
// Shared memory that a library of a vendor has mapped into this process: libraries leave its names behind where they
// are not ended as they wish. Any thread.
#pragma once

#include <unistd.h>

#include <fstream>
#include <set>
#include <string>

namespace jhetcc::ccl {

/// Names below /dev/shm that are mapped here and still there.
inline std::set<std::string> mappedSegments() {
  static const std::string kFolder = "/dev/shm/", kGone = " (deleted)";
  std::set<std::string> names;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t at = line.find(kFolder);
    if (at != std::string::npos && !line.ends_with(kGone)) names.insert(line.substr(at + kFolder.size()));
  }
  return names;
}

/// Takes away the names that `is_ours` picks; what is mapped stays mapped.
template <typename Pick>
void removeSegments(Pick is_ours) {
  for (const std::string& name : mappedSegments()) {
    if (is_ours(name)) ::unlink(("/dev/shm/" + name).c_str());
  }
}

}  // namespace jhetcc::ccl
