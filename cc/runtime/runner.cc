// SPDX-License-Identifier: Apache-2.0
#include "runtime/runner.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>

namespace jhetcc::runtime {
namespace {

constexpr int64_t kInterruptCheckNs = 50 * kNsPerMs;
constexpr int64_t kSleepMaxNs = 1'000 * kNsPerMs;
constexpr int kPassesPerClock = 16;
/// So long after the last call at most, an idle rank is looked after again: waking a thread costs as much as a short
/// call.
constexpr std::chrono::milliseconds kHandOver{1};

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void giveWay(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  sched_yield();
  lock.lock();
}

// Signals belong to the Python threads.
void blockSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

Runner::Runner(int32_t world_rank, const RunnerOptions& options, const Clock& clock, trace::Trace& trace)
    : options_(options),
      clock_(clock),
      wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      engine_(world_rank, options.engine, clock, trace) {}

Runner::~Runner() { stop(); }

void Runner::startThreads() {
  progress_ = std::thread([this] { progressThread(); });
  completion_ = std::thread([this] { completionThread(); });
  pthread_setname_np(progress_.native_handle(), "jhetcc-progress");
  pthread_setname_np(completion_.native_handle(), "jhetcc-complete");
}

void Runner::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::lock_guard<std::mutex> completions_lock(completions_mutex_);
    stop_.store(true);
  }
  no_driver_.notify_all();
  completions_changed_.notify_all();
  wake();
  if (progress_.joinable()) progress_.join();
  if (completion_.joinable()) completion_.join();
}

void Runner::wake() {
  const uint64_t one = 1;
  if (::write(wake_fd_.get(), &one, sizeof one) < 0) return;  // full means it is awake already
}

void Runner::wakeWaiters() {
  if (sleeping_watchers_.load() > 0) wake();
}

void Runner::withEngine(const std::function<void(engine::Engine&)>& action) {
  {
    wanting_.fetch_add(1);
    std::lock_guard<std::mutex> lock(mutex_);
    wanting_.fetch_sub(1);
    action(engine_);
  }
  wake();
}

void Runner::lockForDriving(std::unique_lock<std::mutex>& lock) {
  drivers_.fetch_add(1);
  wanting_.fetch_add(1);
  lock.lock();
  wanting_.fetch_sub(1);
}

void Runner::leaveDriving(std::unique_lock<std::mutex>& lock) {
  const bool work_left = !engine_.isIdle() || engine_.hasOutput() || engine_.holdsThirds();
  // Under the lock: between the progress thread's look at the count and its wait, the news would be lost, and the rank
  // stand still.
  const bool is_last = drivers_.fetch_sub(1) == 1;
  lock.unlock();
  if (!work_left) return;  // the progress thread looks by itself, soon enough
  if (is_last) no_driver_.notify_one();
  wake();
}

bool Runner::drive(engine::Request request, Ticket& ticket, const std::function<bool()>& interrupted) {
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  lockForDriving(lock);
  engine_.start(std::move(request));
  const Outcome outcome = loop(lock, &ticket, &interrupted, false);
  leaveDriving(lock);
  return outcome == Outcome::kDone;
}

bool Runner::driveOn(Ticket& ticket, const std::function<bool()>& interrupted) {
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  lockForDriving(lock);
  const Outcome outcome = loop(lock, &ticket, &interrupted, false);
  leaveDriving(lock);
  return outcome == Outcome::kDone;
}

bool Runner::startAndHelp(engine::Request request, Ticket& ticket) {
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  lockForDriving(lock);
  engine_.start(std::move(request));
  const Outcome outcome = loop(lock, &ticket, nullptr, true);
  if (outcome != Outcome::kDone) ticket.prepareToLeave();
  const bool is_done = outcome == Outcome::kDone || !ticket.leave();
  leaveDriving(lock);
  return is_done;
}

/// A broken invariant ends every communicator; the process lives.
bool Runner::pass() {
  try {
    return engine_.progress();
  } catch (const std::exception& failure) {
    engine_.abortAll(Status(Kind::kInternal, Scope::kProcess, "internal", failure.what()));
    return true;
  }
}

/// Between two looks. A peer that was last seen on this very processor cannot run while we spin on it.
void Runner::waitBriefly(std::unique_lock<std::mutex>& lock) {
  const int cpu = sched_getcpu();
  for (auto& rail : engine_.rails()) {
    if (rail->endpoint().peerCpu() == cpu && !rail->isBroken()) return giveWay(lock);
  }
  pause();
}

/// Drives until the ticket is done, the caller is interrupted, or (helping) the budget is used up.
Runner::Outcome Runner::loop(std::unique_lock<std::mutex>& lock, const Ticket* ticket,
                             const std::function<bool()>* interrupted, bool helping) {
  const int64_t begin = clock_.nowNs();
  int64_t last_moved = begin, last_check = begin;
  int stride = kPassesPerClock;
  for (int count = 1;; ++count) {
    const bool moved = pass();
    if (ticket->done()) return Outcome::kDone;
    if (!moved) waitBriefly(lock);
    if (!moved && count % stride != 0) continue;
    const int64_t now = clock_.nowNs();
    if (moved) last_moved = now;
    // Past the spinning, passes between two turns of the others only delay them.
    stride = now - last_moved > options_.spin_ns ? 1 : kPassesPerClock;
    if (wanting_.load(std::memory_order_relaxed) > 0) {
      giveWay(lock);
    }
    const int64_t idle = now - last_moved;
    if (helping) {
      if (idle > options_.help_ns || now - begin > options_.help_max_ns) return Outcome::kBudget;
      if (idle > options_.spin_ns) sched_yield();
      continue;
    }
    if (interrupted && now - last_check > kInterruptCheckNs) {
      last_check = now;
      lock.unlock();
      const bool stop = (*interrupted)();
      lock.lock();
      if (stop) return Outcome::kInterrupted;
    }
    if (idle <= options_.spin_ns) continue;
    // A thread of ours in a vendor's library needs the processor more than our looking does; it wakes us.
    if (idle <= options_.spin_ns + options_.yield_ns && !engine_.awaitsNative()) {
      giveWay(lock);
    } else {
      sleeping_watchers_.fetch_add(1);
      // Another rank's thread delivers without this lock: it saw the count above, or the word is there now.
      if (!ticket->done()) sleep(lock, true, kInterruptCheckNs);
      sleeping_watchers_.fetch_sub(1);
    }
  }
}

/// Waits for any rail, a wake-up or the engine's next deadline, without the lock.
void Runner::sleep(std::unique_lock<std::mutex>& lock, bool in_operation, int64_t timeout_ns) {
  std::vector<pollfd> set;
  set.swap(poll_set_);  // reused storage; a second sleeper brings its own
  set.clear();
  set.push_back({wake_fd_.get(), POLLIN, 0});
  bool may_sleep = true;
  for (auto& rail : engine_.rails()) {
    if (rail->isBroken() && !rail->hearsGoodbyes()) continue;
    may_sleep &= rail->endpoint().prepareSleep(in_operation);
    const short events = static_cast<short>(POLLIN | (rail->endpoint().wantsWrite() ? POLLOUT : 0));
    set.push_back({rail->endpoint().waitDescriptor(), events, 0});
  }
  const int64_t next = engine_.nextWakeNs();
  if (next != INT64_MAX) timeout_ns = std::min(timeout_ns, std::max<int64_t>(next - clock_.nowNs(), 0));
  sleepers_.fetch_add(1);
  lock.unlock();
  if (may_sleep) {
    const timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
    ::ppoll(set.data(), set.size(), &timeout, nullptr);
  }
  uint64_t count = 0;
  const bool took_it = (set[0].revents & POLLIN) != 0 && ::read(wake_fd_.get(), &count, sizeof count) > 0;
  // Who wakes means all who sleep, and only one can take it.
  if (sleepers_.fetch_sub(1) > 1 && took_it) wake();
  wanting_.fetch_add(1);
  lock.lock();
  wanting_.fetch_sub(1);
  poll_set_.swap(set);
}

void Runner::progressThread() {
  blockSignals();
  std::unique_lock<std::mutex> lock(mutex_);
  int64_t last_moved = clock_.nowNs();
  while (!stop_.load()) {
    if (drivers_.load() > 0) {
      no_driver_.wait_for(lock, kHandOver);
      last_moved = clock_.nowNs();
      continue;
    }
    const bool moved = pass();
    const int64_t now = clock_.nowNs();
    if (moved) last_moved = now;
    if (wanting_.load(std::memory_order_relaxed) > 0) {
      giveWay(lock);
      continue;
    }
    if (moved) continue;
    const bool busy = !engine_.isIdle();
    const int64_t idle = now - last_moved;
    if (busy && idle <= options_.spin_ns) {
      waitBriefly(lock);
    } else if (busy && idle <= options_.spin_ns + options_.yield_ns && !engine_.awaitsNative()) {
      giveWay(lock);
    } else {
      sleep(lock, busy, busy ? kInterruptCheckNs : kSleepMaxNs);
      if (!busy) last_moved = clock_.nowNs();
    }
  }
}

void Runner::enqueueCompletion(Ticket* ticket) {
  {
    std::lock_guard<std::mutex> lock(completions_mutex_);
    completions_.push_back(ticket);
  }
  completions_changed_.notify_one();
}

void Runner::completionThread() {
  blockSignals();
  std::unique_lock<std::mutex> lock(completions_mutex_);
  for (;;) {
    completions_changed_.wait(lock, [this] { return !completions_.empty() || stop_.load(); });
    if (completions_.empty()) return;
    Ticket* ticket = completions_.front();
    completions_.pop_front();
    lock.unlock();
    ticket->resolve();  // XLA may run the rest of its program in here
    lock.lock();
  }
}

}  // namespace jhetcc::runtime
