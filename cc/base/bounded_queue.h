// SPDX-License-Identifier: Apache-2.0
// A queue of fixed size that never blocks: many writers, many readers (Vyukov's array queue, one sequence number a
// cell).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace jhetcc {

template <typename T>
class BoundedQueue {
 public:
  /// `capacity` is a power of two.
  explicit BoundedQueue(size_t capacity) : mask_(capacity - 1), cells_(new Cell[capacity]) {
    for (size_t i = 0; i < capacity; ++i) cells_[i].turn.store(i, std::memory_order_relaxed);
  }

  /// False: full, `value` is untouched.
  bool push(T&& value) {
    size_t place = tail_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[place & mask_];
      const auto lead = static_cast<intptr_t>(cell.turn.load(std::memory_order_acquire) - place);
      if (lead < 0) return false;
      if (lead > 0) {
        place = tail_.load(std::memory_order_relaxed);
      } else if (tail_.compare_exchange_weak(place, place + 1, std::memory_order_relaxed)) {
        cell.value = std::move(value);
        cell.turn.store(place + 1, std::memory_order_release);
        return true;
      }
    }
  }

  /// False: empty (or the oldest value is still being written).
  bool pop(T* value) {
    size_t place = head_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[place & mask_];
      const auto lead = static_cast<intptr_t>(cell.turn.load(std::memory_order_acquire) - (place + 1));
      if (lead < 0) return false;
      if (lead > 0) {
        place = head_.load(std::memory_order_relaxed);
      } else if (head_.compare_exchange_weak(place, place + 1, std::memory_order_relaxed)) {
        *value = std::move(cell.value);
        cell.value = T();
        cell.turn.store(place + mask_ + 1, std::memory_order_release);
        return true;
      }
    }
  }

 private:
  struct Cell {
    std::atomic<size_t> turn;
    T value;
  };
  const size_t mask_;
  std::unique_ptr<Cell[]> cells_;
  alignas(64) std::atomic<size_t> tail_{0};
  alignas(64) std::atomic<size_t> head_{0};
};

}  // namespace jhetcc
