// SPDX-License-Identifier: Apache-2.0
// The host cannot touch a virtual accelerator's memory: a load or store ends the process with a text, a system call
// fails.
#include "device/fake/stray.h"

#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/fd.h"
#include "device/devices.h"
#include "device/fake/memory.h"

namespace jhetcc::device::tests {

namespace {

struct Ending {
  int status = 0;
  std::string text;
};

/// What becomes of a child that does this; its stderr is its text.
template <typename Action>
Ending inChild(Action action) {
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  Fd reader(pipe_ends[0]), writer(pipe_ends[1]);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(writer.get(), STDERR_FILENO);
    action();
    _exit(0);
  }
  writer.reset();
  Ending ending;
  char bytes[512];
  for (ssize_t got; (got = read(reader.get(), bytes, sizeof(bytes))) > 0;) ending.text.append(bytes, got);
  REQUIRE(waitpid(child, &ending.status, 0) == child);
  return ending;
}

}  // namespace

TEST_CASE("a stray load or store of the host names address and allocation, and fails the process") {
  const auto device = makeFake({.manual = true});
  Bytes bytes(*device, 5000);
  for (const bool is_store : {false, true}) {
    CAPTURE(is_store);
    volatile uint8_t* stray = bytes.there() + 4321;
    const Ending ending = inChild([&] {
      if (!fake::catchStrays().isOk()) _exit(1);
      if (is_store) {
        *stray = 1;
      } else {
        static_cast<void>(*stray);
      }
    });
    CAPTURE(ending.text);
    REQUIRE(WIFEXITED(ending.status));
    CHECK(WEXITSTATUS(ending.status) == fake::kStrayExit);
    CHECK(ending.text.find("stray access of the host to device memory") != std::string::npos);
    CHECK(ending.text.find("byte 4321 of allocation ") != std::string::npos);
  }
}

TEST_CASE("memory of an allocation is the device's up to the end of its last page") {
  const auto device = makeFake({.manual = true});
  Bytes bytes(*device, 100);
  fake::Owner owner;
  const auto begin = reinterpret_cast<uintptr_t>(bytes.there());
  CHECK(fake::findOwner(begin, &owner));
  CHECK(owner.begin == begin);
  CHECK(fake::findOwner(begin + 4095, &owner));
  CHECK_FALSE(fake::findOwner(reinterpret_cast<uintptr_t>(&owner), &owner));
}

TEST_CASE("other faults end as they did before") {
  const Ending ending = inChild([] {
    signal(SIGSEGV, [](int) { _exit(77); });
    if (!fake::catchStrays().isOk() || !fake::catchStrays().isOk()) _exit(1);
    raise(SIGSEGV);
  });
  REQUIRE(WIFEXITED(ending.status));
  CHECK(WEXITSTATUS(ending.status) == 77);
}

TEST_CASE("system calls on device memory fail instead of moving bytes") {
  const auto device = makeFake({.manual = true});
  Bytes bytes(*device, 100);
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  const Fd reader(pipe_ends[0]), writer(pipe_ends[1]);
  CHECK(write(writer.get(), bytes.there(), 100) == -1);
  CHECK(errno == EFAULT);
  uint8_t here[100];
  const iovec to{here, 100};
  const iovec from{bytes.there(), 100};
  CHECK(process_vm_readv(getpid(), &to, 1, &from, 1, 0) == -1);
  const iovec through_alias{must(device->alias(bytes.there(), 100)), 100};
  CHECK(process_vm_readv(getpid(), &to, 1, &through_alias, 1, 0) == 100);
}

}  // namespace jhetcc::device::tests
