// SPDX-License-Identifier: Apache-2.0
// The memory both ends share: its layout, and its owner. Only atomics and ring bytes in it are touched by both sides.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/status.h"
#include "transport/offers.h"

namespace jhetcc::transport::shm {

constexpr uint64_t kLine = 64;
constexpr uint32_t kRingBytesMin = 64 * 1024;
constexpr uint32_t kRingBytesMax = 64 * 1024 * 1024;
/// Of the staging memory of one direction, touched only when used. More than a core's second cache, so that the lines a
/// writer takes over have left the reader's: writing is three times slower otherwise.
constexpr uint64_t kStageBytes = 2 * 1024 * 1024;

/// Byte counts since the start; their difference is what lies in the ring.
struct RingControl {
  alignas(kLine) std::atomic<uint64_t> head;  ///< written by the producer
  alignas(kLine) std::atomic<uint64_t> tail;  ///< written by the consumer
};

struct SideControl {
  alignas(kLine) std::atomic<uint32_t> sleeping;  ///< what the side wants to be woken for; cleared by who wakes it
  std::atomic<uint32_t> closed;                   ///< within one process: the endpoint is destroyed
};
constexpr uint32_t kWakeForFrames = 1;
constexpr uint32_t kWakeForRoom = 2;

/// State of one open offer, seen by the fetching side: what was read counts only if the offer was still open after it.
struct OfferSlot {
  std::atomic<uint64_t> cookie;
  std::atomic<uint32_t> state;
  uint32_t reserved;
};
constexpr uint32_t kOfferFree = 0;
constexpr uint32_t kOfferOpen = 1;
constexpr uint32_t kOfferReading = 2;  ///< within one process: the peer's thread copies right now

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

struct Layout {
  SideControl sides[2];
  RingControl rings[2];   ///< rings[i] is written by side i
  RingControl stages[2];  ///< likewise; the heads are not used, for a frame announces every piece
  OfferSlot offers[2][kOfferSlots];
};

class Segment {
 public:
  /// Private to this process.
  static Result<std::shared_ptr<Segment>> createLocal(uint32_t ring_bytes);
  /// Nameless and sealed; `memory` is for the peer.
  static Result<std::shared_ptr<Segment>> createShared(uint32_t ring_bytes, Fd& memory);
  /// Maps what the peer sent, if it is what it says.
  static Result<std::shared_ptr<Segment>> map(const Fd& memory, uint32_t ring_bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  Layout& layout() const { return *static_cast<Layout*>(base_); }
  uint8_t* ring(int side) const;
  uint8_t* stage(int side) const;
  uint32_t ringBytes() const { return ring_bytes_; }

 private:
  Segment(void* base, uint64_t size, uint32_t ring_bytes) : base_(base), size_(size), ring_bytes_(ring_bytes) {}
  static Result<std::shared_ptr<Segment>> mapAnywhere(int memory, uint32_t ring_bytes);
  void* base_;
  uint64_t size_;
  uint32_t ring_bytes_;
};

}  // namespace jhetcc::transport::shm
