// SPDX-License-Identifier: Apache-2.0
// The two ends of a direction's staging memory: pieces of payloads lie in it in the order in which frames announce
// them. Positions are counted by both ends and never sent; only the consumer's count comes from the other side, and is
// checked.
#pragma once

#include <sys/mman.h>

#include "transport/shm/segment.h"

namespace jhetcc::transport::shm {

/// Longest piece.
constexpr uint64_t kPieceBytes = 256 * 1024;

class Stage {
 public:
  explicit Stage(RingControl& control, uint8_t* data) : control_(control), data_(data) {}

  /// Producer: place for the next piece of at most kPieceBytes, or null where the consumer has not made room.
  uint8_t* reserve(uint64_t bytes) {
    const uint64_t end = endOf(bytes);
    if (end - tail_seen_ > kStageBytes && !hasRoom(end)) return nullptr;
    count_ = end;
    return data_ + (end - padded(bytes)) % kStageBytes;
  }
  /// Producer: whether a longest piece has a place.
  bool hasRoom() { return hasRoom(endOf(kPieceBytes)); }
  bool isDamaged() const { return is_damaged_; }

  /// Consumer: where the piece lies that was just announced. release() gives its place back.
  const uint8_t* next(uint64_t bytes) {
    count_ = endOf(bytes);
    return data_ + (count_ - padded(bytes)) % kStageBytes;
  }
  void release() { control_.tail.store(count_, std::memory_order_seq_cst); }

  /// Either: takes the pages now, all at once, rather than one by one while payloads wait.
  void populate(bool writing) {
    if (is_populated_) return;
    is_populated_ = true;
    constexpr int kPopulateRead = 22, kPopulateWrite = 23;  // MADV_POPULATE_*, which older C libraries do not name
    madvise(data_, kStageBytes, writing ? kPopulateWrite : kPopulateRead);  // older kernels: page by page
  }

 private:
  static uint64_t padded(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
  /// Count after a piece: pieces are contiguous, so the rest of the memory is skipped where one does not fit.
  uint64_t endOf(uint64_t bytes) const {
    const uint64_t to_end = kStageBytes - count_ % kStageBytes;
    return count_ + (to_end < padded(bytes) ? to_end : 0) + padded(bytes);
  }
  bool hasRoom(uint64_t end) {
    const uint64_t tail = control_.tail.load(std::memory_order_seq_cst);
    if (tail < tail_seen_ || tail > count_) {
      is_damaged_ = true;
      return false;
    }
    tail_seen_ = tail;
    return end - tail <= kStageBytes;
  }

  RingControl& control_;
  uint8_t* data_;
  uint64_t count_ = 0;
  uint64_t tail_seen_ = 0;
  bool is_populated_ = false;
  bool is_damaged_ = false;
};

}  // namespace jhetcc::transport::shm
