// SPDX-License-Identifier: Apache-2.0
// A communicator of oneCCL on CPU buffers: every call blocks until it is done. See library.h for the threads.
#pragma once

#include <string>

#include "ccl/blocking.h"
#include "ccl/oneccl/abi.h"

namespace jhetcc::ccl::oneccl {

/// What the library says of a call that failed.
Status failed(const Abi& abi, const std::string& what, Code code, Comm comm);
/// Lets the process end with a thread stuck in the library, and takes its shared segments out of /dev/shm then.
void armExit();

struct Vendor {
  using Abi = oneccl::Abi;
  using Comm = oneccl::Comm;
  static constexpr const char* kName = "oneCCL";
  static constexpr int kNone = oneccl::kNone;
  static int typeOf(schedule::DataType type) { return typeNumber(type); }
  static int opOf(schedule::ReduceOp op, schedule::DataType type) { return opNumber(op, type); }
  static Code destroy(const Abi& abi, Comm comm) { return abi.commDestroy(comm); }
  static Status failed(const Abi& abi, const std::string& what, Code code, Comm comm) {
    return oneccl::failed(abi, what, code, comm);
  }
  static void lose() { armExit(); }
};

class OnecclCommunicator final : public BlockingCommunicator<Vendor> {
 public:
  using BlockingCommunicator::BlockingCommunicator;

  Status reduce(const void* source, void* target, size_t count, schedule::DataType type, schedule::ReduceOp op,
                int32_t root, Stream stream) override;
  Status allReduce(const void* source, void* target, size_t count, schedule::DataType type, schedule::ReduceOp op,
                   Stream stream) override;
  Status reduceScatter(const void* source, void* target, size_t count, schedule::DataType type, schedule::ReduceOp op,
                       Stream stream) override;
  Status broadcast(const void* source, void* target, size_t bytes, int32_t root, Stream stream) override;
  Status allGather(const void* source, void* target, size_t bytes, Stream stream) override;
  Status allToAll(const void* source, void* target, size_t bytes, Stream stream) override;
  Status exchange(const std::vector<Transfer>& transfers, Stream stream) override;
};

}  // namespace jhetcc::ccl::oneccl
