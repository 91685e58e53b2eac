// SPDX-License-Identifier: Apache-2.0
// Paths that end because one of the two leaves on purpose: nobody is warned of them.
#include <doctest/doctest.h>

#include "talk.h"

namespace jhetcc::rail::testing {

namespace {

transport::FrameHeader goodbye() {
  transport::FrameHeader header;
  header.type = transport::FrameType::kGoodbye;
  return header;
}

/// The messages' path becomes the last one, and all are well again.
void moveMessages(Talk& talk) {
  talk.cut(0);
  Quiet quiet;
  const auto runUntil = [&](const auto& isThere) {
    const int64_t end_ns = talk.now() + 1'000 * kMs;
    while (!isThere() && talk.now() < end_ns) {
      talk.say(1);
      REQUIRE_MESSAGE(talk.run(1'000 * kMs), talk.story());
      talk.network.runUntil(talk.now() + kMs / 10);
    }
    REQUIRE(isThere());
  };
  runUntil([&] { return talk.isLost(0, 0) && talk.isLost(0, 1); });
  talk.reopen(0);
  runUntil([&] {
    return talk.sides[0].bundle->paths()[0].state == PathState::kHealthy &&
           talk.sides[1].bundle->paths()[0].state == PathState::kHealthy;
  });
}

}  // namespace

TEST_CASE("a goodbye that waits on another path is heard before the end of the first one") {
  Talk talk(1, 2);
  moveMessages(talk);
  std::vector<std::string> told;
  talk.sides[0].bundle->watch([&](const PathStatus& status) { told.push_back(status.last_event); });
  REQUIRE(talk.sides[1].bundle->send(goodbye(), nullptr).value());
  Quiet quiet;
  const int64_t end_ns = talk.now() + kMs;  // side 0 does not run meanwhile
  while (talk.now() < end_ns) {
    REQUIRE(talk.sides[1].bundle->poll(quiet).isOk());
    talk.network.runUntil(talk.now() + kMs / 10);
  }
  talk.sides[1].bundle.reset();
  talk.network.runUntil(talk.now() + 5 * kMs);
  REQUIRE(talk.sides[0].bundle->poll(quiet).isOk());
  CHECK(told == std::vector<std::string>{});
}

TEST_CASE("a loss after one's own goodbye is marked as what was to be expected") {
  for (const bool has_said : {false, true}) {
    CAPTURE(has_said);
    Talk talk(2, 2);
    std::vector<bool> ending;
    talk.sides[0].bundle->watch([&](const PathStatus& status) { ending.push_back(status.is_ending); });
    if (has_said) REQUIRE(talk.sides[0].bundle->send(goodbye(), nullptr).value());
    talk.sides[1].bundle.reset();
    Quiet quiet;
    const int64_t end_ns = talk.now() + 100 * kMs;
    while (ending.size() < 2 && talk.now() < end_ns) {
      talk.network.runUntil(talk.now() + kMs);
      (void)talk.sides[0].bundle->poll(quiet);
    }
    CHECK(ending == std::vector<bool>(2, has_said));
  }
}

}  // namespace jhetcc::rail::testing
