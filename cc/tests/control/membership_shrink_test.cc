// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "membership_sim.h"

using namespace jhetcc;
using namespace jhetcc::control;
using namespace jhetcc::control::testing;

namespace {

const Status kTimeout(Kind::kTimeout, Scope::kCommunicator, "operation_timeout", "30 s passed");
const Status kAbort(Kind::kAborted, Scope::kCommunicator, "aborted", "by the user");

}  // namespace

TEST_CASE("shrink before a verdict is refused") {
  Network network(2, 1, kMs);
  join(network, 0, 0, 1000 * kMs);
  network.run(10 * kMs);
  CHECK(network.at(0).membership->shrinkFailure().code() == "shrink_before_verdict");
}

TEST_CASE("the last one of a job goes on alone") {
  Network network(2, 1, kMs);
  network.killAt(0, 0);
  network.suspectAt(1, 30 * kMs, kTimeout, {0});
  join(network, 1, 100 * kMs, 1000 * kMs);
  network.run(200 * kMs);
  CHECK(checkSurvivors(network) == std::vector<int32_t>{1});
}

TEST_CASE("after an abort everybody who asks goes on; the one that never asks is left out, even if it would lead") {
  for (const int silent : {0, 2}) {
    Network network(4, 2, kMs);
    network.suspectAt(1, 0, kAbort, {});
    for (int i = 0; i < 4; ++i) {
      if (i != silent) join(network, i, 100 * kMs + i, 3000 * kMs);
    }
    network.run(2000 * kMs);
    CHECK(checkSurvivors(network).empty());  // still waited for
    network.run(3100 * kMs);
    CHECK(checkSurvivors(network).size() == 3);
    join(network, silent, 3200 * kMs, 1000 * kMs);
    network.run(3300 * kMs);
    CHECK(network.at(silent).membership->shrinkFailure().code() == "shrink_left_out");
  }
}

TEST_CASE("a failed shrink can be called again, and an idle leader goes quiet") {
  Network network(3, 3, kMs);
  network.suspectAt(1, 0, kAbort, {});
  network.stop(0, 50 * kMs, 1500 * kMs);
  network.stop(2, 50 * kMs, 1500 * kMs);
  join(network, 1, 100 * kMs, 600 * kMs);  // the leaders it knows are silent, so it leads, and would go on alone
  network.run(5000 * kMs);
  CHECK(checkSurvivors(network) == std::vector<int32_t>{1});
  Network other(3, 4, kMs);
  other.suspectAt(1, 0, kAbort, {});
  other.stop(0, 50 * kMs, 1500 * kMs);
  join(other, 1, 100 * kMs, 200 * kMs);  // over before the silent leader is passed over
  other.run(3000 * kMs);
  CHECK(other.at(1).membership->shrinkFailure().code() == "shrink_failed");
  CHECK(other.at(1).membership->shrinkFailure().kind() == Kind::kTimeout);  // worth another try
  for (int i = 0; i < 3; ++i) CHECK(other.at(i).membership->nextTickNs() == std::numeric_limits<int64_t>::max());
  for (int i = 0; i < 3; ++i) join(other, i, 3100 * kMs + i, 2000 * kMs);
  other.run(3200 * kMs);
  CHECK(checkSurvivors(other).size() == 3);
}

TEST_CASE("a stopped member that does not know it was lost asks and is told") {
  Network network(4, 5, kMs);
  network.stop(3, 3 * kMs, 7000 * kMs);
  network.suspectAt(3, 2 * kMs, kTimeout, {0});  // it knows of the abort, and is stopped right after
  network.suspectAt(1, 5 * kMs, kTimeout, {3});
  for (int i = 0; i < 3; ++i) join(network, i, 2500 * kMs, 1000 * kMs);
  join(network, 3, 7000 * kMs, 1000 * kMs);
  network.run(9000 * kMs);
  CHECK(checkSurvivors(network) == std::vector<int32_t>{0, 1, 2});
  const std::string code = network.at(3).membership->shrinkFailure().code();
  CHECK((code == "shrink_left_out" || code == "shrink_before_verdict"));
  join(network, 3, 9001 * kMs, 1000 * kMs);
  network.run(10'500 * kMs);
  CHECK(network.at(3).membership->shrinkFailure().code() == "shrink_left_out");
}

TEST_CASE("all survivors agree on who goes on, whoever dies during shrink") {
  int complete = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed * 104729);
    Network network(seed % 50 == 0 ? 64 : 2 + static_cast<int>(random() % 8), seed, (seed % 3 ? 2 : 20) * kMs);
    network.duplicate_percent = seed % 5 == 0 ? 20 : 0;
    const int n = network.size();
    const bool clean = seed % 4 == 0;  // nobody dies in the second half
    if (network.draw(2)) network.killAt(static_cast<int>(network.draw(n)), 0);
    for (int i = 0; i < n; ++i)
      network.suspectAt(i, 30 * kMs + network.draw(10 * kMs), network.draw(2) ? kTimeout : kAbort, {});
    network.run(1900 * kMs);
    std::vector<int32_t> expected;
    for (int i = 0; i < n; ++i) {
      if (network.at(i).dead) continue;
      expected.push_back(i);
      REQUIRE(network.at(i).membership->verdict().has_value());
      join(network, i, 1900 * kMs + 1 + network.draw(500 * kMs), 3000 * kMs + network.draw(1000 * kMs));
    }
    for (int k = 0; !clean && k < 1 + network.draw(3); ++k) {
      const int victim = static_cast<int>(network.draw(network.draw(2) ? n : std::min(n, 3)));
      if (network.draw(2))
        network.at(victim).sends_left = network.draw(2 * n + 6);
      else
        network.killAt(victim, 1900 * kMs + network.draw(600 * kMs));
    }
    network.run(10'000 * kMs);
    const std::vector<int32_t> members = checkSurvivors(network);
    for (int i = 0; i < n; ++i) {
      if (network.at(i).dead) continue;
      // Everyone that lives was waited for, so everyone goes on; the dead may be among them, if they died after the
      // count.
      CHECK_MESSAGE(network.at(i).membership->survivors().has_value(),
                    network.at(i).membership->shrinkFailure().message());
    }
    if (clean) {
      CHECK(members == expected);
      ++complete;
    }
  }
  CHECK(complete == 750);
}

TEST_CASE("members stopped during shrink: those who go on agree") {
  int out = 0;
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed * 15485863);
    Network network(3 + static_cast<int>(random() % 7), seed, 2 * kMs);
    const int n = network.size();
    for (int i = 0; i < n; ++i) network.suspectAt(i, 30 * kMs, kAbort, {});
    network.run(300 * kMs);
    const int stopped = static_cast<int>(network.draw(2) ? 0 : network.draw(n));
    const int64_t from = 300 * kMs + network.draw(300 * kMs);
    network.stop(stopped, from, from + network.draw(network.draw(2) ? 400 * kMs : 6000 * kMs));
    for (int i = 0; i < n; ++i) join(network, i, 300 * kMs + 1 + network.draw(200 * kMs), 2500 * kMs);
    network.run(20'000 * kMs);
    std::vector<int32_t> members;
    for (int i = 0; i < n; ++i) {
      const auto& survivors = network.at(i).membership->survivors();
      const Status& failure = network.at(i).membership->shrinkFailure();
      if (i == stopped) {
        out += !survivors;
        CHECK((survivors.has_value() || failure.code() == "shrink_left_out" || failure.code() == "shrink_failed"));
        const bool may_ask_again = failure.code() == "shrink_failed";
        if (!survivors) CHECK(failure.kind() == (may_ask_again ? Kind::kTimeout : Kind::kDisconnected));
        continue;
      }
      REQUIRE_MESSAGE(survivors.has_value(), failure.message());
      if (members.empty()) members = survivors->members;
      CHECK(survivors->members == members);
    }
    const auto& late = network.at(stopped).membership->survivors();
    if (late) CHECK(late->members == members);
  }
  CHECK(out > 50);
}
