// SPDX-License-Identifier: Apache-2.0
// A communicator of MPI on CPU buffers: every call blocks until it is done. See library.h for the threads.
#pragma once

#include <string>

#include "ccl/blocking.h"
#include "ccl/mpi/abi.h"

namespace jhetcc::ccl::mpi {

struct Vendor {
  using Abi = mpi::Abi;
  using Comm = mpi::Comm;
  static constexpr const char* kName = "MPI";
  static constexpr Op kNone = mpi::kNone;
  static Type typeOf(schedule::DataType type) { return typeHandle(type); }
  static Op opOf(schedule::ReduceOp op, schedule::DataType type) { return opHandle(op, type); }
  static Code destroy(const Abi& abi, Comm& comm) { return abi.commFree(&comm); }
  static Status failed(const Abi& abi, const std::string& what, Code code, Comm comm);
  static void lose();
};

class MpiCommunicator final : public BlockingCommunicator<Vendor> {
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

}  // namespace jhetcc::ccl::mpi
