// SPDX-License-Identifier: Apache-2.0
// A simulated rank's virtual accelerator, and a call's memory there: its input comes, and its result goes, by work that
// is queued on the caller's stream before and after the call. One thread.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "device/fake/fake.h"
#include "engine/engine.h"

namespace jhetcc::engine::testing {

struct DeviceRank {
  std::shared_ptr<device::fake::FakeDevice> device;
  std::vector<device::Stream> streams;  ///< the callers', more than there are hardware queues
  bool must_wait = false;               ///< streams cannot wait for the host
};

/// Memory on the device: [guard, input, guard, output, guard]; pinned: the same, what came out, and what lies there at
/// the end.
class DeviceCall {
 public:
  DeviceCall(DeviceRank& rank, device::Stream stream, const std::vector<uint8_t>& input, size_t output_bytes,
             bool is_in_place, uint8_t poison);
  ~DeviceCall();
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;

  Buffers buffers() const;
  void queueBefore();  ///< the input, and rubbish as output, go up
  void queueAfter();   ///< the output comes down, then everything is poisoned
  /// Once the stream has done all: what came down.
  std::vector<uint8_t> output() const;
  /// Once the stream has done all: whether something was written besides the output, or after the end. Queues and
  /// waits.
  bool isUntouched();
  device::Stream stream() const { return stream_; }
  size_t bytes() const { return total(); }  ///< of what is copied up, down, up again, and down by isUntouched()
  static size_t bytesOf(size_t input_and_output) { return 3 * kGuard + input_and_output; }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint8_t kGuardByte = 0x77;
  size_t total() const { return 3 * kGuard + input_bytes_ + output_bytes_; }
  size_t outputAt() const { return is_in_place_ ? kGuard : 2 * kGuard + input_bytes_; }

  DeviceRank& rank_;
  const device::Stream stream_;
  const size_t input_bytes_, output_bytes_;
  const bool is_in_place_;
  const uint8_t poison_;
  char* there_ = nullptr;
  char* here_ = nullptr;  ///< four times total(): up, down, poison, end
};

}  // namespace jhetcc::engine::testing
