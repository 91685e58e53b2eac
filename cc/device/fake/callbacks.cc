// SPDX-License-Identifier: Apache-2.0
#include "device/fake/callbacks.h"

#include <chrono>
#include <utility>

#include "base/thread.h"

namespace jhetcc::device::fake {

namespace {

thread_local bool is_inside = false;

}  // namespace

bool CallbackThread::isInside() { return is_inside; }

Result<std::shared_ptr<CallbackThread>> CallbackThread::get() {
  static std::mutex mutex;
  static std::weak_ptr<CallbackThread> only;
  const std::lock_guard lock(mutex);
  std::shared_ptr<CallbackThread> made = only.lock();
  if (made) return made;
  made.reset(new CallbackThread);
  Result<std::thread> thread = startThread("fake-callbacks", [self = made.get()] { self->run(); });
  if (!thread.isOk()) return thread.status();
  made->thread_ = std::move(thread).value();
  only = made;
  return made;
}

CallbackThread::~CallbackThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CallbackThread::post(std::shared_ptr<CallbackJob> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void CallbackThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    runOne(lock);
  }
}

void CallbackThread::runOne(std::unique_lock<std::mutex>& lock) {
  running_ = std::move(jobs_.front());
  jobs_.pop_front();
  changed_.wait(lock, [this] { return stepping_ == 0; });  // pieces of work are short and end by themselves
  is_started_ = true;
  started_ns_ = clock_.nowNs();
  const std::shared_ptr<CallbackJob> job = running_;
  lock.unlock();
  is_inside = true;
  job->function(job->context);
  is_inside = false;
  lock.lock();
  running_ = nullptr;
  is_started_ = is_overdue_ = false;
  job->done.store(true, std::memory_order_release);
  changed_.notify_all();
}

bool CallbackThread::enterStep() {
  const std::lock_guard lock(mutex_);
  if (running_) {
    if (!is_started_ || clock_.nowNs() - started_ns_ < running_->limit_ns) return false;
    if (!is_overdue_) running_->waited->fetch_add(1);
    is_overdue_ = true;
  }
  ++stepping_;
  return true;
}

void CallbackThread::leaveStep() {
  {
    const std::lock_guard lock(mutex_);
    --stepping_;
  }
  changed_.notify_all();
}

bool CallbackThread::waitIdle(int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  const auto is_idle = [this] { return jobs_.empty() && !running_; };
  while (!is_idle()) {
    const int64_t left_ns = deadline_ns - clock_.nowNs();
    if (left_ns <= 0) return false;
    changed_.wait_for(lock, std::chrono::nanoseconds(left_ns));
  }
  return true;
}

}  // namespace jhetcc::device::fake
