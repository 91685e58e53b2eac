// SPDX-License-Identifier: Apache-2.0
// Whatever happens to its paths, a bundle is one lossless, ordered connection as long as one of them comes back.
#include <doctest/doctest.h>

#include <algorithm>

#include "talk.h"

namespace jhetcc::rail::testing {

namespace {

void check(Talk& talk) {
  for (const auto& side : talk.sides) {
    uint64_t fetched = 0, taken = 0;
    for (const auto& [token, target] : side.targets) {
      fetched += target.bytes.size();
      const bool is_touched =
          (target.is_cancelled || target.is_done) &&
          std::any_of(target.bytes.begin(), target.bytes.end(), [](uint8_t byte) { return byte != 0xA5; });
      if (is_touched) talk.fail("written to after the fetch had ended");
    }
    for (const PathStatus& path : side.bundle->paths()) taken += path.received_bytes;
    if (!talk.may_revoke && taken != fetched) {
      talk.fail("took " + std::to_string(taken) + " bytes of payloads of " + std::to_string(fetched));
    }
  }
  CHECK_MESSAGE(talk.failures.empty(), talk.failures);
}

/// Connects what is lost, now and then, as a process does.
void keepReopening(Talk& talk, int paths, int64_t until_ns) {
  for (int path = 0; path < paths; ++path) {
    if (talk.isLost(path, 0) && talk.draw(2) == 0) talk.reopen(path);
  }
  const int64_t next = talk.now() + static_cast<int64_t>(talk.draw(4 * kMs)) + 1000;
  if (next < until_ns) talk.at(next, [&talk, paths, until_ns] { keepReopening(talk, paths, until_ns); });
}

}  // namespace

TEST_CASE("no faults: all that is sent comes, over all paths") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const int paths = 2 + static_cast<int>(seed % 4);
    Talk talk(seed, paths);
    talk.may_revoke = seed % 2 == 1;
    talk.say(200);
    REQUIRE_MESSAGE(talk.run(2000 * kMs), talk.story());
    check(talk);
    for (const auto& side : talk.sides) {
      for (const PathStatus& path : side.bundle->paths()) {
        CHECK(path.losses == 0);
        CHECK(path.resent_bytes == 0);
        CHECK(path.sent_bytes > 0);
      }
    }
  }
}

TEST_CASE("paths are cut, one after the other, until one is left") {
  int lost_in_the_middle = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    const int paths = 2 + static_cast<int>(seed % 4);
    transport::sim::Options options;
    options.bandwidth_bytes_per_s = 1e9;
    Talk talk(seed, paths, options);
    talk.may_revoke = seed % 3 == 1;
    const int stays = static_cast<int>(talk.draw(static_cast<uint64_t>(paths)));
    for (int path = 0; path < paths; ++path) {
      // Some at the same time, so that one is lost while another's stripes are sent again.
      if (path != stays)
        talk.at(static_cast<int64_t>(talk.draw(talk.draw(2) ? 4 * kMs : 200'000)), [&talk, path] { talk.cut(path); });
    }
    talk.say(150);
    REQUIRE_MESSAGE(talk.run(5000 * kMs), talk.story());
    check(talk);
    for (const PathStatus& path : talk.sides[0].bundle->paths()) lost_in_the_middle += path.resent_bytes > 0;
  }
  CHECK(lost_in_the_middle > 130);
}

TEST_CASE("one side leaves a path, and sends what was on it before the other knows") {
  uint64_t again = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    const int paths = 2 + static_cast<int>(seed % 4);
    transport::sim::Options options;
    options.bandwidth_bytes_per_s = seed % 2 == 0 ? 1e9 : 1e8;
    Talk talk(seed, paths, options);
    talk.may_revoke = seed % 3 == 1;
    for (int path = 1; path < paths; ++path) {
      talk.at(static_cast<int64_t>(talk.draw(3 * kMs)),
              [&talk, path, side = static_cast<int>(talk.draw(2))] { talk.leave(path, side); });
    }
    talk.say(150);
    REQUIRE_MESSAGE(talk.run(5000 * kMs), talk.story());
    check(talk);
    for (const PathStatus& path : talk.sides[0].bundle->paths()) again += path.resent_bytes;
  }
  CHECK(again > 8'000'000);
}

TEST_CASE("paths go silent without a word") {
  int silent = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const int paths = 2 + static_cast<int>(seed % 3);
    transport::sim::Options options;
    options.bandwidth_bytes_per_s = 1e9;
    Talk talk(seed, paths, options);
    talk.may_revoke = seed % 3 == 1;
    const int stays = static_cast<int>(talk.draw(static_cast<uint64_t>(paths)));
    for (int path = 0; path < paths; ++path) {
      if (path == stays) continue;
      const auto when = static_cast<int64_t>(talk.draw(4 * kMs));
      talk.at(when, [&talk, path] { talk.hold(path); });
      // What was held comes when nobody waits for it any more.
      talk.at(when + 100 * kMs, [&talk, path] { talk.release(path); });
    }
    talk.say(150);
    REQUIRE_MESSAGE(talk.run(5000 * kMs), talk.story());
    check(talk);
    for (const PathStatus& path : talk.sides[0].bundle->paths()) silent += path.losses > 0;
  }
  CHECK(silent > 100);
}

TEST_CASE("paths are lost and come back, all at once and one by one") {
  int came_back = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    const int paths = 1 + static_cast<int>(seed % 4);
    transport::sim::Options options;
    options.bandwidth_bytes_per_s = 0.5e9;
    if (seed % 5 == 0) options.break_probability = 0.002;
    Talk talk(seed, paths, options);
    talk.may_revoke = seed % 3 == 1;
    for (int k = 0; k < 12; ++k) {
      const int path = static_cast<int>(talk.draw(static_cast<uint64_t>(paths)));
      const auto when = static_cast<int64_t>(talk.draw(40 * kMs));
      if (talk.draw(3) == 0) {
        talk.at(when, [&talk, path] { talk.hold(path); });
        talk.at(when + static_cast<int64_t>(talk.draw(60 * kMs)), [&talk, path] { talk.release(path); });
      } else if (talk.draw(3) == 0) {
        talk.at(when, [&talk, path, side = static_cast<int>(talk.draw(2))] { talk.leave(path, side); });
      } else {
        talk.at(when, [&talk, path] { talk.cut(path); });
      }
    }
    keepReopening(talk, paths, 8000 * kMs);
    talk.say(150);
    REQUIRE_MESSAGE(talk.run(8000 * kMs), talk.story());
    check(talk);
    for (const PathStatus& path : talk.sides[0].bundle->paths()) came_back += path.generation > 0;
  }
  CHECK(came_back > 300);
}

}  // namespace jhetcc::rail::testing
