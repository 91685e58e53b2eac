// SPDX-License-Identifier: Apache-2.0
// A cluster of pretended processes that use a library together: what the tests of native calls share.
#pragma once

#include <doctest/doctest.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "control/store.h"
#include "runtime/meeting_library.h"
#include "runtime/native.h"

namespace jhetcc::runtime::testing {

using engine::NativeCall;
using schedule::DataType;
using schedule::ReduceOp;
using schedule::StepKind;

constexpr int64_t kSecondNs = 1000 * kNsPerMs;
inline const SystemClock kClock;
inline const std::function<bool()> kNever = [] { return false; };

template <typename T>
T must(Result<T> result) {
  JHETCC_CHECK(result.isOk(), result.status().message());
  return std::move(result).value();
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
inline net::Secret secret() { return must(net::Secret::create("a secret for tests only")); }
inline net::Identity identity(int32_t rank) { return {"job", net::Role::kControl, rank, 7, 0, 0}; }

class Bell {
 public:
  void ring() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++rung_;
    changed_.notify_all();
  }
  int rung() {
    std::lock_guard<std::mutex> lock(mutex_);
    return rung_;
  }
  bool await(int more_than, int64_t timeout_ns) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [&] { return rung_ > more_than; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int rung_ = 0;
};

/// One rank's worker and what it told.
class Rank final : public engine::NativeSink {
 public:
  Rank(std::shared_ptr<const LibraryInUse> in_use, uint64_t communicator, std::vector<int32_t> world_ranks,
       int32_t world_rank)
      : worker(
            std::move(in_use), communicator, std::move(world_ranks), world_rank, [bell = bell] { bell->ring(); }, 0) {}

  void onNativeDone(uint64_t token, const Status& status) override { told.emplace_back(token, status); }

  NativeCall call(StepKind kind, const std::vector<int32_t>& members, int32_t root, const void* source, void* target,
                  size_t bytes) {
    return {kind,  DataType::kFloat32, ReduceOp::kSum, &members, root, source, target, bytes, false, false, {}, {},
            next++};
  }
  /// False: this many were not told within the time.
  bool await(size_t count, int64_t timeout_ns = 20 * kSecondNs) {
    const int64_t deadline = kClock.nowNs() + timeout_ns;
    while (told.size() < count) {
      const int heard = bell->rung();
      if (worker.poll(*this)) continue;
      if (!bell->await(heard, deadline - kClock.nowNs())) return worker.poll(*this) && told.size() >= count;
    }
    return true;
  }
  /// The status of one call that was started last.
  Status last() {
    REQUIRE(await(next));
    return told.back().second;
  }

  std::shared_ptr<Bell> bell = std::make_shared<Bell>();
  std::vector<std::pair<uint64_t, Status>> told;
  uint64_t next = 0;
  NativeWorker worker;
};

/// A cluster of so many processes, pretended in this one.
struct Cluster {
  explicit Cluster(int32_t size, int64_t timeout_ns = 20 * kSecondNs) : timeout_ns(timeout_ns) {
    store = must(
        control::StoreServer::create({must(net::Address::fromHost("127.0.0.1", 0)), secret(), identity(0), &kClock}));
    for (int32_t rank = 0; rank < size; ++rank) {
      all.push_back(rank);
      const auto deadline = net::Deadline::after(kClock, 10 * kSecondNs);
      clients.push_back(must(control::StoreClient::connect(store->address(), secret(), identity(rank), deadline)));
      libraries.push_back(std::make_shared<MeetingLibrary>(hall));
    }
  }
  ~Cluster() {
    hall->set([this] {
      hall->is_shut = hall->creates_for_ever = hall->keeps_destroying = false, hall->waits_for_members = false;
    });
    hall->set([this] { hall->failure = Status(Kind::kAborted, Scope::kCall, "over", "the test is over"); });
    in_use.clear();
    CHECK(waitForNativeThreads(20 * kSecondNs));
  }

  OpenOptions options(int32_t rank) {
    const auto place = static_cast<size_t>(rank);
    return {libraries[place], all, rank, clients[place], timeout_ns, "job", "", circle_timeout_ns};
  }
  void open() {
    in_use.resize(all.size());
    std::vector<std::thread> threads;
    for (int32_t rank : all) {
      threads.emplace_back(
          [this, rank] { in_use[static_cast<size_t>(rank)] = must(openLibrary(options(rank), kNever)); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  std::vector<std::unique_ptr<Rank>> ranks(const std::vector<int32_t>& world_ranks, uint64_t communicator = 1) {
    std::vector<std::unique_ptr<Rank>> made;
    for (int32_t rank : world_ranks) {
      made.push_back(std::make_unique<Rank>(in_use[static_cast<size_t>(rank)], communicator, world_ranks, rank));
    }
    return made;
  }

  const int64_t timeout_ns;
  int64_t circle_timeout_ns = 20 * kSecondNs;
  std::shared_ptr<Hall> hall = std::make_shared<Hall>();
  std::vector<int32_t> all;
  std::unique_ptr<control::StoreServer> store;
  std::vector<std::shared_ptr<control::StoreClient>> clients;
  std::vector<std::shared_ptr<MeetingLibrary>> libraries;
  std::vector<std::shared_ptr<const LibraryInUse>> in_use;
};

/// Every rank starts this one call on its own values; returns what each got.
inline std::vector<std::vector<float>> together(std::vector<std::unique_ptr<Rank>>& ranks, StepKind kind,
                                                const std::vector<int32_t>& members, int32_t root, size_t count = 5) {
  std::vector<std::vector<float>> sources, targets;
  for (size_t k = 0; k < ranks.size(); ++k) {
    sources.emplace_back(count, static_cast<float>(k + 1));
    targets.emplace_back(count, -1.0F);
  }
  const std::vector<std::vector<float>> before = sources;
  for (int32_t member : members) {
    const auto k = static_cast<size_t>(member);
    const bool is_root = root >= 0 && members[static_cast<size_t>(root)] == member;
    const bool gives = kind != StepKind::kNativeBroadcast || is_root;
    const bool gets = kind != StepKind::kNativeReduce || is_root;
    ranks[k]->worker.start(ranks[k]->call(kind, members, root, gives ? sources[k].data() : nullptr,
                                          gets ? targets[k].data() : nullptr, count * sizeof(float)));
  }
  for (int32_t member : members) {
    const Status status = ranks[static_cast<size_t>(member)]->last();
    CHECK_MESSAGE(status.isOk(), status.message());
  }
  CHECK(sources == before);
  return targets;
}

}  // namespace jhetcc::runtime::testing
