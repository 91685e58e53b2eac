// SPDX-License-Identifier: Apache-2.0
// Two words between a stream and the host that only grow: "input ready" towards the host, "output done" towards the
// stream. Each has one writer, for a stream's write is a plain store and would undo the host's. One stream signals; the
// host's side is any thread; the stream's calls are queued and return at once.
#pragma once

#include <atomic>
#include <memory>

#include "device/device.h"

namespace jhetcc::device {

class Gate {
 public:
  /// Allocates; while warming up. The device outlives the gate, and the gate the work queued with it.
  static Result<std::unique_ptr<Gate>> create(Device& device);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// Once the stream has come here, reached() is at least `value`: by a written value, else by a callback that stores.
  Status signal(uint64_t value, Stream stream);
  /// The stream goes on here once open(value) was called. kUnavailable without stream values: a callback would have to
  /// wait, and all streams share its thread. The caller then waits for the host's work itself and queues the rest
  /// after.
  Status hold(uint64_t value, Stream stream);

  uint64_t reached() const { return word(kToHost).load(std::memory_order_acquire); }
  void open(uint64_t value);

 private:
  /// One of these for each signal by callback that is under way; a full ring says kResource.
  struct Note {
    Gate* gate = nullptr;
    uint64_t value = 0;
    std::atomic<bool> busy{false};
  };
  static constexpr size_t kNotes = 64;

  Gate(Device& device, uint64_t* memory) : device_(device), memory_(memory) {}
  static constexpr size_t kToHost = 0, kToStream = 8, kWords = 16;  ///< in cache lines of their own
  std::atomic_ref<uint64_t> word(size_t which) const { return std::atomic_ref<uint64_t>(memory_[which]); }

  Device& device_;
  uint64_t* memory_;
  Note notes_[kNotes];
};

}  // namespace jhetcc::device
