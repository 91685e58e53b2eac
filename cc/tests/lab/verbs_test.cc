// SPDX-License-Identifier: Apache-2.0
// verbs on real adapters: what the suite of all transports does not ask.
#include <poll.h>

#include "conformance/pairs.h"

namespace jhetcc::transport::conformance {

TEST_CASE("verbs: a rail's frame of full length arrives whole") {
  VerbsPair pair;
  const std::vector<uint8_t> payload = pattern(kRailBytesMax, 3);
  FrameHeader header = dataHeader(1, payload.size());
  header.type = FrameType::kRail;
  pair.sendSurely(*pair.a, header, payload.data());
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 1; }));
  CHECK(pair.from_a.frames[0].header.type == FrameType::kRail);
  CHECK(pair.from_a.frames[0].payload == payload);
  const std::vector<uint8_t> longer(kRailBytesMax + 1);
  header.length = longer.size();
  CHECK(!pair.a->send(header, longer.data()).isOk());
}

TEST_CASE("verbs: who has no adapter says so, and the other end hears why") {
  auto [left, right] = connectLoopback();
  Status there;
  std::thread other([&, fd = std::move(right)]() mutable {
    there = verbs::create(std::move(fd), {}, "b", systemClock().nowNs() + 5'000 * kNsPerMs, systemClock()).status();
  });
  const Status here =
      verbs::create(std::move(left), {}, "a", systemClock().nowNs() + 5'000 * kNsPerMs, systemClock()).status();
  other.join();
  for (const Status& status : {here, there}) {
    CHECK(status.kind() == Kind::kUnavailable);
    CHECK_MESSAGE(status.message().find("127.0.0.1") != std::string::npos, status.message());
  }
}

TEST_CASE("verbs: a silent other end is given up at the deadline") {
  auto [left, right] = connectBetween(labAddress(0), labAddress(0));
  const int64_t begin_ns = systemClock().nowNs();
  const Status status = verbs::create(std::move(left), {}, "a", begin_ns + 300 * kNsPerMs, systemClock()).status();
  CHECK(status.kind() == Kind::kTimeout);
  CHECK(systemClock().nowNs() - begin_ns < 5'000 * kNsPerMs);
}

TEST_CASE("verbs: nothing is unanswered once it has arrived, whatever the peer's process does") {
  VerbsPair pair;
  const std::vector<uint8_t> payload = pattern(10'000, 3);
  for (uint32_t k = 0; k < 20; ++k) REQUIRE(pair.a->send(dataHeader(k, payload.size()), payload.data()).value());
  // Only this end is polled: the other one's adapter answers.
  const int64_t deadline_ns = systemClock().nowNs() + 10'000 * kNsPerMs;
  while (pair.a->wantsWrite() && systemClock().nowNs() < deadline_ns) REQUIRE(pair.a->poll(pair.from_b).isOk());
  CHECK(!pair.a->wantsWrite());
  CHECK(pair.a->unansweredNs(systemClock().nowNs()) == 0);
  CHECK(pair.a->answered().bytes >= 20 * payload.size());
  CHECK(pair.a->answered().busy_ns > 0);
  CHECK(pair.from_a.frames.empty());
}

TEST_CASE("verbs: only what is marked wakes a sleeper between operations") {
  VerbsPair pair;
  REQUIRE(pair.b->prepareSleep(false));
  pair.sendSurely(*pair.a, dataHeader(0, 100), pattern(100, 1).data());
  while (pair.a->wantsWrite()) REQUIRE(pair.a->poll(pair.from_b).isOk());
  pollfd descriptor{pair.b->waitDescriptor(), POLLIN, 0};
  CHECK(::poll(&descriptor, 1, 0) == 0);
  FrameHeader control = dataHeader(1, 0);
  control.type = FrameType::kControl;
  pair.sendSurely(*pair.a, control, nullptr);
  while (pair.a->wantsWrite()) REQUIRE(pair.a->poll(pair.from_b).isOk());
  CHECK(::poll(&descriptor, 1, 10'000) == 1);
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 2; }));
}

}  // namespace jhetcc::transport::conformance
