// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <iostream>

#include "control/membership_verdict.h"
#include "control/membership_wire.h"
#include "membership_sim.h"

using namespace jhetcc;
using namespace jhetcc::control;
using namespace jhetcc::control::testing;

namespace {

bool has(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) std::cerr << "not in: " << text << "\n    part: " << part << "\n";
  return found;
}
Status peerLost(int rank) {
  return Status(Kind::kDisconnected, Scope::kRank, "peer_lost", "recv: Connection reset by peer", {rank});
}
Status timeout() {
  return Status(Kind::kTimeout, Scope::kCommunicator, "operation_timeout", "the limit of 30 s passed");
}
const Verdict& verdictOf(Network& network, int member) {
  REQUIRE(network.at(member).membership->verdict().has_value());
  return *network.at(member).membership->verdict();
}

}  // namespace

TEST_CASE("a mismatch names both sides and loses nobody") {
  Network network(4, 1, kMs);
  network.at(0).report = {12, 11, "#12 psum(f32[100,256])", ""};
  network.at(1).report = {12, 11, "#12 psum(f32[200,256])", ""};
  network.at(2).report = {12, 11, "#12 psum(f32[100,256])", ""};
  network.at(3).report = {11, 11, "#11 barrier()", "#2 psum(f32[1]) on \"sub\""};
  network.suspectAt(1, 0, Status(Kind::kMismatch, Scope::kCommunicator, "mismatch", "fingerprints differ"), {});
  network.run(100 * kMs);
  for (int i = 0; i < 4; ++i) {
    const Verdict& verdict = verdictOf(network, i);
    CHECK(verdict.confirmed);
    CHECK(verdict.lost.empty());
    CHECK(verdict.status.kind() == Kind::kMismatch);
    CHECK(verdict.status.ranks() == std::vector<int32_t>{1, 3});
    CHECK(has(verdict.status.message(),
              "collective mismatch on \"world\" at #12: ranks 0, 2 called psum(f32[100,256]); rank 1 (host1:101) "
              "called psum(f32[200,256]); rank 3 (host3:103) had last called #11 barrier() while in #2 psum"));
    CHECK(has(verdict.status.message(), "every rank must issue the same operations in the same order"));
    CHECK(same(verdict, verdictOf(network, 0)));
  }
}

TEST_CASE("equal texts with unequal schedules show what was found") {
  Network network(2, 1, kMs);
  network.suspectAt(1, 0, Status(Kind::kMismatch, Scope::kCommunicator, "mismatch", "plan hashes 1 and 2 differ"), {});
  network.run(100 * kMs);
  CHECK(has(verdictOf(network, 0).status.message(),
            "ranks 0, 1 called psum(f32[8]); rank 1 (host1:101) found: plan hashes 1 and 2 differ"));
}

TEST_CASE("a lost peer is named with place, reason, operation and everybody's progress") {
  Network network(64, 3, kMs);
  for (int i = 0; i < 64; ++i)
    network.at(i).report = i % 2 ? Report{12, 11, "#12 psum(f32[8])", ""} : Report{11, 11, "#11 psum(f32[4])", ""};
  network.killAt(7, 1);
  network.suspectAt(5, 30 * kMs, peerLost(7), {7});
  network.run(300 * kMs);
  const Verdict& verdict = verdictOf(network, 0);
  CHECK(verdict.lost == std::vector<int32_t>{7});
  CHECK(verdict.confirmed);
  CHECK(verdict.status.kind() == Kind::kDisconnected);
  CHECK(verdict.status.code() == "peer_lost");
  CHECK(verdict.status.ranks() == std::vector<int32_t>{7});
  CHECK(has(
      verdict.status.message(),
      "peer lost on \"world\": rank 7 (host7:107): read: Connection reset by peer; in flight was #12 psum(f32[8])"));
  CHECK(has(verdict.status.message(), "finished #11, not in #12"));
  CHECK(has(verdict.status.message(), "rank 7: lost"));
  CHECK(has(verdict.status.message(), "call shrink() to go on without rank 7"));
  CHECK(verdict.status.message().size() < 800);
  CHECK(same(verdict, verdictOf(network, 63)));
}

TEST_CASE("a timeout tells who did not arrive from who did not finish") {
  Network network(4, 4, kMs);
  network.at(3).report = {11, 11, "#11 psum(f32[4])", ""};
  network.suspectAt(0, 0, timeout(), {3});
  network.suspectAt(2, 0, timeout(), {3});
  network.run(300 * kMs);
  const Verdict& verdict = verdictOf(network, 3);
  CHECK(verdict.status.kind() == Kind::kTimeout);
  CHECK(verdict.lost.empty());
  CHECK(verdict.status.ranks() == std::vector<int32_t>{3});
  CHECK(has(verdict.status.message(),
            "operation timeout on \"world\" in #12 psum(f32[8]): rank 3 (host3:103) did not arrive, though its "
            "connection is up; "
            "ranks 0-2 started it and did not finish; the limit of 30 s passed"));
  CHECK(has(verdict.status.message(), "operation_timeout (JHETCC_OPERATION_TIMEOUT)"));
}

TEST_CASE("a stopped peer is lost by silence, and is told when it comes back") {
  for (const int stopped : {0, 1}) {
    Network network(3, 5, kMs);
    network.stop(stopped, 1, 5000 * kMs);
    network.suspectAt(2, 10 * kMs, timeout(), {stopped});
    network.run(2100 * kMs);
    const Verdict& verdict = verdictOf(network, 2);
    CHECK(verdict.confirmed);
    CHECK(verdict.lost == std::vector<int32_t>{stopped});
    CHECK(verdict.status.code() == "peer_lost");
    CHECK(has(verdict.status.message(), "did not answer within"));
    CHECK(network.at(2).verdict_at < 2000 * kMs);
    network.run(6000 * kMs);
    CHECK(has(verdictOf(network, stopped).status.message(), "gave up on this rank (" + std::to_string(stopped) + ")"));
    network.at(stopped).membership->beginShrink(9000 * kMs, 6000 * kMs);
    CHECK(network.at(stopped).membership->shrinkFailure().code() == "shrink_left_out");
  }
}

TEST_CASE("nobody answers: unconfirmed, in time, and no lonely shrink") {
  Network network(5, 6, kMs);
  for (int i = 0; i < 4; ++i) network.stop(i, 1, 60'000 * kMs);
  network.suspectAt(4, 10 * kMs, timeout(), {0});
  network.run(2100 * kMs);
  const Verdict& verdict = verdictOf(network, 4);
  CHECK_FALSE(verdict.confirmed);
  network.at(4).membership->beginShrink(5000 * kMs, 2100 * kMs);
  network.schedule(4, 2101 * kMs, [](Membership&) {});
  network.run(6000 * kMs);
  CHECK_FALSE(network.at(4).membership->survivors().has_value());
  const Status& failure = network.at(4).membership->shrinkFailure();
  CHECK(failure.code() == "shrink_left_out");
  CHECK(failure.kind() == Kind::kDisconnected);
  CHECK(has(failure.message(), "no other rank answered, so others may go on without this rank; init() again"));
}

TEST_CASE("an abort, a goodbye and a failure of one rank have their own texts") {
  const std::pair<Status, std::string> cases[] = {
      {Status(Kind::kAborted, Scope::kCommunicator, "aborted", "enough"),
       "communicator \"world\" was aborted by rank 1 (host1:101): enough"},
      {Status(Kind::kResource, Scope::kProcess, "out_of_memory", "mmap: Cannot allocate memory"),
       "communicator \"world\" was ended by a failure of rank 1 (host1:101): mmap"},
      {Status(Kind::kMismatch, Scope::kCommunicator, "wait_cycle", "wait cycle between a and b", {1, 2}),
       "wait cycle between a and b; "}};
  for (const auto& [cause, text] : cases) {
    Network network(3, 7, kMs);
    network.suspectAt(1, 0, cause, {});
    network.run(100 * kMs);
    CHECK(has(verdictOf(network, 2).status.message(), text));
    CHECK(verdictOf(network, 2).lost.empty());
    CHECK(verdictOf(network, 2).status.code() == cause.code());
  }
  Network network(3, 8, kMs);
  const Status bye(Kind::kDisconnected, Scope::kRank, "left", "it closed the communicator", {2});
  network.stop(2, 0, 60'000 * kMs);
  for (int i = 0; i < 2; ++i) network.schedule(i, 1, [&](Membership& m) { m.peerGone(2, bye, network.now()); });
  network.suspectAt(1, 2 * kMs, bye, {2});
  network.run(400 * kMs);
  CHECK(verdictOf(network, 0).status.code() == "left");
  CHECK(has(verdictOf(network, 0).status.message(),
            "peer left \"world\": rank 2 (host2:102): it closed the communicator"));
}

TEST_CASE("a broken connection between two live ranks costs one of them") {
  Network network(4, 9, kMs);
  network.schedule(1, 0, [](Membership& m) { m.peerGone(2, peerLost(2), 0); });
  network.schedule(2, 0, [](Membership& m) { m.peerGone(1, peerLost(1), 0); });
  network.suspectAt(1, 1, peerLost(2), {2});
  network.suspectAt(2, 1, peerLost(1), {1});
  network.run(1000 * kMs);
  for (int i = 0; i < 4; ++i) CHECK(verdictOf(network, i).lost == std::vector<int32_t>{2});
  CHECK(has(verdictOf(network, 2).status.message(), "gave up on this rank"));
}

TEST_CASE("ranks are written as ranges") {
  CHECK(ranksText({3}) == "rank 3");
  CHECK(ranksText({5, 0, 1, 2, 9, 8}) == "ranks 0-2, 5, 8, 9");
  std::vector<int32_t> odd;
  for (int i = 0; i < 1000; ++i) odd.push_back(2 * i);
  CHECK(ranksText(odd).size() < 100);
}

TEST_CASE("malformed messages change nothing and are counted") {
  std::mt19937_64 random(11);
  std::vector<std::string> sent;
  MembershipConfig config;
  config.communicator = "world";
  for (int k = 0; k < 5; ++k) config.world_ranks.push_back(k), config.places.push_back("h:1");
  config.self = 1;
  Membership source(
      config, [] { return Report{1, 0, "#1 barrier()", ""}; },
      [&](int, std::string m) { sent.push_back(std::move(m)); });
  source.suspect(peerLost(4), {4}, 0);
  REQUIRE(sent.size() >= 4);
  config.self = 0;
  int truncated_ones = 0;
  for (const std::string& good : sent) {
    for (size_t cut = 0; cut < good.size(); ++cut) {
      Membership target(config, [] { return Report{}; }, [](int, std::string) {});
      target.onMessage(1, good.data(), cut, 0);
      CHECK_FALSE(target.ending());
      truncated_ones += static_cast<int>(target.malformed());
    }
    for (int trial = 0; trial < 300; ++trial) {  // any bytes: no crash; sanitizers watch
      std::string bad = good;
      for (int k = 0; k < 3; ++k) bad[random() % bad.size()] = static_cast<char>(random());
      Membership target(config, [] { return Report{}; }, [](int, std::string) {});
      target.onMessage(static_cast<int>(random() % 7) - 1, bad.data(), bad.size(), 0);
      target.tick(10'000 * kMs);
    }
  }
  CHECK(truncated_ones > 100);
  Membership other(config, [] { return Report{}; }, [](int, std::string) {});
  config.epoch = 3;
  Membership later(config, [] { return Report{}; }, [](int, std::string) {});
  later.onMessage(1, sent[0].data(), sent[0].size(), 0);
  CHECK_FALSE(later.ending());
  CHECK(later.malformed() == 0);
  other.onMessage(1, sent[0].data(), sent[0].size(), 0);
  CHECK(other.ending());
}

TEST_CASE("the longest texts fit into a message") {
  Network network(64, 12, kMs, std::string(3000, 'n'));
  for (int i = 0; i < 64; ++i)
    network.at(i).report = {12, 11, "#12 " + std::to_string(i) + std::string(1000, 'x'), std::string(900, 'y')};
  network.suspectAt(5, 0,
                    Status(Kind::kInternal, Scope::kProcess, std::string(99, 'c'), std::string(20'000, 'z'),
                           std::vector<int32_t>(900, 1)),
                    {1, 2});
  network.run(100 * kMs);
  CHECK(verdictOf(network, 0).confirmed);
  CHECK(verdictOf(network, 0).status.message().size() <= kVerdictBytesMax);
  CHECK(network.longest <= kMessageBytesMax);
}

TEST_CASE("a withdrawn offer is a symptom: any other cause is nearer to the root") {
  const Status symptom(Kind::kAborted, Scope::kCall, "offer_revoked", "the peer withdrew the offer");
  for (const char* code : {"mismatch", "wait_cycle", "aborted", "socket", "peer_lost", "left", "operation_timeout"}) {
    CAPTURE(code);
    CHECK(causeOrder(Status(Kind::kInternal, Scope::kCall, code, "why")) < causeOrder(symptom));
  }
}
