// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <pthread.h>
#include <signal.h>

#include <string>
#include <system_error>

namespace jhetcc {

Result<std::thread> startThread(const char* name, std::function<void()> body) {
  // Blocked before the start and restored after: the new thread inherits the mask, so no signal slips in.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  Status failure;
  try {
    thread = std::thread([name, body = std::move(body)] {
      pthread_setname_np(pthread_self(), name);
      body();
    });
  } catch (const std::system_error& error) {
    failure = Status(Kind::kResource, Scope::kProcess, "thread",
                     std::string("cannot start the thread ") + name + ": " + error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!failure.isOk()) return failure;
  return thread;
}

}  // namespace jhetcc
