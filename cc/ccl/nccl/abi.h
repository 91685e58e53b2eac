// SPDX-License-Identifier: Apache-2.0
// NCCL's binary interface as far as it is used, the same in RCCL: numbers, structures, entry points. Filled once.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "base/late_library.h"
#include "base/status.h"
#include "ccl/nccl/nccl.h"
#include "schedule/schedule.h"

namespace jhetcc::ccl::nccl {

using Comm = void*;
struct UniqueId {
  char bytes[128];
};

// ncclResult_t
constexpr int kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7;
// ncclDataType_t, ncclRedOp_t: where they are used alone
constexpr int kUint8 = 1;

/// ncclConfig_t as of 2.14: later libraries read as much of it as `size` says.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21400;
  int blocking = 0;
};

struct Abi {
  explicit Abi(LateLibrary loaded) : library(std::move(loaded)) {}
  LateLibrary library;
  std::string name;      ///< "nccl" or "rccl"
  std::string version;   ///< "2.21.5"
  int version_code = 0;  ///< 22105; of versions before 2.9 in today's form, too: 2.8.4 is 20804

  int (*get_version)(int*) = nullptr;
  int (*get_unique_id)(UniqueId*) = nullptr;
  const char* (*get_error_string)(int) = nullptr;
  int (*comm_init_rank)(Comm*, int, UniqueId, int) = nullptr;
  int (*comm_destroy)(Comm) = nullptr;
  int (*comm_abort)(Comm) = nullptr;
  int (*comm_get_async_error)(Comm, int*) = nullptr;
  int (*all_reduce)(const void*, void*, size_t, int, int, Comm, void*) = nullptr;
  int (*reduce)(const void*, void*, size_t, int, int, int, Comm, void*) = nullptr;
  int (*reduce_scatter)(const void*, void*, size_t, int, int, Comm, void*) = nullptr;
  int (*all_gather)(const void*, void*, size_t, int, Comm, void*) = nullptr;
  int (*broadcast)(const void*, void*, size_t, int, int, Comm, void*) = nullptr;
  int (*send)(const void*, size_t, int, int, Comm, void*) = nullptr;
  int (*recv)(void*, size_t, int, int, Comm, void*) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  // Absent in older versions.
  const char* (*get_last_error)(Comm) = nullptr;
  int (*comm_init_rank_config)(Comm*, int, UniqueId, int, const Config*) = nullptr;
  int (*comm_finalize)(Comm) = nullptr;

  /// Calls that may take long return and go on by themselves: nothing of ours waits inside the library.
  bool isNonBlocking() const {
    return version_code >= 21400 && comm_init_rank_config != nullptr && comm_finalize != nullptr;
  }
};

Result<std::shared_ptr<const Abi>> loadAbi(const NcclOptions& options);

struct Element {
  int type;       ///< ncclDataType_t
  int op;         ///< ncclRedOp_t
  size_t factor;  ///< elements of the library for one of ours
};
/// Nothing: this library does not do it as docs/values.md wants it.
std::optional<Element> elementOf(const Abi& abi, schedule::DataType type, schedule::ReduceOp op);

}  // namespace jhetcc::ccl::nccl
