// SPDX-License-Identifier: Apache-2.0
// Memory of virtual accelerators: one memfd mapped twice, without access where users hold it, readable and writable at
// the alias that the copy engine, kernels and registered NICs use. One book of all devices in the process. Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "device/device.h"

namespace jhetcc::device::fake {

class Allocation : public std::enable_shared_from_this<Allocation> {
 public:
  /// In the book until forget().
  static Result<std::shared_ptr<Allocation>> create(size_t bytes, MemoryKind kind, int device);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  /// No range of it is found any more; it stays mapped while pins are left.
  void forget();

  uint8_t* base() const { return base_; }
  uint8_t* alias() const { return alias_; }
  size_t bytes() const { return bytes_; }
  MemoryKind kind() const { return kind_; }
  bool isPinned() const { return pins_.load(std::memory_order_acquire) > 0; }
  /// Work that is queued holds one for each range it touches.
  std::shared_ptr<const void> pin();

 private:
  Allocation(size_t bytes, MemoryKind kind) : bytes_(bytes), kind_(kind) {}
  uint8_t* base_ = nullptr;
  uint8_t* alias_ = nullptr;
  size_t bytes_, mapped_ = 0;
  MemoryKind kind_;
  int row_ = -1;
  std::atomic<int> pins_{0};
};

struct Range {
  std::shared_ptr<Allocation> allocation;
  uint8_t* alias = nullptr;
};

/// kBadArgument unless all of it lies in one living allocation; `what` for the text. Zero bytes may lie at its end.
Result<Range> findRange(const void* memory, size_t bytes, const char* what);

/// For the handler of faults: safe in a signal handler.
struct Owner {
  uint64_t allocation = 0;
  int device = 0;
  uintptr_t begin = 0, end = 0;
};
bool findOwner(uintptr_t address, Owner* owner);

}  // namespace jhetcc::device::fake
