// SPDX-License-Identifier: Apache-2.0
// The one thread of a process that runs host callbacks of all its virtual accelerators, in the order they come. While a
// callback runs, no stream of any of them goes on: one that waits for a stream's work never sees it done.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/status.h"
#include "device/device.h"

namespace jhetcc::device::fake {

struct CallbackJob {
  Callback function;
  void* context;
  int64_t limit_ns;
  std::shared_ptr<std::atomic<uint64_t>> waited;  ///< counts this job if it passes the limit
  std::atomic<bool> done{false};
};

class CallbackThread {
 public:
  /// The process's; it ends with the last device that holds it.
  static Result<std::shared_ptr<CallbackThread>> get();
  ~CallbackThread();

  void post(std::shared_ptr<CallbackJob> job);
  /// Around every piece of a stream's work. False: a callback runs or is about to; try again.
  bool enterStep();
  void leaveStep();
  /// Waits until no callback is queued or runs; false at the deadline.
  bool waitIdle(int64_t deadline_ns);
  /// Whether the calling thread is in a callback.
  static bool isInside();

 private:
  CallbackThread() = default;
  void run();
  void runOne(std::unique_lock<std::mutex>& lock);

  const SystemClock clock_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<CallbackJob>> jobs_;
  std::shared_ptr<CallbackJob> running_;
  bool is_started_ = false;  ///< the running job's function was entered
  bool is_overdue_ = false;  ///< the running job is past its limit: streams go on, so that a test can end
  int64_t started_ns_ = 0;
  int stepping_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace jhetcc::device::fake
