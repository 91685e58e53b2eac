// SPDX-License-Identifier: Apache-2.0
// One local rank's engine behind a lock, with its two threads: progress (drives the engine when no caller does) and
// completion (resolves tickets whose caller left). Callers help first: a hand-off between threads costs ~40 us.
#pragma once

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "engine/engine.h"
#include "runtime/ticket.h"

namespace jhetcc::runtime {

struct RunnerOptions {
  engine::EngineOptions engine;
  int64_t spin_ns = 50'000;      ///< wait by spinning this long...
  int64_t yield_ns = 1'000'000;  ///< ...then by yielding this long, then sleep
  int64_t help_ns = 50'000;  ///< a handler that sees no progress for this long leaves the rest to the progress thread
  int64_t help_max_ns = 2'000'000;
};

class Runner {
 public:
  Runner(int32_t world_rank, const RunnerOptions& options, const Clock& clock, trace::Trace& trace);
  ~Runner();

  int32_t worldRank() const { return engine_.worldRank(); }
  void startThreads();
  /// Ends both threads; operations still in flight were aborted before.
  void stop();

  /// Runs under the lock, then lets the progress thread look.
  void withEngine(const std::function<void(engine::Engine&)>& action);

  /// Starts the request and drives until its ticket is done. `interrupted` is asked every ~50 ms of waiting; true ends
  /// the wait: the ticket is still pending then and must stay alive until done.
  bool drive(engine::Request request, Ticket& ticket, const std::function<bool()>& interrupted);
  /// Goes on driving a pending ticket.
  bool driveOn(Ticket& ticket, const std::function<bool()>& interrupted);
  /// Starts and helps briefly. True: the ticket is done. False: the ticket was left.
  bool startAndHelp(engine::Request request, Ticket& ticket);

  void enqueueCompletion(Ticket* ticket);
  /// A ticket was delivered: its watcher may be asleep here. The progress thread watches none and sleeps on.
  void wakeWaiters();
  /// Something happened that a pass should see; from any thread.
  void wake();

 private:
  bool pass();
  enum class Outcome { kDone, kInterrupted, kBudget };
  void waitBriefly(std::unique_lock<std::mutex>& lock);
  Outcome loop(std::unique_lock<std::mutex>& lock, const Ticket* ticket, const std::function<bool()>* interrupted,
               bool helping);
  void lockForDriving(std::unique_lock<std::mutex>& lock);
  void leaveDriving(std::unique_lock<std::mutex>& lock);
  void sleep(std::unique_lock<std::mutex>& lock, bool in_operation, int64_t timeout_ns);
  void progressThread();
  void completionThread();

  const RunnerOptions options_;
  const Clock& clock_;
  Fd wake_fd_;  ///< before the engine: what it holds may wake us until it is gone
  engine::Engine engine_;
  std::mutex mutex_;             ///< guards engine_
  std::atomic<int> wanting_{0};  ///< threads waiting for mutex_: spinners give way
  std::atomic<int> drivers_{0};
  std::condition_variable no_driver_;
  std::atomic<bool> stop_{false};
  std::atomic<int> sleeping_watchers_{0};
  std::atomic<int> sleepers_{0};
  std::vector<pollfd> poll_set_;
  std::thread progress_;

  std::mutex completions_mutex_;
  std::condition_variable completions_changed_;
  std::deque<Ticket*> completions_;
  std::thread completion_;
};

}  // namespace jhetcc::runtime
