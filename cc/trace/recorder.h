// SPDX-License-Identifier: Apache-2.0
// The flight recorder: the last few thousand events of this process in memory, for when something went wrong.
// Any thread writes, without locks, allocation or I/O; any thread takes a snapshot.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"

namespace jhetcc::trace {

/// The numbers are part of dumps: add at the end.
enum class EventKind : uint16_t {
  kNone = 0,
  kOperationStarted,  ///< argument: fingerprint
  kOperationFinished,
  kOperationFailed,  ///< argument: Kind of the status
  kStepStarted,      ///< one iteration (index) of a step, of operations in chunks; argument: StepKind
  kStepFinished,
  kFrameSent,      ///< argument: FrameType
  kFrameReceived,  ///< argument: FrameType
  kFetchStarted,
  kFetchFinished,
  kReleased,
  kWaitStarted,  ///< somebody waits for an operation
  kWaitFinished,
  kSleep,  ///< a progress thread goes to sleep
  kWake,
  kConnected,     ///< a path is back; argument: its number, step: the peer, index: how often it was connected anew
  kDisconnected,  ///< it was lost; the same
  kSuspected,     ///< argument: Kind of the cause
  kVerdict,       ///< argument: number of lost members
  kShrunk,        ///< argument: new epoch
  kMark,          ///< argument: the user's
  kResent,        ///< a stripe (bytes) goes again over the path in argument, for another was lost; step: the peer
  kKinds,
};
const char* eventName(EventKind kind);

/// One event; fields that do not apply are zero, a peer that does not apply is -1.
struct Record {
  int64_t time_ns = 0;  ///< the writer's monotonic clock
  uint64_t communicator = 0;
  uint64_t sequence = 0;  ///< operation number within the communicator
  uint64_t bytes = 0;
  uint64_t argument = 0;
  int32_t step = 0;
  int32_t peer = -1;
  uint32_t index = 0;
  uint16_t stream = 0;
  EventKind kind = EventKind::kNone;
};
static_assert(sizeof(Record) == 56, "with the slot's ticket one cache line");

class Recorder {
 public:
  /// `capacity`: a power of two from 2 to 2^24. All memory is taken here.
  static Result<std::unique_ptr<Recorder>> create(size_t capacity);

  /// Overwrites the oldest. A record is lost (and counted) only if a writer was overtaken by a whole round of the ring.
  void write(const Record& record);
  /// Oldest first. Records that are being written or overwritten meanwhile are left out.
  std::vector<Record> snapshot() const;

  size_t capacity() const { return mask_ + 1; }
  uint64_t written() const { return next_.load(std::memory_order_relaxed); }
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kWords = sizeof(Record) / sizeof(uint64_t);
  /// state: 2t+1 while the record of ticket t is written, 2t+2 once it is whole; 0 never used.
  struct alignas(64) Slot {
    std::atomic<uint64_t> state{0};
    std::atomic<uint64_t> words[kWords];
  };
  static_assert(sizeof(Slot) == 64);

  explicit Recorder(size_t capacity) : mask_(capacity - 1), slots_(new Slot[capacity]) {}
  const size_t mask_;
  std::unique_ptr<Slot[]> slots_;
  alignas(64) std::atomic<uint64_t> next_{0};
  std::atomic<uint64_t> lost_{0};
};

}  // namespace jhetcc::trace
