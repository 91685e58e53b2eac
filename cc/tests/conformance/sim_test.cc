// SPDX-License-Identifier: Apache-2.0
// What only the simulated network has: its clock, its faults, its seed.
#include "conformance/pairs.h"

namespace jhetcc::transport::conformance {

namespace {

sim::Options slow() {
  sim::Options options;
  options.delay_ns_min = 1000;
  options.delay_ns_mean = 50'000;
  return options;
}

uint64_t digestOfRun(uint64_t seed) {
  sim::Options options = slow();
  options.late_probability = 0.05;
  SimPair pair(seed, options);
  const std::vector<uint8_t> source = pattern(100'000, 1);
  std::vector<uint8_t> destination(source.size());
  for (uint32_t i = 0; i < 50; ++i) pair.sendSurely(*pair.a, dataHeader(i, i * 10), source.data());
  pair.sendSurely(*pair.a, offerHeader(source.data(), source.size(), 1), nullptr);
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 51; }));
  CHECK(!pair.b->fetch(pair.from_a.frames[50].header, destination.data(), 1).value());
  REQUIRE(pair.until([&] { return !pair.from_b.released.empty(); }));
  return pair.network->digest();
}

}  // namespace

TEST_CASE("one seed is one run") {
  CHECK(digestOfRun(42) == digestOfRun(42));
  CHECK(digestOfRun(42) != digestOfRun(43));
}

TEST_CASE("the clock moves by events only, and bandwidth takes its time") {
  sim::Options options;
  options.bandwidth_bytes_per_s = 1e9;
  SimPair pair(1, options);
  CHECK(pair.network->clock().nowNs() == 0);
  const std::vector<uint8_t> source(1'000'000);
  std::vector<uint8_t> destination(source.size());
  pair.sendSurely(*pair.a, offerHeader(source.data(), source.size(), 1), nullptr);
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 1; }));
  CHECK(!pair.b->fetch(pair.from_a.frames[0].header, destination.data(), 1).value());
  REQUIRE(pair.until([&] { return !pair.from_a.fetched.empty(); }));
  CHECK(pair.network->clock().nowNs() > 1'000'000);
  CHECK(pair.network->clock().nowNs() < 1'200'000);
}

TEST_CASE("a stopped rank reports nothing, serves nothing, and goes on when resumed") {
  SimPair pair;
  const std::vector<uint8_t> source = pattern(1000, 1);
  std::vector<uint8_t> destination(1000);
  pair.sendSurely(*pair.a, offerHeader(source.data(), 1000, 1), nullptr);
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 1; }));
  pair.network->stop(0);
  CHECK(!pair.b->fetch(pair.from_a.frames[0].header, destination.data(), 1).value());
  CHECK(pair.b->send(dataHeader(1, 0), nullptr).value());
  for (int i = 0; i < 100; ++i) pair.pollOnce();
  CHECK(pair.from_b.frames.empty());
  CHECK(pair.from_a.fetched.empty());
  CHECK(!pair.network->nextEventNs().has_value());
  pair.network->resume(0);
  REQUIRE(pair.until([&] { return pair.from_b.frames.size() == 1 && pair.from_a.fetched.size() == 1; }));
  CHECK(destination == source);
}

TEST_CASE("the peers of a killed rank get its last frames, then learn of it") {
  SimPair pair;
  CHECK(pair.a->send(dataHeader(0, 0), nullptr).value());
  pair.network->kill(0);
  const int64_t killed_ns = pair.network->clock().nowNs();
  REQUIRE(pair.until([&] { return !pair.b_status.isOk(); }));
  CHECK(pair.from_a.frames.size() == 1);
  CHECK(pair.network->clock().nowNs() >= killed_ns + sim::Options().break_notice_ns);
  CHECK(!pair.a->send(dataHeader(1, 0), nullptr).isOk());
}

TEST_CASE("a cut link loses what is under way and breaks both ends") {
  SimPair pair;
  CHECK(pair.a->send(dataHeader(0, 0), nullptr).value());
  pair.network->cut(0, 1);
  REQUIRE(pair.until([&] { return !pair.a_status.isOk() && !pair.b_status.isOk(); }));
  CHECK(pair.from_a.frames.empty());
  CHECK(pair.b_status.message() == "sim rank 1 -> rank 0: connection reset (cut)");
}

TEST_CASE("links break by chance where asked") {
  sim::Options options;
  options.break_probability = 0.05;
  SimPair pair(3, options);
  uint32_t sent = 0;
  REQUIRE(pair.until([&] {
    if (pair.a_status.isOk() && pair.a->send(dataHeader(sent, 0), nullptr).value()) ++sent;
    return !pair.a_status.isOk() && !pair.b_status.isOk();
  }));
  CHECK(sent > 1);
  CHECK(pair.from_a.frames.size() < sent);
}

TEST_CASE("a held link is silent and loses nothing") {
  SimPair pair;
  pair.network->hold(0, 1);
  for (uint32_t i = 0; i < 10; ++i) CHECK(pair.a->send(dataHeader(i, 0), nullptr).value());
  for (int i = 0; i < 100; ++i) pair.pollOnce();
  CHECK(pair.from_a.frames.empty());
  pair.network->release(0, 1);
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 10; }));
  for (uint32_t i = 0; i < 10; ++i) CHECK(pair.from_a.frames[i].header.index == i);
}

TEST_CASE("a link that is held one way carries the other way") {
  SimPair pair;
  pair.network->holdOneWay(0, 1);
  for (uint32_t i = 0; i < 10; ++i) {
    CHECK(pair.a->send(dataHeader(i, 0), nullptr).value());
    CHECK(pair.b->send(dataHeader(i, 0), nullptr).value());
  }
  REQUIRE(pair.until([&] { return pair.from_b.frames.size() == 10; }));
  for (int i = 0; i < 100; ++i) pair.pollOnce();
  CHECK(pair.from_a.frames.empty());
  pair.network->release(0, 1);
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 10; }));
}

TEST_CASE("a payload that comes after its cancel is dropped and counted") {
  SimPair pair;
  const std::vector<uint8_t> source = pattern(1000, 1);
  std::vector<uint8_t> destination(1000);
  pair.sendSurely(*pair.a, offerHeader(source.data(), 1000, 1), nullptr);
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 1; }));
  CHECK(!pair.b->fetch(pair.from_a.frames[0].header, destination.data(), 1).value());
  pair.b->cancel(1);
  REQUIRE(pair.until([&] { return pair.from_b.released.size() == 1; }));
  CHECK(pair.network->lateDropped() == 1);
  CHECK(destination == std::vector<uint8_t>(1000));
}

TEST_CASE("scripts run at their time, and a mesh of hundreds of ranks is cheap") {
  constexpr int kRanks = 200;
  sim::Network network(1);
  std::vector<EndpointPair> links;
  for (int a = 0; a < kRanks; ++a) {
    for (int b = a + 1; b < kRanks; ++b) links.push_back(network.connect(a, b));
  }
  bool ran = false;
  network.at(5'000, [&] { ran = true; });
  for (EndpointPair& link : links) REQUIRE(link.first->send(dataHeader(0, 0), nullptr).value());
  network.runUntil(4'999);
  CHECK(!ran);
  network.runUntil(10'000'000);
  CHECK(ran);
  CHECK(network.clock().nowNs() == 10'000'000);
  Recorder recorder;
  for (EndpointPair& link : links) REQUIRE(link.second->poll(recorder).isOk());
  CHECK(recorder.frames.size() == links.size());
}

}  // namespace jhetcc::transport::conformance
