// SPDX-License-Identifier: Apache-2.0
// Starts the member processes of a conformance test and waits for them, with a deadline.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/fd.h"
#include "control/store.h"

extern char** environ;

namespace jhetcc::ccl {

inline const SystemClock kClock;

/// One process; killed and reaped at the end whatever happened.
class Process {
 public:
  explicit Process(std::vector<std::string> command) {
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    REQUIRE(::posix_spawn(&pid_, arguments[0], nullptr, nullptr, arguments.data(), environ) == 0);
    handle_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
    REQUIRE(handle_.isOpen());
  }
  Process(Process&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), handle_(std::move(other.handle_)), status_(other.status_) {}
  ~Process() {
    if (pid_ < 0) return;
    if (!is_reaped_) ::kill(pid_, SIGKILL);
    if (!is_reaped_) ::waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  /// Exit code, minus the signal's number, or -1000 where it has not ended at the deadline.
  int wait(int64_t deadline_ns) {
    if (is_reaped_) return status_;
    pollfd entry{handle_.get(), POLLIN, 0};
    if (::poll(&entry, 1, net::pollTimeoutMs(kClock, deadline_ns)) != 1) return -1000;
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, 0) == pid_);
    is_reaped_ = true;
    return status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  Fd handle_;
  bool is_reaped_ = false;
  int status_ = 0;
};

/// The members of one job, and the store by which they find each other.
class Job {
 public:
  /// `libraries`: "oneccl=/folder". `is_one_process`: all ranks are in one. `started`: only so many of them.
  Job(int size, const std::string& scenario, const std::vector<std::string>& libraries, bool is_one_process,
      int started = INT_MAX) {
    control::StoreServerConfig config;
    config.address = net::Address::fromHost("127.0.0.1", 0).value();
    config.mine.job = "conformance";
    auto server = control::StoreServer::create(std::move(config));
    REQUIRE_MESSAGE(server.isOk(), server.status().message());
    server_ = std::move(server).value();
    const int end = std::min(size, started), step = is_one_process ? end : 1;
    for (int rank = 0; rank < end; rank += step) {
      std::vector<std::string> command = {JHETCC_TEST_MEMBER,          server_->address().text(), std::to_string(rank),
                                          std::to_string(rank + step), std::to_string(size),      scenario};
      command.insert(command.end(), libraries.begin(), libraries.end());
      members.emplace_back(std::move(command));
    }
  }

  /// Sets a key that the members wait for.
  void tell(const std::string& key) { REQUIRE(client()->set(key, "", soon()).isOk()); }
  /// What a member set.
  std::string told(const std::string& key) {
    const auto value = client()->tryGet(key, soon());
    return value.isOk() ? value.value().value_or("nothing") : value.status().message();
  }

  /// Names in /dev/shm that a process of this job left; they are removed.
  std::vector<std::string> sweep() {
    std::vector<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      const std::string name = entry.path().filename().string();
      for (const Process& member : members) {
        if (name.starts_with(std::to_string(member.pid()) + ":")) left.push_back(name);
      }
    }
    for (const std::string& name : left) std::filesystem::remove("/dev/shm/" + name);
    return left;
  }

  std::vector<Process> members;

 private:
  static net::Deadline soon() { return net::Deadline::after(kClock, 10'000 * kNsPerMs); }
  std::unique_ptr<control::StoreClient> client() {
    net::Identity mine;
    mine.job = "conformance";
    auto client = control::StoreClient::connect(server_->address(), net::Secret::none(), mine, soon());
    REQUIRE_MESSAGE(client.isOk(), client.status().message());
    return std::move(client).value();
  }

  std::unique_ptr<control::StoreServer> server_;
};

}  // namespace jhetcc::ccl
