// SPDX-License-Identifier: Apache-2.0
// A rank's device as its operations use it: scratch and staging, copies and reductions in the order of one stream of
// ours, and the places that calls have in their callers' streams. Under the engine's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/status.h"
#include "device/gate.h"
#include "engine/reduce.h"

namespace jhetcc::engine {

/// A call's place in its caller's stream: reached when the stream's earlier work is done, opened when the call is.
struct Turn {
  device::Gate* gate = nullptr;  ///< null: the call is on memory of the host
  uint64_t value = 0;
  bool isReached() const { return gate == nullptr || gate->reached() >= value; }
  void open() const {
    if (gate != nullptr) gate->open(value);
  }
};

class LaneSink {
 public:
  virtual ~LaneSink() = default;
  virtual void onDeviceDone(uint64_t token) = 0;
};

class Lane {
 public:
  /// Queues a reduction of device memory on a stream of the device. `sources` are the callee's to copy.
  using Reducer = std::function<Status(const Reduction& reduction, device::Stream stream)>;

  /// Our stream gets a hardware queue of its own: callers' streams that wait for an operation must not hold its copies.
  static Result<std::unique_ptr<Lane>> create(std::shared_ptr<device::Device> device, Reducer reducer);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// Takes a place in the caller's stream, whose later work waits for Turn::open() where its streams can wait for a
  /// value; else (`must_wait`) the caller queues nothing more before the operation has ended.
  Result<Turn> enter(device::Stream stream);
  bool mustWait() const { return !device_->capabilities().stream_values; }

  /// Grown when an operation needs more than any before, by half at least, so one that ran once allocates nothing.
  /// Idle only.
  Status reserve(size_t scratch_bytes, size_t staging_bytes);
  char* scratch() const { return scratch_.base; }
  char* staging() const { return staging_.base; }  ///< pinned memory of the host
  /// Where a NIC sees these bytes; null (with isRegistrable() false) where none does.
  Result<void*> alias(const void* memory, size_t bytes) { return device_->alias(memory, bytes); }
  bool isRegistrable() const { return is_registrable_; }

  // Queued in order; the token is told by poll() when it is done. Not ok: nothing was queued.
  Status copy(void* target, const void* source, size_t bytes, uint64_t token);
  Status zero(void* target, size_t bytes, uint64_t token);
  Status reduce(const Reduction& reduction, uint64_t token);

  bool isBusy() const { return !told_.empty() || under_way_ > 0; }
  Status poll(LaneSink& sink);
  /// Waits for what is queued, and tells nobody. Bounded: what is queued here waits for nothing.
  Status drain();
  const std::shared_ptr<device::Device>& device() const { return device_; }

 private:
  struct Memory {
    char* base = nullptr;
    size_t bytes = 0;
  };
  /// What an event that was recorded stands for.
  struct Mark {
    device::Event event = nullptr;
    std::vector<uint64_t> tokens;
  };
  static constexpr size_t kMarks = 16;

  Lane(std::shared_ptr<device::Device> device, Reducer reducer)
      : device_(std::move(device)), reducer_(std::move(reducer)) {}
  Status start();
  Status grow(Memory& memory, size_t bytes, device::MemoryKind kind);
  Status queued(uint64_t token);
  Status mark();

  const std::shared_ptr<device::Device> device_;
  const Reducer reducer_;
  device::Stream stream_ = nullptr;
  bool is_registrable_ = false;
  Memory scratch_, staging_;
  std::vector<Memory> outgrown_;
  struct Place {
    std::unique_ptr<device::Gate> gate;
    uint64_t last = 0;
  };
  std::map<device::Stream, Place> places_;
  Mark marks_[kMarks];  ///< a ring: `under_way_` of them from `first_` on are recorded
  size_t first_ = 0, under_way_ = 0;
  std::vector<uint64_t> told_;  ///< queued behind the last mark, for want of a free one
};

}  // namespace jhetcc::engine
