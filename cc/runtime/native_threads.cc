// SPDX-License-Identifier: Apache-2.0
#include "runtime/native_threads.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/thread.h"

namespace jhetcc::runtime {
namespace {

struct Threads {
  std::mutex mutex;
  std::condition_variable changed;
  int count = 0;
};
Threads& threads() {
  static Threads* const all = new Threads;  // never destroyed: a stuck thread may outlive everything
  return *all;
}

}  // namespace

Status detachedThread(const char* name, std::function<void()> body) {
  {
    std::lock_guard<std::mutex> lock(threads().mutex);
    ++threads().count;
  }
  const auto leave = [] {
    std::lock_guard<std::mutex> lock(threads().mutex);
    --threads().count;
    threads().changed.notify_all();
  };
  auto kept = std::make_shared<std::function<void()>>(std::move(body));
  Result<std::thread> thread = startThread(name, [kept, leave]() mutable {
    (*kept)();
    *kept = nullptr;  // what it holds ends before the thread counts as gone
    leave();
  });
  if (!thread.isOk()) {
    leave();
    return thread.status();
  }
  std::move(thread).value().detach();
  return Status::ok();
}

bool waitForNativeThreads(int64_t timeout_ns) {
  std::unique_lock<std::mutex> lock(threads().mutex);
  return threads().changed.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [] { return threads().count == 0; });
}

}  // namespace jhetcc::runtime
