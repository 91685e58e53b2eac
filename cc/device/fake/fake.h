// SPDX-License-Identifier: Apache-2.0
// A virtual accelerator for tests: asynchronous in-order streams on few hardware queues, callbacks on one foreign
// thread, and memory that the host cannot touch. docs/devices.md says what it proves and what it does not. Any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "device/device.h"

namespace jhetcc::device::fake {

struct Options {
  int queues = 2;             ///< hardware queues; the k-th stream runs on queue k modulo this, behind what waits there
  int own_queues = 4;         ///< for streams with a queue of their own; more of them: kResource
  bool stream_values = true;  ///< false: gates go by callbacks
  bool registrable = true;    ///< false: no NIC can be registered, alias() is kUnavailable
  bool manual = false;        ///< no thread: work is done in step() and synchronize() alone, by one thread
  uint64_t seed = 1;          ///< which of the queues that are ready goes next
  int64_t callback_limit_ns = 2'000'000'000;  ///< a callback that takes longer waits for something: counted
};

/// Since the device was made.
struct Counters {
  uint64_t allocations = 0;              ///< of memory, streams and events
  uint64_t device_synchronisations = 0;  ///< free() is one, as on real devices; there is no other call
  uint64_t copies = 0;
  uint64_t bytes_on_device = 0;  ///< copied from memory of devices to memory of devices
  uint64_t bytes_to_host = 0;    ///< copied to pinned memory
  uint64_t bytes_from_host = 0;  ///< copied from pinned memory
  uint64_t values = 0;           ///< written and waited for by streams
  uint64_t callbacks = 0;
  uint64_t callbacks_refused = 0;  ///< calls of a device out of a callback; they fail
  uint64_t callbacks_waited = 0;   ///< callbacks past the limit; no stream of the process goes on during a callback
};

class FakeDevice : public Device {
 public:
  virtual Counters counters() const = 0;
  /// Only if manual: does one piece of work that is ready, chosen by the seed. False: nothing is ready.
  virtual bool step() = 0;
};

/// kResource without a thread. Work still queued when the device is destroyed is dropped.
Result<std::unique_ptr<FakeDevice>> create(const Options& options = {});

}  // namespace jhetcc::device::fake
