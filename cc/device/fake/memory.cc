// SPDX-License-Identifier: Apache-2.0
#include "device/fake/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <string>

#include "base/fd.h"
#include "base/system_text.h"

namespace jhetcc::device::fake {

namespace {

constexpr size_t kPage = 4096;
constexpr int kRows = 4096;

/// What a handler of faults may read at any moment: a row is valid while `end` is not 0.
struct Row {
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<uint64_t> allocation{0};
  std::atomic<int> device{0};
};
Row rows[kRows];

struct Book {
  std::mutex mutex;
  std::map<uintptr_t, std::shared_ptr<Allocation>> by_end;  // the first whose end is not below an address
  uint64_t last_number = 0;
};
// Never destroyed: devices of other static objects may outlive it.
Book& book() {
  static Book* const only = new Book;
  return *only;
}

Status systemError(const char* call, size_t bytes) {
  return Status(Kind::kResource, Scope::kCall, "resource",
                "device memory of " + std::to_string(bytes) + " bytes: " + call + ": " + systemText(errno));
}

}  // namespace

Result<std::shared_ptr<Allocation>> Allocation::create(size_t bytes, MemoryKind kind, int device) {
  std::shared_ptr<Allocation> made(new Allocation(bytes, kind));
  if (bytes > SIZE_MAX / 2) errno = ENOMEM;
  if (bytes > SIZE_MAX / 2) return systemError("allocate", bytes);
  const size_t mapped = (bytes / kPage + 1) * kPage;  // at least a byte more: the end is in no other allocation
  const Fd memory(memfd_create("jhetcc-device", MFD_CLOEXEC));
  if (!memory.isOpen()) return systemError("memfd_create", bytes);
  if (ftruncate(memory.get(), static_cast<off_t>(mapped)) != 0) return systemError("ftruncate", bytes);
  const bool is_hidden = kind == MemoryKind::kDevice;
  const auto map = [&](int protection) { return mmap(nullptr, mapped, protection, MAP_SHARED, memory.get(), 0); };
  void* base = map(is_hidden ? PROT_NONE : PROT_READ | PROT_WRITE);
  if (base == MAP_FAILED) return systemError("mmap", bytes);
  void* alias = is_hidden ? map(PROT_READ | PROT_WRITE) : base;
  if (alias == MAP_FAILED) {
    const Status failure = systemError("mmap", bytes);
    munmap(base, mapped);
    return failure;
  }
  made->base_ = static_cast<uint8_t*>(base);
  made->alias_ = static_cast<uint8_t*>(alias);
  made->mapped_ = mapped;

  const std::lock_guard lock(book().mutex);
  const auto begin = reinterpret_cast<uintptr_t>(base);
  for (int row = 0; row < kRows && made->row_ < 0; ++row) {
    if (rows[row].end.load(std::memory_order_relaxed) != 0) continue;
    made->row_ = row;
    rows[row].allocation = ++book().last_number;
    rows[row].device = device;
    rows[row].begin = begin;
    rows[row].end = begin + mapped;
  }
  if (made->row_ < 0) {
    return Status(Kind::kResource, Scope::kProcess, "resource",
                  "virtual accelerators have " + std::to_string(kRows) + " allocations, their limit; free some");
  }
  book().by_end[begin + mapped] = made;
  return made;
}

void Allocation::forget() {
  const std::lock_guard lock(book().mutex);
  book().by_end.erase(reinterpret_cast<uintptr_t>(base_) + mapped_);
}

Allocation::~Allocation() {
  if (base_ == nullptr) return;
  if (row_ >= 0) rows[row_].end = 0;
  munmap(base_, mapped_);
  if (alias_ != base_) munmap(alias_, mapped_);
}

std::shared_ptr<const void> Allocation::pin() {
  pins_.fetch_add(1, std::memory_order_relaxed);
  std::shared_ptr<Allocation> self = shared_from_this();
  return std::shared_ptr<const void>(
      this, [self = std::move(self)](const void*) { self->pins_.fetch_sub(1, std::memory_order_release); });
}

Result<Range> findRange(const void* memory, size_t bytes, const char* what) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const std::lock_guard lock(book().mutex);
  const auto found = book().by_end.upper_bound(begin);
  if (found != book().by_end.end()) {
    const std::shared_ptr<Allocation>& allocation = found->second;
    const auto base = reinterpret_cast<uintptr_t>(allocation->base());
    if (begin >= base && begin - base <= allocation->bytes() && bytes <= allocation->bytes() - (begin - base)) {
      return Range{allocation, allocation->alias() + (begin - base)};
    }
  }
  return Status(Kind::kBadArgument, Scope::kCall, "bad_argument",
                std::string(what) + ": " + std::to_string(bytes) + " bytes at " + std::to_string(begin) +
                    " are not within one living allocation of a virtual accelerator");
}

bool findOwner(uintptr_t address, Owner* owner) {
  for (const Row& row : rows) {
    const uintptr_t begin = row.begin, end = row.end;
    if (address < begin || address >= end) continue;
    *owner = {row.allocation, row.device, begin, end};
    return true;
  }
  return false;
}

}  // namespace jhetcc::device::fake
