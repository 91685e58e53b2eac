// SPDX-License-Identifier: Apache-2.0
// What the tests' own NCCL offers beside NCCL's entry points: they find these functions by name in the loaded library.
// It is no adapter: it stands in for the vendor's library, and computes on virtual accelerators.
#pragma once

#include <cstdint>

#include "device/fake/api.h"

namespace jhetcc::tests::fake_nccl {

extern "C" {
/// First of all: how to reach the virtual accelerators' memory and streams.
using BindFunction = void(const device::fake::Api* api);
/// ncclCommGetAsyncError says `code` for every communicator that lives with this rank; its kernels stand still.
using SetAsyncErrorFunction = void(int rank, int code);
struct Counts {
  int communicators = 0;     ///< neither destroyed nor aborted
  int misuses = 0;           ///< handles used after their end, calls while another one was in progress
  uint64_t kernels = 0;      ///< queued on streams since the library was loaded
  uint64_t in_progress = 0;  ///< times ncclInProgress was answered
};
using CountsFunction = Counts();
}

constexpr const char* kBind = "fakeNcclBind";
constexpr const char* kSetAsyncError = "fakeNcclSetAsyncError";
constexpr const char* kCounts = "fakeNcclCounts";
/// Environment: what ncclGetVersion answers, and so which element types there are.
constexpr const char* kVersionVariable = "FAKE_NCCL_VERSION";

}  // namespace jhetcc::tests::fake_nccl
