// SPDX-License-Identifier: Apache-2.0
// A cluster's library is opened and closed, and its communicators are made, by all members together.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "runtime/native_circles.h"
#include "runtime/native_threads.h"

namespace jhetcc::runtime {
namespace {

constexpr int64_t kSliceNs = 50 * kNsPerMs;
constexpr int64_t kCallNs = 1000 * kNsPerMs;
constexpr int64_t kMomentNs = 500 * kNsPerMs;

/// Made by the first member, read by the others.
Result<std::string> tokenOf(const LibraryInUse& in_use, const std::string& key, bool is_maker, int32_t size,
                            bool is_first, const std::function<bool()>& cancelled) {
  const SystemClock clock;
  const net::Deadline deadline =
      net::Deadline::after(clock, is_first ? in_use.timeout_ns : in_use.circle_timeout_ns, cancelled);
  if (!is_maker) return in_use.store->get(key, deadline);
  Result<std::string> token = in_use.library->makeToken(size, is_first);
  if (!token.isOk()) return token;
  JHETCC_RETURN_IF_ERROR(in_use.store->set(key, token.value(), deadline));
  return token;
}

/// Not ok: another process gave up.
Status goesOn(const OpenOptions& options) {
  if (options.ended_key.empty()) return Status::ok();
  const SystemClock clock;
  const auto ended = options.store->tryGet(options.ended_key, net::Deadline::after(clock, kCallNs));
  if (!ended.isOk()) return ended.status().kind() == Kind::kTimeout ? Status::ok() : ended.status();
  if (!ended.value().has_value()) return Status::ok();
  return Status(Kind::kDisconnected, Scope::kProcess, "init_failed", "init() failed in another process");
}

}  // namespace

std::string listed(const std::vector<int32_t>& ranks) {
  std::string text;
  for (int32_t rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

std::string keyOf(const std::vector<int32_t>& ranks) {
  uint64_t hash = kFnvOffset;
  for (int32_t rank : ranks) hash = hashNumber(static_cast<uint64_t>(rank), hash);
  return std::to_string(ranks.size()) + "." + std::to_string(hash);
}

Status sayWhere(const LibraryInUse& in_use, const Status& status) {
  const ccl::Capabilities& can = in_use.library->capabilities();
  return status.withContext(can.name + " " + can.version);
}

Result<std::unique_ptr<ccl::Communicator>> makeCommunicator(const LibraryInUse& in_use, const std::string& key,
                                                            const std::vector<int32_t>& world_ranks, int32_t world_rank,
                                                            bool is_first, const std::function<bool()>& cancelled) {
  ccl::Group group;
  group.size = static_cast<int32_t>(world_ranks.size());
  group.rank =
      static_cast<int32_t>(std::find(world_ranks.begin(), world_ranks.end(), world_rank) - world_ranks.begin());
  Result<std::string> token = tokenOf(in_use, key, group.rank == 0, group.size, is_first, cancelled);
  if (!token.isOk()) return token.status();
  group.token = std::move(token).value();
  for (int32_t rank : is_first ? std::vector<int32_t>{} : world_ranks) {
    const auto place = std::find(in_use.world_ranks.begin(), in_use.world_ranks.end(), rank);
    if (place == in_use.world_ranks.end()) {
      return Status(Kind::kInternal, Scope::kCommunicator, "internal",
                    "rank " + std::to_string(rank) + " is in a native circle and not in its cluster");
    }
    group.of_first.push_back(static_cast<int32_t>(place - in_use.world_ranks.begin()));
  }
  // Given up while the token came: the others must not take this member for one that comes.
  if (cancelled()) return Status(Kind::kAborted, Scope::kCommunicator, "closed", "given up");
  return in_use.library->create(group);
}

void closeLibrary(const std::shared_ptr<const LibraryInUse>& in_use, int64_t timeout_ns) {
  // Without a thread it is left behind, as if it were stuck.
  auto* kept = new std::shared_ptr<ccl::Communicator>(std::exchange(in_use->first, nullptr));
  if (*kept && !in_use->library->capabilities().destroys_alone) (*kept)->leave();
  const bool has_thread = detachedThread("jhetcc-library", [kept] { delete kept; }).isOk();
  if (!waitForNativeThreads(std::max(timeout_ns, kMomentNs)) || !has_thread) in_use->library->leave();
}

Result<std::shared_ptr<const LibraryInUse>> openLibrary(const OpenOptions& options,
                                                        const std::function<bool()>& interrupted) {
  struct Opening {
    std::mutex mutex;
    std::condition_variable changed;
    std::atomic<bool> is_given_up{false};
    bool is_done = false;
    Status status;
    std::shared_ptr<LibraryInUse> in_use = std::make_shared<LibraryInUse>();
  };
  auto opening = std::make_shared<Opening>();
  LibraryInUse& in_use = *opening->in_use;
  in_use.library = options.library;
  in_use.world_ranks = options.world_ranks;
  in_use.store = options.store;
  in_use.timeout_ns = options.timeout_ns;
  in_use.circle_timeout_ns = options.circle_timeout_ns;
  const std::string key = "opening/" + options.job + "/" + keyOf(options.world_ranks);
  JHETCC_RETURN_IF_ERROR(detachedThread("jhetcc-library", [opening, key, world_rank = options.world_rank] {
    LibraryInUse& in_use = *opening->in_use;
    auto made = makeCommunicator(in_use, key, in_use.world_ranks, world_rank, true,
                                 [opening] { return opening->is_given_up.load(); });
    std::lock_guard<std::mutex> lock(opening->mutex);
    opening->status = made.status();
    if (made.isOk()) in_use.first = std::move(made).value();
    opening->is_done = true;
    opening->changed.notify_all();
  }));
  const SystemClock clock;
  const int64_t deadline = clock.nowNs() + options.timeout_ns;
  std::unique_lock<std::mutex> lock(opening->mutex);
  while (!opening->is_done) {
    opening->changed.wait_for(lock, std::chrono::nanoseconds(kSliceNs));
    if (opening->is_done) break;
    const bool is_late = clock.nowNs() >= deadline;
    lock.unlock();
    const bool is_interrupted = !is_late && interrupted();
    const Status gone = is_late || is_interrupted ? Status::ok() : goesOn(options);
    lock.lock();
    if (opening->is_done || !(is_late || is_interrupted || !gone.isOk())) continue;
    opening->is_given_up.store(true);
    options.library->leave();
    const std::string what = "opening the library for ranks " + listed(options.world_ranks);
    if (!gone.isOk()) return gone.withContext(what);
    if (is_interrupted) return Status(Kind::kAborted, Scope::kProcess, "interrupted", what + " was interrupted");
    return sayWhere(in_use, Status(Kind::kTimeout, Scope::kProcess, "library_timeout",
                                   what + " took longer than init_timeout: one of these processes did not come, or the "
                                          "library finds no way between them. Look at the library's own messages, or "
                                          "set JHETCC_LIBRARY=none to do without it"));
  }
  if (!opening->status.isOk()) return sayWhere(in_use, opening->status);
  return std::shared_ptr<const LibraryInUse>(opening->in_use);
}

}  // namespace jhetcc::runtime
