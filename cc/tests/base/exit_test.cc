// SPDX-License-Identifier: Apache-2.0
// A process ends with its own code although a thread is stuck and an exit handler waits for it.
#include "base/exit.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/fd.h"

namespace jhetcc {
namespace {

std::atomic<bool> g_released{false};

/// As a library's handler that waits for its own stuck thread.
void waitForever() {
  while (!g_released.load()) ::pause();
}

[[noreturn]] void runChild(int report, bool is_armed) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(report, STDOUT_FILENO);
  std::atexit(waitForever);
  std::thread([] { waitForever(); }).detach();
  if (is_armed) {
    const Status status = exitWithoutDestructors([] { std::fputs(" last", stdout); });
    if (!status.isOk()) ::_exit(99);
  }
  std::fputs("buffered", stdout);
  std::exit(7);
}

struct Ended {
  int code = -1;  ///< -1: it had not ended at the deadline
  std::string output;
};

Ended endOf(bool is_armed, int deadline_ms) {
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  Fd mine(pipe_ends[0]), its(pipe_ends[1]);
  std::fflush(nullptr);  // the child inherits what is buffered
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) runChild(its.get(), is_armed);
  its.reset();
  Ended ended;
  // The pipe's end closes with the process.
  pollfd entry{mine.get(), POLLIN, 0};
  char piece[256];
  ssize_t got = -1;
  while (::poll(&entry, 1, deadline_ms) == 1 && (got = ::read(mine.get(), piece, sizeof(piece))) > 0) {
    ended.output.append(piece, static_cast<size_t>(got));
  }
  if (got != 0) ::kill(child, SIGKILL);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  return ended;
}

TEST_CASE("a process with a stuck thread ends with its own code, and its output is written") {
  const Ended ended = endOf(true, 5'000);
  CHECK(ended.code == 7);
  CHECK(ended.output == "buffered last");
}

TEST_CASE("without it the same process hangs") { CHECK(endOf(false, 200).code == -1); }

}  // namespace
}  // namespace jhetcc
