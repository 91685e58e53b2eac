// SPDX-License-Identifier: Apache-2.0
// Frames that nobody should send: of dead communicators, in another's name, doubled, lost, garbage. They change
// nothing, or end the communicator with an error; they never show a wrong value.
#include <doctest/doctest.h>

#include <cstring>

#include "all_well.h"

using namespace jhetcc;
using namespace jhetcc::engine;
using namespace jhetcc::engine::testing;
using transport::Endpoint;
using transport::FrameHeader;
using transport::FrameType;

namespace {

/// Passes everything on, but for one data frame that is lost or sent twice.
class Tampering final : public Endpoint {
 public:
  Tampering(std::unique_ptr<Endpoint> inner, int victim, bool twice)
      : inner_(std::move(inner)), victim_(victim), twice_(twice) {}
  Result<bool> send(const FrameHeader& header, const void* payload) override {
    if (header.type == FrameType::kData && victim_-- == 0) {
      if (!twice_) return true;
      (void)inner_->send(header, payload);
    }
    return inner_->send(header, payload);
  }
  Result<bool> fetch(const FrameHeader& offer, void* to, uint64_t token) override {
    return inner_->fetch(offer, to, token);
  }
  void cancel(uint64_t token) override { inner_->cancel(token); }
  void revoke(uint64_t cookie) override { inner_->revoke(cookie); }
  Status poll(transport::EventSink& sink) override { return inner_->poll(sink); }
  int waitDescriptor() const override { return inner_->waitDescriptor(); }
  bool prepareSleep(bool in_operation) override { return inner_->prepareSleep(in_operation); }
  bool wantsWrite() const override { return inner_->wantsWrite(); }
  bool seesDevices() const override { return inner_->seesDevices(); }
  const char* transportName() const override { return inner_->transportName(); }
  const std::string& description() const override { return inner_->description(); }

 private:
  std::unique_ptr<Endpoint> inner_;
  int victim_;
  bool twice_;
};

/// Holds the end of rank 2 of a link to rank 0, to say whatever it likes.
struct Stranger {
  explicit Stranger(uint64_t seed) : simulation(2, seed), random(seed) {
    auto [theirs, mine] = simulation.network.connect(0, 2);
    simulation.rank(0).engine->addRail(std::make_unique<rail::Rail>(2, std::move(theirs)));
    endpoint = std::move(mine);
  }
  void say(FrameHeader header) {
    char bytes[64];
    for (char& byte : bytes) byte = static_cast<char>(random.next());
    if (header.type != FrameType::kOffer) header.length = random.below(sizeof bytes + 1);
    (void)endpoint->send(header, bytes);
  }
  FrameHeader anything(uint64_t communicator) {
    FrameHeader header;
    header.type = static_cast<FrameType>(random.below(3) + 1);
    header.flags = static_cast<uint8_t>(random.below(3));
    header.communicator = communicator;
    header.stream = static_cast<uint16_t>(random.below(3));
    header.index = static_cast<uint32_t>(random.below(3));
    header.sequence = random.below(12);
    header.source = static_cast<uint32_t>(random.below(4));
    header.tag = static_cast<uint32_t>(random.below(3));
    header.length = 40;
    return header;
  }
  Simulation simulation;
  SeededRandom random;
  std::unique_ptr<Endpoint> endpoint;
};

}  // namespace

TEST_CASE("frames of nobody's business change nothing") {
  uint64_t stale = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Stranger stranger(seed);
    Simulation& simulation = stranger.simulation;
    const int pair = simulation.makeGroup("pair", {0, 1});
    const int dead = simulation.makeGroup("dead", {0, 1});
    for (int k = 0; k < 12; ++k)
      simulation.ask(pair, planned(2, k % 2 ? "psum(u64[9])" : "psum(u64[5001])", "two_shot"));
    const uint64_t dead_id = simulation.group(dead).spec.id;
    if (seed % 2) simulation.abort(0, dead, "so that it ended before");
    simulation.run(kMs, kMs);
    simulation.rank(0).engine->destroyCommunicator(dead_id);
    for (int k = 0; k < 12; ++k) simulation.ask(pair, planned(2, "psum(u64[500]) in 64"));
    for (int64_t k = 0; k < 300; ++k) {
      simulation.network.at(simulation.now() + k * 1000, [&stranger, &simulation, pair, dead_id] {
        const uint64_t ids[] = {simulation.group(pair).spec.id, dead_id, 77, 0};
        FrameHeader header = stranger.anything(ids[stranger.random.below(4)]);
        if (stranger.random.below(8) == 0) header.type = static_cast<FrameType>(stranger.random.below(124) + 5);
        stranger.say(header);
      });
    }
    simulation.run(20'000 * kMs, 10 * kMs);
    CHECK(!simulation.membershipOf(pair, 0)->ending());
    stale += simulation.rank(0).engine->staleFrames();
    checkAllWell(simulation);
  }
  CHECK(stale > 100 * 150);
}

TEST_CASE("before a communicator is made, nobody speaks for another member of it") {
  Stranger stranger(5);
  Simulation& simulation = stranger.simulation;
  const int pair = simulation.makeGroup("pair", {0, 1}, 0, true);
  for (int k = 0; k < 30; ++k) stranger.say(stranger.anything(simulation.group(pair).spec.id));
  simulation.run(kMs, kMs);
  for (int k = 0; k < 4; ++k) simulation.ask(pair, planned(2, "psum(u64[9])"));
  simulation.run(20'000 * kMs, 10 * kMs);
  CHECK(simulation.rank(0).engine->staleFrames() == 30);
  checkAllWell(simulation);
}

TEST_CASE("a message that is lost or doubled ends in an error, not in a wrong value") {
  int errors = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    const int victim = static_cast<int>(seed / 2 % 40);
    Simulation simulation(3, seed, {},
                          [&](int from, int to, std::unique_ptr<Endpoint> inner) -> std::unique_ptr<Endpoint> {
                            if (from != 1 || to != 2) return inner;
                            return std::make_unique<Tampering>(std::move(inner), victim, seed % 2 == 0);
                          });
    const int group = simulation.makeGroup("world", {0, 1, 2});
    simulation.ask(group, planned(3, "psum(u64[9])"));
    for (const char* algorithm : {"ring", "two_shot", "one_shot"})
      simulation.ask(group, planned(3, "psum(u64[500]) in 64", algorithm));
    simulation.ask(group, planned(3, "all_gather(u64[70]) in 24", "ring"));
    simulation.run();
    simulation.check();
    for (const Simulation::Job& job : simulation.jobs()) errors += !job.status.isOk();
    CHECK_MESSAGE(simulation.failures().empty(), simulation.failures());
  }
  CHECK(errors > 400);
}

TEST_CASE("a communicator that is destroyed with an operation under way ends it") {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    Simulation simulation(3, seed);
    const int group = simulation.makeGroup("world", {0, 1, 2});
    simulation.limit_time = false;
    const auto choice = plannedFor(3, false);
    for (const Planned* planned : choice) simulation.ask(group, planned);
    const int who = static_cast<int>(simulation.draw(3));
    simulation.network.at(simulation.draw(3 * kMs), [&simulation, who, group] {
      simulation.rank(who).engine->destroyCommunicator(simulation.group(group).spec.id);
    });
    simulation.run(20'000 * kMs, kTimeoutNs);
    simulation.check(4);
    for (const Simulation::Job& job : simulation.jobs()) {
      if (job.rank == who && !job.status.isOk()) CHECK(job.status.code() == "closed");
    }
    CHECK_MESSAGE(simulation.failures().empty(), simulation.failures());
  }
}
