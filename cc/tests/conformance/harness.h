// SPDX-License-Identifier: Apache-2.0
// A pair of connected endpoints of each transport, driven by one thread, and a sink that remembers what came.
#pragma once

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/transport.h"

namespace jhetcc::transport::conformance {

using EndpointPair = std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>>;

struct ReceivedFrame {
  FrameHeader header;
  std::vector<uint8_t> payload;
};

class Recorder final : public EventSink {
 public:
  void onFrame(const FrameHeader& header, const void* payload) override {
    ReceivedFrame frame{header, {}};
    if (header.type != FrameType::kOffer && header.length > 0) {
      const auto* first = static_cast<const uint8_t*>(payload);
      frame.payload.assign(first, first + header.length);
    }
    frames.push_back(std::move(frame));
    if (on_frame) on_frame(frames.back());
  }
  void onFetched(uint64_t token, Status status) override { fetched.emplace_back(token, std::move(status)); }
  void onReleased(uint64_t cookie) override { released.push_back(cookie); }

  std::vector<ReceivedFrame> frames;
  std::vector<std::pair<uint64_t, Status>> fetched;
  std::vector<uint64_t> released;
  std::function<void(const ReceivedFrame&)> on_frame;
};

/// Two ends in one thread. `tick` lets the world between them go on (the simulated network).
class Pair {
 public:
  explicit Pair(EndpointPair ends) : a(std::move(ends.first)), b(std::move(ends.second)) {}
  virtual ~Pair() = default;
  virtual void tick() {}

  /// Polls both ends until `done`; false after the deadline. Broken ends are remembered, not polled again.
  bool until(const std::function<bool()>& done, int64_t timeout_ms = 20'000) {
    SystemClock clock;
    const int64_t deadline_ns = clock.nowNs() + timeout_ms * kNsPerMs;
    while (!done()) {
      if (clock.nowNs() > deadline_ns) return false;
      pollOnce();
    }
    return true;
  }
  void pollOnce() {
    if (a && a_status.isOk()) a_status = a->poll(from_b);
    if (b && b_status.isOk()) b_status = b->poll(from_a);
    tick();
  }
  /// Sends, polling both ends as long as there is no room.
  void sendSurely(Endpoint& from, const FrameHeader& header, const void* payload) {
    const bool sent = until([&] {
      const Result<bool> taken = from.send(header, payload);
      REQUIRE_MESSAGE(taken.isOk(), taken.status().message());
      return taken.value();
    });
    REQUIRE(sent);
  }

  std::unique_ptr<Endpoint> a;
  std::unique_ptr<Endpoint> b;
  Recorder from_b;  ///< what endpoint a reported
  Recorder from_a;  ///< what endpoint b reported
  Status a_status;
  Status b_status;
};

inline std::vector<uint8_t> pattern(uint64_t size, uint64_t seed) {
  std::vector<uint8_t> bytes(size);
  uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (uint64_t i = 0; i < size; ++i) {
    if (i % 8 == 0) state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    bytes[i] = static_cast<uint8_t>(state >> (8 * (i % 8)));
  }
  return bytes;
}

inline FrameHeader dataHeader(uint32_t index, uint64_t length) {
  FrameHeader header;
  header.type = FrameType::kData;
  header.flags = 5;
  header.stream = static_cast<uint16_t>(index * 7);
  header.index = index;
  header.communicator = 0x1122334455667788ULL;
  header.sequence = uint64_t{index} << 33 | 1;
  header.fingerprint = ~uint64_t{index};
  header.length = length;
  header.source = 3;
  header.tag = index ^ 0xFFFF;
  return header;
}

inline FrameHeader offerHeader(const void* data, uint64_t length, uint64_t cookie) {
  FrameHeader header = dataHeader(static_cast<uint32_t>(cookie), length);
  header.type = FrameType::kOffer;
  header.address = reinterpret_cast<uint64_t>(data);
  header.cookie = cookie;
  return header;
}

/// Memory with guard bytes on both sides, to see writes outside of it and writes that come too late.
class Guarded {
 public:
  explicit Guarded(uint64_t size) : bytes_(size + 2 * kGuard, kFill), size_(size) {}
  uint8_t* data() { return bytes_.data() + kGuard; }
  bool holds(const std::vector<uint8_t>& expected) const {
    return guardsIntact() && expected.size() == size_ &&
           std::memcmp(bytes_.data() + kGuard, expected.data(), size_) == 0;
  }
  bool guardsIntact() const {
    for (uint64_t i = 0; i < kGuard; ++i) {
      if (bytes_[i] != kFill || bytes_[kGuard + size_ + i] != kFill) return false;
    }
    return true;
  }
  std::vector<uint8_t> snapshot() const { return bytes_; }

 private:
  static constexpr uint64_t kGuard = 256;
  static constexpr uint8_t kFill = 0xA5;
  std::vector<uint8_t> bytes_;
  uint64_t size_;
};

/// Pages that can be taken away: reading them afterwards kills the process.
class Pages {
 public:
  explicit Pages(uint64_t size) : size_((size + 4095) / 4096 * 4096) {
    data_ = static_cast<uint8_t*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(data_ != MAP_FAILED);
  }
  ~Pages() { munmap(data_, size_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  uint8_t* data() { return data_; }
  void forbid() { REQUIRE(mprotect(data_, size_, PROT_NONE) == 0); }

 private:
  uint64_t size_;
  uint8_t* data_;
};

}  // namespace jhetcc::transport::conformance
