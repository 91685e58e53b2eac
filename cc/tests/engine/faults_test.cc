// SPDX-License-Identifier: Apache-2.0
// Faults over seeds: ranks die, stop and come back, links break, ranks call the wrong thing or in the wrong order.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "simulation.h"

using namespace jhetcc;
using namespace jhetcc::engine;
using namespace jhetcc::engine::testing;

namespace {

constexpr size_t kNoVerdicts = 1000;

/// One job with a few communicators and random calls, and what is done to it.
struct Story {
  /// `late`: some communicators are made on a member only when its first call is due.
  Story(uint64_t seed, int ranks, int calls, bool late = true)
      : simulation(ranks, seed, optionsOf(seed)), size(ranks), length_ns(calls * 60'000) {
    std::vector<int32_t> all, even;
    for (int rank = 0; rank < ranks; ++rank) {
      all.push_back(rank);
      if (rank % 2 == 0 && even.size() < 5) even.push_back(rank);
    }
    simulation.makeGroup("world", all);
    simulation.makeGroup("even", even, 0, late && seed % 2 == 0);
    simulation.makeGroup("turned", {1, 0}, 0, late && seed % 3 == 0);
    for (int k = 0; k < calls; ++k) ask(draw(3) ? 0 : draw(3), k % 5 == 4);
  }
  static transport::sim::Options optionsOf(uint64_t seed) {
    transport::sim::Options options;
    options.late_probability = seed % 3 == 0 ? 0.01 : 0;
    options.late_ns = 400'000;
    options.instant_fetch_probability = seed % 4 == 0 ? 0.7 : 0;
    options.reads_need_peer = seed % 2 == 0;
    return options;
  }
  int draw(int below) { return static_cast<int>(simulation.draw(below)); }
  int64_t moment() { return simulation.draw(length_ns); }
  int membersOf(int group) { return static_cast<int>(simulation.group(group).spec.world_ranks.size()); }
  const Planned* any(int group, bool with_long) {
    const auto choice = plannedFor(membersOf(group), !with_long);
    return choice[static_cast<size_t>(draw(static_cast<int>(choice.size())))];
  }
  uint64_t ask(int group, bool with_long) { return simulation.ask(group, any(group, with_long)); }
  void at(int64_t when, std::function<void()> action) { simulation.network.at(when, std::move(action)); }

  void kill(int count) {
    for (int k = 0; k < count; ++k) {
      const int victim = draw(size);
      at(moment(), [this, victim] { simulation.kill(victim); });
    }
  }
  void stopAndResume() {
    const int victim = draw(size);
    const int64_t from = moment();
    const int64_t others_end = kTimeoutNs + kConfirmNs + kSlackNs;
    at(from, [this, victim] { simulation.stop(victim); });
    at(from + others_end + simulation.draw(2 * kTimeoutNs), [this, victim] { simulation.resume(victim); });
  }
  void cut() {
    const int a = draw(size), b = (a + 1 + draw(size - 1)) % size;
    at(moment(), [this, a, b] { simulation.network.cut(a, b); });
  }
  void abort() {
    const int who = draw(size);
    at(moment(), [this, who] {
      if (simulation.isUp(who)) simulation.abort(who, 0, "by the user");
    });
  }

  void checkShrink(bool may_part) {
    int group = 0;
    for (int round = 0; round < 4 && group >= 0; ++round) {
      const int next = simulation.shrink(group, may_part);
      if (next < 0) return;
      const int members = membersOf(next);
      simulation.ask(next, planned(members, "psum(u64[9])"));
      if (members <= 8) simulation.ask(next, planned(members, "barrier()"));
      simulation.run();
      const auto jobs = simulation.jobsOf(next);
      if (std::all_of(jobs.begin(), jobs.end(), [](const auto* job) { return job->status.isOk() && job->isDone(); })) {
        went_on = members;
        return;
      }
      group = next;
    }
  }

  Simulation simulation;
  const int size;
  const int64_t length_ns;
  int went_on = 0;  ///< ranks that went on together after shrink()
};

int sizeOf(uint64_t seed) { return std::vector<int>{2, 3, 4, 5, 8}[seed % 5]; }

int alive(Story& story) {
  int count = 0;
  for (int rank = 0; rank < story.size; ++rank) count += !story.simulation.rank(rank).dead;
  return count;
}

void checkNone(Story& story) { CHECK_MESSAGE(story.simulation.failures().empty(), story.simulation.failures()); }

/// All members that live ended with this kind, and nobody with success, in the calls of one salt.
void checkEnded(Story& story, uint64_t salt, Kind kind) {
  for (const Simulation::Job& job : story.simulation.jobs()) {
    if (job.salt != salt || job.status.kind() == kind) continue;
    story.simulation.fail(job.command->text + " on rank " + std::to_string(job.rank) +
                          " ended with: " + job.status.message());
  }
}

}  // namespace

TEST_CASE("killed ranks: everybody learns it soon, the survivors go on") {
  int failed = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    CAPTURE(seed);
    Story story(seed, sizeOf(seed), 10);
    story.kill(1 + static_cast<int>(seed % 3));
    story.simulation.run(20'000 * kMs, 1000 * kMs);
    story.simulation.check();
    for (const Simulation::Job& job : story.simulation.jobs()) {
      const auto& ranks = story.simulation.group(job.group).spec.world_ranks;
      const bool is_whole =
          std::none_of(ranks.begin(), ranks.end(), [&](int32_t rank) { return story.simulation.rank(rank).dead; });
      if (is_whole && !job.status.isOk())
        story.simulation.fail("ended though all its ranks live: " + job.status.message());
      failed += !job.status.isOk();
      if (job.isDone() && !job.status.isOk() && job.status.kind() != Kind::kDisconnected) {
        story.simulation.fail("a death ended " + job.command->text + " with: " + job.status.message());
      }
    }
    story.checkShrink(false);
    story.simulation.check(kNoVerdicts);
    if (story.went_on != alive(story)) {
      story.simulation.fail(std::to_string(story.went_on) + " of " + std::to_string(alive(story)) + " went on");
    }
    checkNone(story);
  }
  CHECK(failed > 600);
}

TEST_CASE("a rank that is stopped and comes back after the others gave up") {
  int left_out = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Story story(seed, sizeOf(seed), 10);
    story.stopAndResume();
    story.simulation.run(30'000 * kMs, 1000 * kMs);
    story.simulation.check();
    story.checkShrink(false);
    story.simulation.check(kNoVerdicts);
    left_out += story.went_on < story.size;
    if (story.went_on < story.size - 1) story.simulation.fail("only " + std::to_string(story.went_on) + " went on");
    checkNone(story);
  }
  CHECK(left_out > 30);
}

TEST_CASE("cut links: one of two that cannot talk goes, the others go on") {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    Story story(seed, sizeOf(seed), 10, false);
    story.cut();
    story.simulation.run(20'000 * kMs, 1000 * kMs);
    story.simulation.check(3);
    story.checkShrink(story.size == 2);
    story.simulation.check(kNoVerdicts);
    if (story.went_on < story.size - 1) story.simulation.fail("only " + std::to_string(story.went_on) + " went on");
    checkNone(story);
  }
}

TEST_CASE("one rank calls something else: a mismatch on all, a value on none") {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    Story story(seed, sizeOf(seed), static_cast<int>(seed % 4));
    const int wrong = story.draw(story.size);
    const Planned* right = planned(story.size, "psum(u64[9])");
    const Planned* other = story.any(0, true);
    while (other->isPointToPoint() || other->label == right->label) other = story.any(0, true);
    uint64_t salt = 1'000'000;
    for (int member = 0; member < story.size; ++member) {
      story.simulation.askOne(0, member, member == wrong ? other : right, salt);
    }
    for (int k = 0; k < 3; ++k) story.ask(0, false);
    story.simulation.run(20'000 * kMs, 100 * kMs);
    story.simulation.check();
    checkEnded(story, salt, Kind::kMismatch);
    for (const Simulation::Job* job : story.simulation.jobsOf(0)) {
      const bool is_before = job->salt < salt && job->isDone() && job->salt <= seed % 4;
      if (!is_before && job->salt != salt && job->status.kind() != Kind::kMismatch) {
        story.simulation.fail("went on after a mismatch: " + job->command->text);
      }
      if (!is_before && job->salt < salt && job->ended_ns - job->begun_ns > kGatherNs + kConfirmNs)
        story.simulation.fail("failed late");
    }
    checkNone(story);
  }
}

TEST_CASE("one rank calls on two communicators in another order: a wait cycle, found soon") {
  int both = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Story story(seed, sizeOf(seed), static_cast<int>(seed % 3));
    const int turned = story.draw(2);
    const Planned* world = planned(story.size, "barrier()");
    const Planned* pair = planned(2, "psum(u64[500]) in 64", "ring");
    int64_t begin_calls = static_cast<int64_t>(story.simulation.jobs().size());
    for (int rank = 0; rank < story.size; ++rank) {
      const int member = rank == 1 ? 0 : 1;  // of "turned"
      if (rank == turned) story.simulation.askOne(2, member, pair, 2'000'000);
      story.simulation.askOne(0, rank, world, 1'000'000);
      if (rank < 2 && rank != turned) story.simulation.askOne(2, member, pair, 2'000'000);
    }
    story.simulation.run(20'000 * kMs, 100 * kMs);
    story.simulation.check();
    // Usually both are ended; where one is ended soon enough, the other can go on, and then does so everywhere.
    std::map<uint64_t, std::set<Kind>> ends;
    for (const Simulation::Job& job : story.simulation.jobs()) {
      if (job.salt == 1'000'000 || job.salt == 2'000'000) ends[job.salt].insert(job.status.kind());
    }
    int ended = 0;
    for (const auto& [salt, kinds] : ends) {
      const bool is_well = kinds == std::set<Kind>{Kind::kOk};
      ended += kinds == std::set<Kind>{Kind::kMismatch};
      if (!is_well && kinds != std::set<Kind>{Kind::kMismatch})
        story.simulation.fail("ranks of one operation ended differently");
    }
    if (ended == 0) story.simulation.fail("no wait cycle was found");
    both += ended == 2;
    for (const Simulation::Job& job : story.simulation.jobs()) {
      if (begin_calls-- > 0) continue;
      if (job.ended_ns - job.begun_ns > 4 * kProbeNs + 2 * (kGatherNs + kConfirmNs))
        story.simulation.fail("a wait cycle was found late");
    }
    checkNone(story);
  }
  CHECK(both > 250);
}

TEST_CASE("a user's abort ends the communicator on all ranks, and no other") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Story story(seed, sizeOf(seed), 10);
    story.abort();
    story.simulation.run(20'000 * kMs, 500 * kMs);
    story.simulation.check();
    for (const Simulation::Job& job : story.simulation.jobs()) {
      const bool is_well = job.status.isOk() || (job.group == 0 && job.status.code() == "aborted");
      if (!is_well) story.simulation.fail(job.command->text + ": " + job.status.message());
    }
    story.checkShrink(false);
    if (story.went_on != story.size) story.simulation.fail("only " + std::to_string(story.went_on) + " went on");
    checkNone(story);
  }
}

TEST_CASE("several faults at once") {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    Story story(seed, sizeOf(seed), 12);
    story.simulation.limit_time =
        false;  // stopped ranks and held links at the same time: only bounded by the run's limit
    for (int k = 0; k < 3; ++k) {
      const int kind = story.draw(5);
      if (kind == 0) story.kill(1);
      if (kind == 1) story.stopAndResume();
      if (kind == 2) story.cut();
      if (kind == 3) story.abort();
      if (kind == 4) {
        const int a = story.draw(story.size), b = (a + 1) % story.size;
        const int64_t from = story.moment();
        story.at(from, [&story, a, b] { story.simulation.network.hold(a, b); });
        story.at(from + story.simulation.draw(3 * kTimeoutNs),
                 [&story, a, b] { story.simulation.network.release(a, b); });
      }
    }
    story.simulation.run(30'000 * kMs, 1000 * kMs);
    story.simulation.check(kNoVerdicts);
    story.checkShrink(true);
    story.simulation.check(kNoVerdicts);
    checkNone(story);
  }
}

TEST_CASE("64 ranks, some of them killed") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    Story story(seed, 64, 4);
    story.kill(1 + static_cast<int>(seed % 3));
    story.simulation.run(20'000 * kMs, 500 * kMs);
    story.simulation.check();
    story.checkShrink(false);
    story.simulation.check(kNoVerdicts);
    if (story.went_on != alive(story)) {
      story.simulation.fail(std::to_string(story.went_on) + " of " + std::to_string(alive(story)) + " went on");
    }
    checkNone(story);
  }
}
