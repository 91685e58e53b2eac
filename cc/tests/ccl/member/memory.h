// SPDX-License-Identifier: Apache-2.0
// Where a rank's buffers are: in the host's memory for libraries whose calls block, else on a virtual accelerator. One
// thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "ccl/member/member.h"
#include "device/fake/fake.h"
#include "device/host/host.h"

namespace jhetcc::ccl {

class Place {
 public:
  explicit Place(const Capabilities& capabilities) : is_host_(capabilities.blocking) {
    device_ = is_host_ ? device::host::create() : must(device::fake::create(), "a virtual accelerator");
    stream_ = must(device_->createStream(), "a stream");
  }
  device::Device& device() { return *device_; }
  device::Stream deviceStream() { return stream_; }
  /// What calls are ordered on.
  Stream stream() { return is_host_ ? nullptr : stream_; }
  /// kTimeout: what is queued did not end.
  Status finish(int64_t timeout_ms = 60'000) {
    return device_->synchronize(stream_, kClock.nowNs() + timeout_ms * kNsPerMs);
  }

 private:
  const bool is_host_;
  std::unique_ptr<device::Device> device_;
  device::Stream stream_;
};

/// Memory at an odd place, with guards before and after. What the library does with it is over when it is looked at.
class Block {
 public:
  Block(Place& place, size_t bytes, size_t shift = 0)
      : place_(place), begin_(kGuardBytes + shift), bytes_(bytes), whole_(bytes + shift + 2 * kGuardBytes) {
    there_ = allocated(device::MemoryKind::kDevice);
    here_ = allocated(device::MemoryKind::kPinned);
    std::memset(here_, kGuard, whole_);
    copy(there_, here_);
  }
  ~Block() {
    require(place_.finish(), "the end of what uses a block");
    for (uint8_t* memory : {there_, here_}) require(place_.device().free(memory), "freeing a block");
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void* data() { return there_ + begin_; }
  uint8_t* at(size_t offset) { return there_ + begin_ + offset; }
  void put(const std::vector<uint8_t>& bytes, size_t offset = 0) {
    require(offset + bytes.size() <= bytes_, "a block is too small");
    require(place_.finish(), "the block's use before");  // the copy before reads these bytes, perhaps
    std::copy(bytes.begin(), bytes.end(), here_ + begin_ + offset);
    copy(there_, here_);
  }
  std::vector<uint8_t> seen() {
    look();
    return {here_ + begin_, here_ + begin_ + bytes_};
  }
  bool holds(const std::vector<uint8_t>& wanted) {
    return seen() == wanted && guards(0, begin_) && guards(end(), whole_);
  }
  bool isUntouched() {
    look();
    return guards(0, whole_);
  }

 private:
  static constexpr size_t kGuardBytes = 64;
  static constexpr uint8_t kGuard = 0xa5;

  uint8_t* allocated(device::MemoryKind kind) {
    return static_cast<uint8_t*>(must(place_.device().allocate(whole_, kind), "memory"));
  }
  void copy(uint8_t* to, const uint8_t* from) {
    require(place_.device().copy(to, from, whole_, place_.deviceStream()), "a copy");
  }
  void look() {
    copy(here_, there_);
    require(place_.finish(), "what was queued");
  }
  size_t end() const { return begin_ + bytes_; }
  bool guards(size_t begin, size_t end) const {
    return std::all_of(here_ + begin, here_ + end, [](uint8_t byte) { return byte == kGuard; });
  }

  Place& place_;
  const size_t begin_, bytes_, whole_;
  uint8_t *there_, *here_;
};

}  // namespace jhetcc::ccl
