// SPDX-License-Identifier: Apache-2.0
// The devices the suite runs on, and what tests do with them.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "device/device.h"
#include "device/fake/fake.h"
#include "device/gate.h"
#include "device/host/host.h"

namespace jhetcc::device::tests {

inline int64_t nowNs() { return SystemClock().nowNs(); }
inline int64_t soonNs(int64_t ms = 20'000) { return nowNs() + ms * kNsPerMs; }

template <typename T>
T must(Result<T> result) {
  REQUIRE_MESSAGE(result.isOk(), result.status().message());
  return std::move(result).value();
}
inline void must(const Status& status) { REQUIRE_MESSAGE(status.isOk(), status.message()); }

inline std::unique_ptr<fake::FakeDevice> makeFake(const fake::Options& options = {}) {
  return must(fake::create(options));
}

struct Kind {
  std::string name;
  std::unique_ptr<Device> device;
};
inline std::vector<Kind> allKinds() {
  std::vector<Kind> kinds;
  kinds.push_back({"host", host::create()});
  kinds.push_back({"fake", makeFake()});
  kinds.push_back({"fake, one queue", makeFake({.queues = 1})});
  kinds.push_back({"fake, no values", makeFake({.stream_values = false})});
  kinds.push_back({"fake, manual", makeFake({.manual = true, .seed = 7})});
  return kinds;
}

/// Bytes on the device and as many in pinned memory.
class Bytes {
 public:
  Bytes(Device& device, size_t size)
      : device_(device),
        size_(size),
        there_(must(device.allocate(size, MemoryKind::kDevice))),
        here_(must(device.allocate(size, MemoryKind::kPinned))) {
    std::memset(here_, 0, size);
  }
  ~Bytes() {
    CHECK(device_.free(there_).isOk());
    CHECK(device_.free(here_).isOk());
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  uint8_t* there() const { return static_cast<uint8_t*>(there_); }
  uint8_t* here() const { return static_cast<uint8_t*>(here_); }
  size_t size() const { return size_; }
  void up(Stream stream) { must(device_.copy(there_, here_, size_, stream)); }
  void down(Stream stream) { must(device_.copy(here_, there_, size_, stream)); }

 private:
  Device& device_;
  size_t size_;
  void *there_, *here_;
};

}  // namespace jhetcc::device::tests
