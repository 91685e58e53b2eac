// SPDX-License-Identifier: Apache-2.0
// Seeded runs: members die at every point, stop and come back, suspect at once for different reasons.
#include <doctest/doctest.h>

#include "control/membership_wire.h"
#include "membership_sim.h"

using namespace jhetcc;
using namespace jhetcc::control;
using namespace jhetcc::control::testing;

namespace {

constexpr int64_t kConfirm = 2000 * kMs;

int drawSize(std::mt19937_64& random) {
  const uint64_t kind = random() % 20;
  return kind == 0 ? 64 : kind < 4 ? static_cast<int>(2 + random() % 30) : static_cast<int>(2 + random() % 6);
}

Status drawCause(Network& network, int victim) {
  switch (network.draw(6)) {
    case 0:
      return Status(Kind::kMismatch, Scope::kCommunicator, "mismatch", "fingerprints differ");
    case 1:
      return Status(Kind::kAborted, Scope::kCommunicator, "aborted", "by the user");
    case 2:
      return Status(Kind::kInternal, Scope::kProcess, "internal", "a check failed");
    case 3:
      return Status(Kind::kTimeout, Scope::kCommunicator, "operation_timeout", "30 s passed", {victim});
    default:
      return Status(Kind::kDisconnected, Scope::kRank, "peer_lost", "reset by peer", {victim});
  }
}

bool losesNobody(const Verdict& verdict) {
  return verdict.status.kind() == Kind::kMismatch || verdict.status.kind() == Kind::kAborted;
}

// Every live member that was never stopped holds one confirmed verdict, in time; every other one holds the same, or one
// that is unconfirmed, or is named lost.
void checkVerdicts(Network& network, uint64_t seed, int64_t began) {
  const Verdict* agreed = nullptr;
  int alive = 0;
  for (int i = 0; i < network.size(); ++i) alive += !network.at(i).dead;
  for (int i = 0; i < network.size(); ++i) {
    Network::Member& member = network.at(i);
    if (member.dead || member.ever_stopped) continue;
    CAPTURE(seed);
    CAPTURE(i);
    REQUIRE(member.membership->verdict().has_value());
    const Verdict& verdict = *member.membership->verdict();
    CHECK(member.verdict_at <= began + kConfirm + 100 * kMs);
    CHECK(verdict.confirmed);
    if (agreed == nullptr) agreed = &verdict;
    CHECK_MESSAGE(same(*agreed, verdict), agreed->status.message() << "\n  and\n" << verdict.status.message());
    for (const int32_t lost : verdict.lost) CHECK((network.at(lost).dead || network.at(lost).ever_stopped));
  }
  for (int i = 0; i < network.size(); ++i) {
    Network::Member& member = network.at(i);
    if (member.dead || !member.ever_stopped || agreed == nullptr) continue;
    CAPTURE(seed);
    CAPTURE(i);
    REQUIRE(member.membership->verdict().has_value());
    const Verdict& verdict = *member.membership->verdict();
    if (!verdict.confirmed || names(*agreed, i) || losesNobody(*agreed)) continue;
    CHECK_MESSAGE(same(*agreed, verdict), agreed->status.message() << "\n  and\n" << verdict.status.message());
  }
}

}  // namespace

TEST_CASE("one verdict for all survivors, whoever dies when") {
  uint64_t messages = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    std::mt19937_64 random(seed);
    Network network(drawSize(random), seed, (seed % 3 == 0 ? 30 : 2) * kMs);
    network.duplicate_percent = seed % 4 == 0 ? 20 : 0;
    const int n = network.size();
    const int witness = static_cast<int>(random() % static_cast<uint64_t>(n));  // never dies
    const int deaths = static_cast<int>(network.draw(std::min(n, 6)));
    for (int k = 0; k < deaths; ++k) {
      // The first deciders die most often.
      const int victim = static_cast<int>(network.draw(2) ? network.draw(n) : network.draw(std::min(n, 4)));
      if (victim == witness) continue;
      if (network.draw(2))
        network.at(victim).sends_left = network.draw(2 * n + 4);
      else
        network.killAt(victim, network.draw(network.draw(2) ? 20 * kMs : 1500 * kMs));
    }
    const int suspicions = 1 + static_cast<int>(network.draw(4));
    // Only real deaths are told as losses: a false one costs its victim the membership.
    const int64_t began = network.draw(30 * kMs);
    network.suspectAt(witness, began, Status(Kind::kTimeout, Scope::kCommunicator, "operation_timeout", "30 s passed"),
                      {});
    for (int k = 1; k < suspicions; ++k) {
      const int victim = static_cast<int>(network.draw(n));
      Status cause = drawCause(network, victim);
      const bool loss = cause.code() == "peer_lost";
      if (loss) network.killAt(victim == witness ? (witness + 1) % n : victim, began);
      const int blamed = victim == witness ? (witness + 1) % n : victim;
      network.suspectAt(
          static_cast<int>(network.draw(n)), began + network.draw(network.draw(2) ? 5 * kMs : 1000 * kMs), cause,
          loss || cause.code() == "operation_timeout" ? std::vector<int32_t>{blamed} : std::vector<int32_t>{});
    }
    network.run(20'000 * kMs);
    checkVerdicts(network, seed, began);
    for (auto& member : network.members) CHECK(member.membership->malformed() == 0);
    CHECK(network.longest <= kMessageBytesMax);
    messages += network.messages;
  }
  CHECK(messages > 100'000);
}

TEST_CASE("stopped members are lost, the others agree, and those that come back learn it") {
  int told = 0, resumed_in_time = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    std::mt19937_64 random(seed * 7919);
    Network network(drawSize(random) + 1, seed, 2 * kMs);
    const int n = network.size();
    const int stops = 1 + static_cast<int>(network.draw(3));
    for (int k = 0; k < stops; ++k) {
      const int victim = static_cast<int>(network.draw(2) ? network.draw(n) : network.draw(std::min(n, 3)));
      const int64_t from = network.draw(network.draw(2) ? 5 * kMs : 600 * kMs);
      network.stop(victim, from,
                   from + network.draw(2) * network.draw(400 * kMs) + network.draw(2) * network.draw(8000 * kMs));
    }
    int witness = -1, others = 0;
    for (int i = 0; i < n; ++i) {
      if (!network.at(i).ever_stopped) witness = i, ++others;
    }
    if (others < 2) continue;  // who hears nobody has nobody to agree with
    if (network.draw(4) == 0) {
      for (int i = 0; i < n; ++i) {
        if (i != witness && !network.at(i).ever_stopped && others > 2) {
          network.at(i).sends_left = network.draw(2 * n);
          break;
        }
      }
    }
    network.suspectAt(witness, 2 * kMs,
                      Status(Kind::kTimeout, Scope::kCommunicator, "operation_timeout", "30 s passed"), {});
    network.run(30'000 * kMs);
    checkVerdicts(network, seed, 2 * kMs);
    for (int i = 0; i < n; ++i) {
      Network::Member& member = network.at(i);
      if (!member.ever_stopped || member.dead) continue;
      const Verdict& verdict = *member.membership->verdict();
      if (names(*network.at(witness).membership->verdict(), i)) {
        told += verdict.status.message().find("gave up on this rank") != std::string::npos;
      } else {
        ++resumed_in_time;
      }
    }
  }
  CHECK(told > 500);
  CHECK(resumed_in_time > 500);
}

TEST_CASE("slow and lossless networks: every wait ends, and different verdicts name each other's holders lost") {
  int disagreements = 0, unconfirmed = 0;
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    std::mt19937_64 random(seed * 31337);
    Network network(2 + static_cast<int>(random() % 7), seed, 600 * kMs);  // beyond the silence a decider is granted
    const int n = network.size();
    for (int k = 0; k < 1 + network.draw(3); ++k) {
      network.suspectAt(static_cast<int>(network.draw(n)), network.draw(300 * kMs),
                        Status(Kind::kTimeout, Scope::kCommunicator, "operation_timeout", "30 s passed"), {});
    }
    network.run(60'000 * kMs);
    for (int a = 0; a < n; ++a) {
      REQUIRE(network.at(a).membership->verdict().has_value());
      const Verdict& va = *network.at(a).membership->verdict();
      unconfirmed += !va.confirmed;
      for (int b = 0; b < a; ++b) {
        const Verdict& vb = *network.at(b).membership->verdict();
        if (!va.confirmed || !vb.confirmed || same(va, vb)) continue;
        CAPTURE(seed);
        CHECK((names(va, a) || names(va, b) || names(vb, a) || names(vb, b)));
        ++disagreements;
      }
    }
  }
  CHECK(disagreements + unconfirmed > 0);  // the case is really hard
}
