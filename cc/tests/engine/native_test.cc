// SPDX-License-Identifier: Apache-2.0
// Native stages: what becomes of an operation when a call fails, never returns, or a member goes.
#include <doctest/doctest.h>

#include <algorithm>

#include "simulation.h"

using namespace jhetcc;
using namespace jhetcc::engine;
using namespace jhetcc::engine::testing;

namespace {

constexpr char kReduction[] = "psum(u64[500]) in 64 on 2+2";

void checkNone(Simulation& simulation) { CHECK_MESSAGE(simulation.failures().empty(), simulation.failures()); }

}  // namespace

TEST_CASE("a call that fails ends the operation everywhere, with the library's words") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    Simulation simulation(4, seed);
    const int group = simulation.makeGroup("world", {0, 1, 2, 3});
    simulation.ask(group, planned(4, kReduction));
    simulation.network.at(static_cast<int64_t>(seed) * 5'000, [&simulation] {
      simulation.library.failNext(Status(Kind::kInternal, Scope::kCommunicator, "library", "the pretended card burns"));
    });
    simulation.run(20'000 * kMs, 1000 * kMs);
    simulation.check();
    for (const auto* job : simulation.jobsOf(group)) {
      CHECK(job->status.kind() == Kind::kInternal);
      CHECK_MESSAGE(job->status.message().find("the pretended card burns") != std::string::npos, job->status.message());
    }
    checkNone(simulation);
  }
}

TEST_CASE("a member that dies leaves the others in the library: they end in time, touch nothing and go on without it") {
  int in_calls = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Simulation simulation(4, seed);
    const int group = simulation.makeGroup("world", {0, 1, 2, 3});
    for (int k = 0; k < 4; ++k) simulation.ask(group, planned(4, kReduction));
    const int victim = static_cast<int>(simulation.draw(4));
    simulation.network.at(simulation.draw(kMs), [&simulation, victim] { simulation.kill(victim); });
    simulation.run(20'000 * kMs, 1000 * kMs);
    simulation.check();
    in_calls += simulation.library.callsGivenUp() > 0;
    for (const auto* job : simulation.jobsOf(group)) {
      const bool is_told = job->rank == victim || job->status.isOk() || job->status.kind() == Kind::kDisconnected;
      CHECK_MESSAGE(is_told, job->status.message());
    }
    const int next = simulation.shrink(group, false);
    REQUIRE(next >= 0);
    simulation.ask(next, planned(3, "psum(u64[9])"));
    simulation.run();
    for (const auto* job : simulation.jobsOf(next)) CHECK(job->status.isOk());
    checkNone(simulation);
  }
  CHECK(in_calls > 10);  // that it hit what it is about
}

TEST_CASE("a member that leaves after its part does not end the others' call") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Simulation simulation(3, seed);
    const int group = simulation.makeGroup("world", {0, 1, 2});
    simulation.ask(group, planned(3, "broadcast(u64[5], root=1) on 2+1"));
    const Simulation::Job* first = nullptr;
    for (int64_t at = 0; at < 100; ++at) {
      simulation.network.at(at * 5'000, [&] {
        for (const auto* job : simulation.jobsOf(group)) {
          if (first || !job->isDone()) continue;
          first = job;
          simulation.rank(job->rank).engine->sayGoodbye();
        }
      });
    }
    simulation.run();
    for (const auto* job : simulation.jobsOf(group)) CHECK_MESSAGE(job->status.isOk(), job->status.message());
    CHECK(first != nullptr);
  }
}

TEST_CASE("ranks that ask for different things never meet in the library") {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Simulation simulation(4, seed);
    const int group = simulation.makeGroup("world", {0, 1, 2, 3});
    const int odd = static_cast<int>(simulation.draw(4));
    for (int member = 0; member < 4; ++member) {
      const char* label = member == odd ? "pmax(u64[1]) on 2+2" : kReduction;
      simulation.askOne(group, member, planned(4, label), 1 + static_cast<uint64_t>(member));
    }
    simulation.run(20'000 * kMs, 1000 * kMs);
    for (const auto* job : simulation.jobsOf(group)) {
      CHECK_MESSAGE(job->status.kind() == Kind::kMismatch, job->status.message());
    }
    CHECK(simulation.library.callsBegun() == 0);
    checkNone(simulation);
  }
}

TEST_CASE("a schedule with native steps on a rank without a library is an error, not a crash") {
  Simulation simulation(4, 1);
  simulation.with_library = false;
  const int group = simulation.makeGroup("world", {0, 1, 2, 3});
  simulation.ask(group, planned(4, kReduction));
  simulation.run(20'000 * kMs, 1000 * kMs);
  for (const auto* job : simulation.jobsOf(group)) CHECK(job->status.kind() == Kind::kInternal);
  checkNone(simulation);
}
