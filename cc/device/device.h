// SPDX-License-Identifier: Apache-2.0
// What communication needs of a device: memory, streams, events, copies, gates. One folder a kind of device. Any
// thread. Nothing here waits for all streams of a device, and nothing but synchronize() waits at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace jhetcc::device {

enum class MemoryKind : uint8_t {
  kDevice,  ///< the device's own; only its streams and registered NICs touch it, unless host_reads_device
  kPinned,  ///< of the host, and the device's streams reach it: words of gates, and the bounce where no NIC is
            ///< registered
};

struct Capabilities {
  std::string name;                ///< "host", "fake"
  bool host_reads_device = false;  ///< memory of kDevice is memory of the host
  bool stream_values = false;      ///< writeValue() and waitValue() exist; else gates go by callbacks
};

/// As the vendor's libraries take them; a stream of XLA's is one too.
using Stream = void*;
using Event = void*;
/// Streams share a few hardware queues, and what waits at a queue's head holds all that is behind it. Work that others'
/// waits depend on needs a queue that nobody waits on.
enum class Queue : uint8_t {
  kShared,
  kPrivate,  ///< a device has few of these
};
/// Runs on a thread of the device's driver. It may store and notify; it must not call a device, nor wait.
using Callback = void (*)(void* context);

class Device {
 public:
  virtual ~Device() = default;
  virtual const Capabilities& capabilities() const = 0;

  /// Only while warming up; a page's alignment. free() may wait for the device and refuses memory that streams still
  /// use.
  virtual Result<void*> allocate(size_t bytes, MemoryKind kind) = 0;
  virtual Status free(void* memory) = 0;
  /// Where a registered NIC sees these bytes, until they are freed. kUnavailable: it cannot; bounce through kPinned.
  virtual Result<void*> alias(const void* memory, size_t bytes) = 0;

  virtual Result<Stream> createStream(Queue queue = Queue::kShared) = 0;
  virtual Status destroyStream(Stream stream) = 0;  ///< work queued before still runs
  virtual Result<Event> createEvent() = 0;
  virtual Status destroyEvent(Event event) = 0;

  // Queued on the stream, in order; none of them waits. Both ends of a copy are memory of allocate().
  virtual Status copy(void* target, const void* source, size_t bytes, Stream stream) = 0;
  virtual Status zero(void* target, size_t bytes, Stream stream) = 0;  ///< fills memory of allocate() with zeros
  virtual Status record(Event event, Stream stream) = 0;
  /// Later work of the stream waits for what the event recorded last before this call; for nothing if there is none.
  virtual Status wait(Event event, Stream stream) = 0;
  virtual Status callback(Callback function, void* context, Stream stream) = 0;
  /// Words are 8-byte aligned, in kPinned memory, and the other side uses std::atomic_ref.
  /// kUnavailable without stream_values, both.
  virtual Status writeValue(uint64_t* word, uint64_t value, Stream stream) = 0;
  /// Later work of the stream waits until *word >= value.
  virtual Status waitValue(const uint64_t* word, uint64_t value, Stream stream) = 0;

  /// Whether all that the event recorded last is done; true if it recorded nothing.
  virtual Result<bool> isDone(Event event) = 0;
  /// Waits for what is queued on this stream; kTimeout at the deadline (monotonic nanoseconds of SystemClock).
  virtual Status synchronize(Stream stream, int64_t deadline_ns) = 0;
};

}  // namespace jhetcc::device
