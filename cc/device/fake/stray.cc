// SPDX-License-Identifier: Apache-2.0
#include "device/fake/stray.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/system_text.h"
#include "device/fake/memory.h"

namespace jhetcc::device::fake {

namespace {

struct sigaction before;

/// Only what is safe in a signal handler: no allocation, no lock, no stdio.
class Line {
 public:
  void text(const char* words) {
    while (*words != 0 && size_ < sizeof(bytes_)) bytes_[size_++] = *words++;
  }
  void number(uint64_t value, unsigned base) {
    char digits[20];
    int count = 0;
    do {
      digits[count++] = "0123456789abcdef"[value % base];
      value /= base;
    } while (value != 0);
    while (count > 0 && size_ < sizeof(bytes_)) bytes_[size_++] = digits[--count];
  }
  void write() const {
    if (::write(STDERR_FILENO, bytes_, size_) < 0) return;  // there is nobody left to tell
  }

 private:
  char bytes_[256];
  size_t size_ = 0;
};

void onFault(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  Owner owner;
  if (findOwner(address, &owner)) {
    Line line;
    line.text("stray access of the host to device memory: address 0x");
    line.number(address, 16);
    line.text(", byte ");
    line.number(address - owner.begin, 10);
    line.text(" of allocation ");
    line.number(owner.allocation, 10);
    line.text(" (");
    line.number(owner.end - owner.begin, 10);
    line.text(" bytes mapped) of virtual accelerator ");
    line.number(static_cast<uint64_t>(owner.device), 10);
    line.text("\n");
    line.write();
    _exit(kStrayExit);
  }
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    sigaction(signal, &before, nullptr);  // the access is tried again, and ends the process
  }
}

}  // namespace

Status catchStrays() {
  struct sigaction ours{};
  ours.sa_sigaction = onFault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  struct sigaction old{};
  if (sigaction(SIGSEGV, &ours, &old) != 0) {
    return Status(Kind::kInternal, Scope::kProcess, "internal", "sigaction: " + systemText(errno));
  }
  if ((old.sa_flags & SA_SIGINFO) == 0 || old.sa_sigaction != onFault) before = old;
  return Status::ok();
}

}  // namespace jhetcc::device::fake
