// SPDX-License-Identifier: Apache-2.0
// Seeded runs in which two connections between members that live on are cut, at once or nearly so.
#include <doctest/doctest.h>

#include <set>

#include "membership_sim.h"

using namespace jhetcc;
using namespace jhetcc::control;
using namespace jhetcc::control::testing;

namespace {

constexpr int64_t kConfirm = 2000 * kMs;
const Status kAbort(Kind::kAborted, Scope::kCommunicator, "aborted", "by the user");

/// Two connections; the ends of the first deciders are drawn most often.
std::vector<std::pair<int, int>> drawCuts(Network& network) {
  std::vector<std::pair<int, int>> cuts;
  while (cuts.size() < 2) {
    const int a = static_cast<int>(network.draw(network.draw(2) ? network.size() : 2));
    const int b = static_cast<int>(network.draw(network.size()));
    if (a != b) cuts.emplace_back(a, b);
  }
  return cuts;
}

}  // namespace

TEST_CASE("two connections cut during shrink: who goes on agrees, and nobody waits for long") {
  int left_out = 0, all_went_on = 0;
  int64_t longest = 0;
  for (uint64_t seed = 1; seed <= 6000; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed * 86028121);
    // Of four members at least, two cuts leave a member that hears both of any two leaders.
    Network network(4 + static_cast<int>(random() % 5), seed, (seed % 3 ? 20 : 2) * kMs);
    const int n = network.size();
    for (int i = 0; i < n; ++i) network.suspectAt(i, 30 * kMs, kAbort, {});
    network.run(300 * kMs);
    // One that never asks holds the others up until half a second before the first deadline.
    const int absent = seed % 2 ? -1 : static_cast<int>(network.draw(n));
    for (int i = 0; i < n; ++i) {
      if (i != absent) join(network, i, 301 * kMs + network.draw(10 * kMs), 3000 * kMs);
    }
    std::set<int> cut_off;
    const int64_t began = (absent < 0 ? 301 : 2801) * kMs;
    const int64_t at = began + network.draw(80 * kMs);
    for (const auto& [a, b] : drawCuts(network)) {
      network.cutAt(a, b, at + network.draw(2) * network.draw(20 * kMs));
      cut_off.insert({a, b});
    }
    const auto ended = [&](int i) {
      const Membership& member = *network.at(i).membership;
      return member.survivors().has_value() || !member.shrinkFailure().isOk();
    };
    int64_t end = began;
    for (int i = 0; i < n; ++i) {
      while (i != absent && !ended(i) && end < 4000 * kMs) network.run(end += 5 * kMs);
    }
    longest = std::max(longest, end - began);
    network.run(10'000 * kMs);
    const std::vector<int32_t> members = checkSurvivors(network);
    all_went_on += static_cast<int>(members.size()) == n - (absent >= 0);
    for (int i = 0; i < n; ++i) {
      if (i == absent || network.at(i).membership->survivors()) continue;
      ++left_out;
      CHECK(cut_off.count(i) == 1);
      const std::string code = network.at(i).membership->shrinkFailure().code();
      CHECK((code == "shrink_left_out" || (absent >= 0 && code == "shrink_failed")));
    }
  }
  CHECK(longest < kConfirm / 2);
  CHECK(left_out > 200);  // the case is really hard
  CHECK(all_went_on > 500);
}

TEST_CASE("a member with little time left does not make others decide before they heard each other") {
  int decided = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    Network network(4, seed, 30 * kMs);
    for (int i = 0; i < 4; ++i) network.suspectAt(i, 30 * kMs, kAbort, {});
    network.run(300 * kMs);
    for (int i = 0; i < 3; ++i) join(network, i, 301 * kMs, 3000 * kMs);
    join(network, 3, 301 * kMs, 80 * kMs);
    network.cutAt(0, 1, 301 * kMs + network.draw(60 * kMs));
    network.cutAt(0, 3, 301 * kMs + network.draw(60 * kMs));
    network.run(10'000 * kMs);
    decided += static_cast<int>(checkSurvivors(network).size());
    CHECK(network.at(2).membership->survivors().has_value());
  }
  CHECK(decided > 6000);
}

TEST_CASE("two connections cut while a verdict is made: all confirmed ones are the same, in time") {
  int confirmed = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed * 122949829);
    Network network(4 + static_cast<int>(random() % 5), seed, (seed % 3 ? 20 : 2) * kMs);
    const int n = network.size();
    const int64_t at = network.draw(60 * kMs);
    const bool told = network.draw(2) == 1;  // the first evidence is the cut itself, or something else
    if (told) network.suspectAt(static_cast<int>(network.draw(n)), 1, kAbort, {});
    for (const auto& [a, b] : drawCuts(network)) {
      network.cutAt(a, b, at + network.draw(2) * network.draw(20 * kMs), [&network](Membership& member, int peer) {
        member.suspect(Status(Kind::kDisconnected, Scope::kRank, "peer_lost", "reset by peer", {peer}), {peer},
                       network.now());
      });
    }
    network.run(20'000 * kMs);
    const Verdict* agreed = nullptr;
    int first = 0;
    for (int i = 0; i < n; ++i) {
      REQUIRE(network.at(i).membership->verdict().has_value());
      const Verdict& verdict = *network.at(i).membership->verdict();
      CHECK(network.at(i).verdict_at <= 120 * kMs + kConfirm);
      if (!verdict.confirmed) continue;
      ++confirmed;
      if (agreed == nullptr || names(*agreed, first)) {
        agreed = &verdict;
        first = i;
      }
      CHECK(agreed->lost == verdict.lost);
      if (names(verdict, i) || names(*agreed, first)) continue;  // told that the others gave up on it
      CHECK_MESSAGE(same(*agreed, verdict), agreed->status.message() << "\n  and\n" << verdict.status.message());
    }
  }
  CHECK(confirmed > 15'000);
}
