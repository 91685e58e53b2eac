// SPDX-License-Identifier: Apache-2.0
// Without faults: every schedule of the planner, whatever the delays and the order in which ranks are stepped.
#include <doctest/doctest.h>

#include "all_well.h"

using namespace jhetcc;
using namespace jhetcc::engine;
using namespace jhetcc::engine::testing;

namespace {

transport::sim::Options networkOf(uint64_t seed) {
  transport::sim::Options options;
  options.late_probability = seed % 3 == 0 ? 0.02 : 0;
  options.late_ns = 300'000;
  options.instant_fetch_probability = seed % 4 == 0 ? 1 : seed % 4 == 1 ? 0.5 : 0;
  options.window_bytes = seed % 5 == 0 ? 40 * 1024 : 256 * 1024;  // hardly two long frames: sends wait for room
  return options;
}

}  // namespace

TEST_CASE("every schedule gives the right values, in a row and in any order of stepping") {
  for (int size : {1, 2, 3, 4, 5, 8, 64}) {
    for (uint64_t seed = 0; seed < (size == 64 ? 1u : 4u); ++seed) {
      CAPTURE(size);
      CAPTURE(seed);
      Simulation simulation(size, seed, networkOf(seed));
      const int group = simulation.makeGroup("world", firstRanks(size));
      for (const Planned* planned : plannedFor(size, false)) simulation.ask(group, planned);
      simulation.run();
      checkAllWell(simulation);
    }
  }
}

TEST_CASE("several communicators of the same ranks, made late, one after the other") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Simulation simulation(5, seed, networkOf(seed));
    std::vector<int> groups = {simulation.makeGroup("world", firstRanks(5)), simulation.makeGroup("odd", {3, 1}),
                               simulation.makeGroup("even", {0, 2, 4}, 0, true),
                               simulation.makeGroup("turned", {4, 3, 2, 1, 0}, 0, true),
                               simulation.makeGroup("self", {2})};
    for (int k = 0; k < 40; ++k) {
      const int group = groups[static_cast<size_t>(simulation.draw(5))];
      const auto choice = plannedFor(static_cast<int>(simulation.group(group).spec.world_ranks.size()), k % 4 != 0);
      simulation.ask(group, choice[static_cast<size_t>(simulation.draw(static_cast<int64_t>(choice.size())))]);
    }
    simulation.run();
    checkAllWell(simulation);
  }
}

TEST_CASE("the same seed gives the same run") {
  std::vector<uint64_t> digests;
  for (uint64_t seed : {1, 1, 2}) {
    Simulation simulation(4, seed, networkOf(3));
    const int group = simulation.makeGroup("world", firstRanks(4));
    for (const Planned* planned : plannedFor(4, true)) simulation.ask(group, planned);
    simulation.run();
    checkAllWell(simulation);
    digests.push_back(simulation.network.digest());
  }
  CHECK(digests[0] == digests[1]);
  CHECK(digests[0] != digests[2]);
}

TEST_CASE("a slow rank is no failure before the deadline") {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Simulation simulation(4, seed, networkOf(seed));
    const int group = simulation.makeGroup("world", firstRanks(4));
    for (int k = 0; k < 6; ++k) simulation.ask(group, planned(4, "psum(u64[9])"));
    const int slow = static_cast<int>(simulation.draw(4));
    const int64_t from = simulation.draw(kMs / 2);
    if (seed % 2) {
      simulation.network.at(from, [&simulation, slow] { simulation.stop(slow); });
      simulation.network.at(from + kTimeoutNs * 8 / 10, [&simulation, slow] { simulation.resume(slow); });
    } else {
      const int other = (slow + 1) % 4;
      simulation.network.at(from, [&simulation, slow, other] { simulation.network.hold(slow, other); });
      simulation.network.at(from + kTimeoutNs * 8 / 10,
                            [&simulation, slow, other] { simulation.network.release(slow, other); });
    }
    simulation.run(20'000 * kMs, kTimeoutNs);
    checkAllWell(simulation);
  }
}

TEST_CASE("a point-to-point send waits to be taken, unless both send to each other in one call") {
  struct Counting final : transport::Endpoint {
    Counting(std::unique_ptr<Endpoint> inside, int* count) : inner(std::move(inside)), offers(count) {}
    Result<bool> send(const transport::FrameHeader& header, const void* payload) override {
      Result<bool> taken = inner->send(header, payload);
      *offers += header.type == transport::FrameType::kOffer && taken.isOk() && taken.value();
      return taken;
    }
    Result<bool> fetch(const transport::FrameHeader& offer, void* to, uint64_t token) override {
      return inner->fetch(offer, to, token);
    }
    void cancel(uint64_t token) override { inner->cancel(token); }
    void revoke(uint64_t cookie) override { inner->revoke(cookie); }
    Status poll(transport::EventSink& sink) override { return inner->poll(sink); }
    int waitDescriptor() const override { return inner->waitDescriptor(); }
    bool prepareSleep(bool in_operation) override { return inner->prepareSleep(in_operation); }
    bool wantsWrite() const override { return inner->wantsWrite(); }
    const char* transportName() const override { return inner->transportName(); }
    const std::string& description() const override { return inner->description(); }
    std::unique_ptr<Endpoint> inner;
    int* offers;
  };
  const auto offersOf = [](int size, const std::string& label) {
    int offers = 0;
    const auto wrap = [&offers](int, int, std::unique_ptr<transport::Endpoint> inner) {
      return std::make_unique<Counting>(std::move(inner), &offers);
    };
    Simulation simulation(size, 5, networkOf(1), wrap);
    const int group = simulation.makeGroup("world", firstRanks(size));
    for (int k = 0; k < 10; ++k) simulation.ask(group, planned(size, label));
    simulation.run();
    checkAllWell(simulation);
    return offers;
  };
  CHECK(offersOf(2, "shift") == 0);
  CHECK(offersOf(3, "shift") == 30);
  CHECK(offersOf(2, "short message") == 10);
}

TEST_CASE("what comes early takes no more memory the longer a job runs") {
  Simulation simulation(3, 7, networkOf(1));
  const int group = simulation.makeGroup("world", firstRanks(3));
  const auto choice = plannedFor(3, true);
  std::vector<size_t> blocks;
  for (int round = 0; round < 4; ++round) {
    for (int k = 0; k < 100; ++k) simulation.ask(group, choice[static_cast<size_t>(k) % choice.size()]);
    simulation.run();
    blocks.push_back(0);
    for (int rank = 0; rank < 3; ++rank) blocks.back() += simulation.rank(rank).engine->parkedBlocks();
  }
  checkAllWell(simulation);
  CHECK(blocks[3] <= blocks[0] + 8);  // messages that came early: never more than one operation's
}
