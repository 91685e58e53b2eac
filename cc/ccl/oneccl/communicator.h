// SPDX-License-Identifier: Apache-2.0
// A communicator of oneCCL on CPU buffers: every call blocks until it is done. See library.h for the threads.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "ccl/oneccl/abi.h"

namespace jhetcc::ccl::oneccl {

/// What the library says of a call that failed.
Status failed(const Abi& abi, const std::string& what, Code code, Comm comm);
/// Lets the process end with a thread stuck in the library, and takes its shared segments out of /dev/shm then.
void armExit();

class OnecclCommunicator final : public Communicator {
 public:
  OnecclCommunicator(const Abi& abi, Comm comm, const Group& group);
  ~OnecclCommunicator() override;

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
  Status abort() override;
  void leave() override;

 private:
  /// Outlives this object while a call that was given up is inside the library.
  struct State {
    Abi abi;
    Comm comm;
    int32_t rank, size;
    std::string where;  ///< "rank 1 of 4"
    std::atomic<bool> is_left{false}, is_broken{false};
  };
  template <typename Call>
  Status run(const char* what, Call call);
  template <typename Call>
  Status reduceWith(const char* what, schedule::DataType type, schedule::ReduceOp op, Call call);

  std::shared_ptr<State> state_;
};

}  // namespace jhetcc::ccl::oneccl
