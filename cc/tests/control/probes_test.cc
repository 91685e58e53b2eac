// SPDX-License-Identifier: Apache-2.0
#include "control/probes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "control/membership_wire.h"

using namespace jhetcc;
using namespace jhetcc::control;

namespace {

constexpr int64_t kMs = 1'000'000;

/// Ranks that run their programs (lists of communicators) one operation at a time; nothing reacts to what the probes
/// find.
class World {
 public:
  struct Rank {
    std::vector<int> program;  // communicator of each operation
    size_t position = 0;       // the operation it is in or comes to next
    bool inside = false;
    int64_t since = 0;
    std::vector<uint64_t> started;  // by communicator
    std::unique_ptr<WaitProbes> probes;
    Instance found_in;
    bool found = false;
    int64_t version = 0;
  };

  World(std::vector<std::vector<int32_t>> communicators, std::vector<std::vector<int>> programs, uint64_t seed,
        int64_t delay_max)
      : communicators_(std::move(communicators)), ranks(programs.size()), random_(seed), delay_max_(delay_max) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      Rank& rank = ranks[i];
      rank.program = std::move(programs[i]);
      rank.started.resize(communicators_.size());
      ProbesConfig config;
      config.self = static_cast<int32_t>(i);
      WaitProbes::Hooks hooks;
      hooks.send = [this, i](int32_t to, std::string message) {
        transmit(static_cast<int32_t>(i), to, std::move(message));
      };
      hooks.current = [this, i] { return current(i); };
      hooks.has_started = [&rank](const Instance& instance) {
        return instance.communicator < rank.started.size() && rank.started[instance.communicator] >= instance.sequence;
      };
      rank.probes = std::make_unique<WaitProbes>(config, hooks);
      push(draw(50 * kMs), static_cast<int>(i), [this, i] { startNext(i); });
    }
  }

  void run(int64_t until) {
    while (!queue_.empty() && queue_.top().when <= until) {
      const Event event = queue_.top();
      queue_.pop();
      now_ = event.when;
      event.action();
      if (event.rank >= 0) note(static_cast<size_t>(event.rank));
    }
    now_ = until;
  }

  /// Oracle: ranks that wait, at the end, in a circle.
  std::set<size_t> onCycles() const {
    const size_t n = ranks.size();
    std::vector<std::vector<bool>> reach(n, std::vector<bool>(n));
    for (size_t i = 0; i < n; ++i) {
      if (!ranks[i].inside) continue;
      const Instance instance = instanceOf(i);
      for (const int32_t member : communicators_[instance.communicator]) {
        const Rank& other = ranks[static_cast<size_t>(member)];
        if (other.started[instance.communicator] < instance.sequence && other.inside)
          reach[i][static_cast<size_t>(member)] = true;
      }
    }
    for (size_t k = 0; k < n; ++k) {
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; reach[i][k] && j < n; ++j) reach[i][j] = reach[i][j] || reach[k][j];
      }
    }
    std::set<size_t> all;
    for (size_t i = 0; i < n; ++i) {
      if (reach[i][i]) all.insert(i);
    }
    return all;
  }
  Instance instanceOf(size_t i) const {
    const auto communicator = static_cast<size_t>(ranks[i].program[ranks[i].position]);
    return {communicator, ranks[i].started[communicator]};
  }

 private:
  struct Event {
    int64_t when;
    uint64_t order;
    int rank;
    std::function<void()> action;
    bool operator<(const Event& other) const { return std::pair(when, order) > std::pair(other.when, other.order); }
  };

  std::vector<std::vector<int32_t>> communicators_;

 public:
  std::vector<Rank> ranks;
  uint64_t messages = 0;
  size_t longest = 0;

 private:
  int64_t draw(int64_t below) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(below)); }
  void push(int64_t when, int rank, std::function<void()> action) {
    queue_.push({when, ++count_, rank, std::move(action)});
  }
  std::optional<BlockedOperation> current(size_t i) const {
    if (!ranks[i].inside) return std::nullopt;
    const Instance instance = instanceOf(i);
    return BlockedOperation{instance,
                            std::string("#").append(std::to_string(instance.sequence)) + " psum on \"c" +
                                std::to_string(instance.communicator) + "\"",
                            communicators_[instance.communicator], ranks[i].since};
  }
  void transmit(int32_t from, int32_t to, std::string message) {
    ++messages;
    longest = std::max(longest, message.size());
    push(now_ + 1 + draw(delay_max_), to, [this, from, to, message = std::move(message)] {
      ranks[static_cast<size_t>(to)].probes->onMessage(from, message.data(), message.size(), now_);
    });
  }
  void startNext(size_t i) {
    Rank& rank = ranks[i];
    if (rank.position == rank.program.size()) return;
    rank.inside = true;
    rank.since = now_;
    ++rank.started[static_cast<size_t>(rank.program[rank.position])];
    rank.probes->tick(now_);
    const Instance instance = instanceOf(i);
    const auto& members = communicators_[instance.communicator];
    for (const int32_t member : members) {
      if (ranks[static_cast<size_t>(member)].started[instance.communicator] < instance.sequence) return;
    }
    for (const int32_t member : members) {  // complete; everybody learns it in its own time
      const auto m = static_cast<size_t>(member);
      push(now_ + 1 + draw(5 * kMs), member, [this, m, instance] { finish(m, instance); });
    }
  }
  void finish(size_t i, const Instance& instance) {
    Rank& rank = ranks[i];
    if (!rank.inside || instanceOf(i) != instance) return;  // has it finished already
    rank.inside = false;
    ++rank.position;
    push(now_ + draw(draw(4) ? 3 * kMs : 900 * kMs), static_cast<int>(i), [this, i] { startNext(i); });
  }
  void note(size_t i) {
    Rank& rank = ranks[i];
    if (!rank.probes->found().isOk() && !rank.found) {
      rank.found = true;
      rank.found_in = rank.probes->foundInstance();
    }
    const int64_t next = rank.probes->nextTickNs();
    const int64_t version = ++rank.version;
    if (next == std::numeric_limits<int64_t>::max()) return;
    push(std::max(next, now_ + 1), -1, [this, i, version] {
      if (ranks[i].version != version) return;  // another event came between and set its own
      ranks[i].probes->tick(now_);
      note(i);
    });
  }

  std::mt19937_64 random_;
  int64_t delay_max_;
  int64_t now_ = 0;
  uint64_t count_ = 0;
  std::priority_queue<Event> queue_;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("two ranks, two communicators, opposite orders") {
  World world({{0, 1}, {0, 1}}, {{0, 1}, {1, 0}}, 1, kMs);
  world.run(1200 * kMs);
  for (const auto& rank : world.ranks) {
    const Status& found = rank.probes->found();
    REQUIRE_FALSE(found.isOk());
    CHECK(found.kind() == Kind::kMismatch);
    CHECK(found.scope() == Scope::kCommunicator);
    CHECK(found.code() == "wait_cycle");
    CHECK(found.ranks() == std::vector<int32_t>{0, 1});
    CHECK(found.message() ==
          "wait cycle between communicators: rank 0 is in #1 psum on \"c0\" and waits for rank 1; rank 1 is in #1 psum "
          "on \"c1\" and "
          "waits for rank 0; issue the operations of these communicators in the same order on all ranks");
  }
}

TEST_CASE("a cycle of three ranks, and bystanders that wait for it are not on it") {
  World world({{0, 1}, {1, 2}, {2, 0}, {3, 0}}, {{0, 2, 3}, {1, 0}, {2, 1}, {3}}, 2, kMs);
  world.run(3000 * kMs);
  for (size_t i = 0; i < 3; ++i) CHECK(world.ranks[i].probes->found().ranks() == std::vector<int32_t>{0, 1, 2});
  CHECK(world.ranks[3].probes->found().isOk());
  CHECK(has(world.ranks[1].probes->found().message(), "rank 2 is in #1 psum on \"c2\" and waits for rank 0; rank 0") ==
        false);
  CHECK(has(world.ranks[1].probes->found().message(),
            "rank 0 is in #1 psum on \"c0\" and waits for rank 1; rank 1 is in"));
}

TEST_CASE("a ring of 64 ranks is found; its message and text stay bounded") {
  std::vector<std::vector<int32_t>> communicators;
  std::vector<std::vector<int>> programs;
  for (int i = 0; i < 64; ++i) {
    communicators.push_back({i, (i + 1) % 64});
    programs.push_back({i, (i + 63) % 64});
  }
  World world(communicators, programs, 3, kMs);
  world.run(3000 * kMs);
  for (const auto& rank : world.ranks) {
    CHECK(rank.probes->found().ranks().size() == 64);
    CHECK(rank.probes->found().message().size() < kCauseBytesMax);
  }
  CHECK(world.longest <= kMessageBytesMax);
}

TEST_CASE("a straggler, or one that never comes, is no cycle, and costs few messages") {
  std::vector<int32_t> all(64);
  for (int i = 0; i < 64; ++i) all[static_cast<size_t>(i)] = i;
  std::vector<std::vector<int>> programs(64, std::vector<int>{0});
  programs[9] = {};
  World world({all}, programs, 4, kMs);
  world.run(60'000 * kMs);
  for (const auto& rank : world.ranks) CHECK(rank.probes->found().isOk());
  CHECK(world.messages < 64 * 63 * 14);
}

TEST_CASE("random programs: found if and only if the oracle sees a deadlock") {
  int deadlocks = 0, free = 0, long_cycles = 0;
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed * 6151);
    const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
    const size_t n = seed % 100 == 0 ? 32 : 2 + below(9);
    std::vector<std::vector<int32_t>> communicators(1 + below(8));
    for (auto& members : communicators) {
      const size_t size = 2 + below(std::min<size_t>(n - 1, 3));
      std::set<int32_t> chosen;
      while (chosen.size() < size) chosen.insert(static_cast<int32_t>(below(n)));
      members.assign(chosen.begin(), chosen.end());
    }
    std::vector<std::vector<int>> programs(n);
    for (int k = 0; k < 20; ++k) {
      const size_t communicator = below(communicators.size());
      for (const int32_t member : communicators[communicator])
        programs[static_cast<size_t>(member)].push_back(static_cast<int>(communicator));
    }
    for (size_t k = below(4); k > 0; --k) {
      auto& program = programs[below(n)];
      if (program.size() < 2) continue;
      const size_t at = below(program.size() - 1);
      if (below(4) == 0)
        program.resize(at);  // it ends early: a wait without end, but no cycle of its own
      else
        std::swap(program[at], program[at + 1]);
    }
    World world(communicators, programs, seed, (seed % 3 ? 1 : 200) * kMs);
    world.run(90'000 * kMs);
    const std::set<size_t> stuck = world.onCycles();
    for (size_t i = 0; i < n; ++i) {
      CAPTURE(i);
      const World::Rank& rank = world.ranks[i];
      CHECK(rank.found == (stuck.count(i) == 1));
      // Whatever was found, whenever: the rank is in that very operation for ever.
      if (rank.found) CHECK((rank.inside && rank.found_in == world.instanceOf(i)));
      if (rank.found) long_cycles += rank.probes->found().ranks().size() > 2;
      CHECK(rank.probes->malformed() == 0);
    }
    stuck.empty() ? ++free : ++deadlocks;
  }
  CHECK(deadlocks > 150);
  CHECK(free > 300);
  CHECK(long_cycles > 50);
}

TEST_CASE("malformed probes change nothing") {
  std::vector<std::string> sent;
  const std::optional<BlockedOperation> in = BlockedOperation{{7, 3}, "#3 psum on \"a\"", {0, 1, 2}, 0};
  WaitProbes::Hooks hooks;
  hooks.send = [&](int32_t, std::string message) { sent.push_back(std::move(message)); };
  hooks.current = [&] { return in; };
  hooks.has_started = [](const Instance&) { return false; };
  WaitProbes source({0}, hooks);
  source.tick(0);
  source.tick(600 * kMs);
  REQUIRE(sent.size() == 2);
  const std::string good = sent[0];
  WaitProbes target({1}, hooks);
  for (size_t cut = 0; cut < good.size(); ++cut) target.onMessage(0, good.data(), cut, 0);
  CHECK(target.malformed() == good.size());
  target.onMessage(2, good.data(), good.size(), 0);  // from someone else than it says
  CHECK(target.malformed() == good.size() + 1);
  std::mt19937_64 random(5);
  for (int k = 0; k < 20'000; ++k) {
    std::string bad = good;
    for (int i = 0; i < 3; ++i) bad[random() % bad.size()] = static_cast<char>(random());
    target.onMessage(0, bad.data(), bad.size(), k * kMs);
  }
  CHECK(target.found().isOk());
}
