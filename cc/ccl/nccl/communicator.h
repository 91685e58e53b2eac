// SPDX-License-Identifier: Apache-2.0
// A rank's part of an NCCL communicator. Calls come from one thread at a time; abort() and asyncError() from any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ccl/library.h"
#include "ccl/nccl/abi.h"

namespace jhetcc::ccl::nccl {

class NcclCommunicator final : public Communicator {
 public:
  /// Waits for the other members: until the deadline, or `is_left`, where the library can be asked, else for ever.
  static Result<std::unique_ptr<Communicator>> create(std::shared_ptr<const Abi> abi, const Group& group,
                                                      int64_t timeout_ns, const std::atomic<bool>& is_left);
  ~NcclCommunicator() override;

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
  Status asyncError() override;
  Status abort() override;
  void leave() override { (void)abort(); }

 private:
  NcclCommunicator(std::shared_ptr<const Abi> abi, const Group& group, int64_t timeout_ns);
  /// The one way into the library: `function` returns ncclResult_t; waits until the library has taken the call.
  Status call(const char* what, const std::function<int(Comm)>& function);
  Status reduction(const char* what, size_t count, schedule::DataType type, schedule::ReduceOp op,
                   const std::function<int(Comm, const Element&, size_t)>& function);
  /// Polls a call that goes on by itself, until the deadline, an abort, or `is_left`. Our turn.
  Status settle(const char* what, int result, const std::atomic<bool>* is_left = nullptr);
  Status failure(const char* what, int result) const;
  Status takeTurn();
  void giveTurn(const Status& outcome);

  const std::shared_ptr<const Abi> abi_;
  const int32_t rank_, size_;
  const int64_t timeout_ns_;
  const SystemClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Comm comm_ = nullptr;    ///< null once aborted: the handle is gone
  bool has_turn_ = false;  ///< a thread is inside the library with this handle
  Status ended_;           ///< not ok: every later call says so
};

}  // namespace jhetcc::ccl::nccl
