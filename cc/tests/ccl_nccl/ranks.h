// SPDX-License-Identifier: Apache-2.0
// Ranks of one process, each with a virtual accelerator, and the tests' NCCL loaded as a user's would be.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "ccl/nccl/nccl.h"
#include "device/fake/fake.h"
#include "fake_nccl/control.h"

namespace jhetcc::ccl::nccl::tests {

namespace control = jhetcc::tests::fake_nccl;
using device::MemoryKind;

inline int64_t soonNs(int64_t ms = 20'000) { return SystemClock().nowNs() + ms * kNsPerMs; }

template <typename T>
T must(Result<T> result) {
  REQUIRE_MESSAGE(result.isOk(), result.status().message());
  return std::move(result).value();
}
inline void must(const Status& status) { REQUIRE_MESSAGE(status.isOk(), status.message()); }

using control::Control;

inline std::shared_ptr<Library> load(const std::string& path, int64_t timeout_ms = 20'000) {
  NcclOptions options;
  options.path = path;
  options.timeout_ns = timeout_ms * kNsPerMs;
  return must(loadNccl(options));
}

/// Memory on a device, with as much pinned memory to see it by.
class Buffer {
 public:
  Buffer(device::Device& device, size_t bytes)
      : device_(device),
        bytes_(bytes),
        there_(must(device.allocate(bytes, MemoryKind::kDevice))),
        here_(must(device.allocate(bytes, MemoryKind::kPinned))) {}
  ~Buffer() {
    CHECK(device_.free(there_).isOk());
    CHECK(device_.free(here_).isOk());
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  char* there() const { return static_cast<char*>(there_); }
  char* here() const { return static_cast<char*>(here_); }
  void up(device::Stream stream) { must(device_.copy(there_, here_, bytes_, stream)); }
  void down(device::Stream stream) { must(device_.copy(here_, there_, bytes_, stream)); }

 private:
  device::Device& device_;
  size_t bytes_;
  void *there_, *here_;
};

struct Rank {
  std::unique_ptr<device::fake::FakeDevice> device;
  device::Stream stream = nullptr;
  std::unique_ptr<Buffer> input, output;
};

using Communicators = std::vector<std::unique_ptr<Communicator>>;

/// A communicator of these ranks, made by a thread each, as all members must come. Null where it failed: `failed` says
/// why.
inline Communicators connect(Library& library, size_t size, std::vector<Status>* failed = nullptr) {
  const std::string token = must(library.makeToken(static_cast<int32_t>(size), true));
  std::vector<Result<std::unique_ptr<Communicator>>> made;
  for (size_t rank = 0; rank < size; ++rank) made.emplace_back(Status(Kind::kInternal, Scope::kCall, "x", "not made"));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Group group;
      group.token = token;
      group.rank = static_cast<int32_t>(rank);
      group.size = static_cast<int32_t>(size);
      made[rank] = library.create(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  Communicators communicators;
  for (auto& result : made) {
    if (failed != nullptr) {
      failed->push_back(result.status());
    } else {
      REQUIRE_MESSAGE(result.isOk(), result.status().message());
    }
    communicators.push_back(result.isOk() ? std::move(result).value() : nullptr);
  }
  return communicators;
}

class Ranks {
 public:
  Ranks(size_t size, size_t bytes, const device::fake::Options& options = {}) {
    for (size_t rank = 0; rank < size; ++rank) {
      Rank made;
      made.device = must(device::fake::create(options));
      made.stream = must(made.device->createStream());
      made.input = std::make_unique<Buffer>(*made.device, bytes);
      made.output = std::make_unique<Buffer>(*made.device, bytes);
      ranks_.push_back(std::move(made));
    }
  }
  Rank& operator[](size_t rank) { return ranks_[rank]; }
  size_t size() const { return ranks_.size(); }
  void synchronize() {
    for (Rank& rank : ranks_) must(rank.device->synchronize(rank.stream, soonNs()));
  }
  /// Inputs as their pinned half has them, outputs full of 0x5A.
  void up(size_t output_bytes) {
    for (Rank& rank : ranks_) {
      std::memset(rank.output->here(), 0x5A, output_bytes);
      rank.input->up(rank.stream);
      rank.output->up(rank.stream);
    }
  }
  void down() {
    for (Rank& rank : ranks_) rank.output->down(rank.stream);
    synchronize();
  }

 private:
  std::vector<Rank> ranks_;
};

}  // namespace jhetcc::ccl::nccl::tests
