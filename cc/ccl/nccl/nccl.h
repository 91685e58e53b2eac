// SPDX-License-Identifier: Apache-2.0
// NCCL and RCCL, which share one ABI, as a vendor's library. Any thread; the calling thread's current device is the
// rank's when a communicator is created.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "ccl/library.h"

namespace jhetcc::ccl::nccl {

struct NcclOptions {
  std::string path;  ///< if not empty, only this file is tried
  /// In order of preference; each is tried in `directories` first, then where the loader looks.
  std::vector<std::string> sonames = {"libnccl.so.2", "librccl.so.1"};
  std::vector<std::string> directories;  ///< of a Python package, or of ROCm: "/opt/rocm/lib"
  /// Of creating a communicator (from 2.14 on, else it waits for ever), of a call that the library carries on by
  /// itself, and of finishing.
  int64_t timeout_ns = 60'000'000'000;
};

/// kUnavailable if there is none, or it lacks an entry point that is needed.
Result<std::shared_ptr<Library>> loadNccl(const NcclOptions& options = {});

}  // namespace jhetcc::ccl::nccl
