// SPDX-License-Identifier: Apache-2.0
// verbs on real adapters: what the suite of all transports does not ask.
#include <poll.h>

#include "conformance/pairs.h"
#include "net/framing.h"

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
  const Status here = verbs::create(std::move(left), {}, "a", systemClock()).status();
  CHECK(here.kind() == Kind::kUnavailable);
  CHECK_MESSAGE(here.message().find("127.0.0.1") != std::string::npos, here.message());

  auto [ours, theirs] = connectBetween(labAddress(0), labAddress(0));
  auto endpoint = std::move(verbs::create(std::move(ours), {}, "a", systemClock())).value();
  const std::string why = "no adapter";
  const std::string told = net::framed(why);
  REQUIRE(write(theirs.get(), told.data(), told.size()) == static_cast<ssize_t>(told.size()));
  Recorder events;
  const Status there = endpoint->poll(events);
  CHECK(there.kind() == Kind::kUnavailable);
  CHECK_MESSAGE(there.message().find("the other end cannot: no adapter") != std::string::npos, there.message());
}

TEST_CASE("verbs: what is sent before the other end is met waits, and that end is an end") {
  auto [ours, theirs] = connectBetween(labAddress(0), labAddress(0));
  auto endpoint = std::move(verbs::create(std::move(ours), {}, "a", systemClock())).value();
  Recorder events;
  for (int polls = 0; polls < 200; ++polls) REQUIRE(endpoint->poll(events).isOk());
  CHECK(endpoint->send(dataHeader(0, 0), nullptr).value());
  for (int polls = 0; polls < 200; ++polls) REQUIRE(endpoint->poll(events).isOk());
  CHECK(endpoint->wantsWrite());
  CHECK(endpoint->prepareSleep(true));
  theirs.reset();
  pollfd descriptor{endpoint->waitDescriptor(), POLLIN, 0};
  CHECK(::poll(&descriptor, 1, 10'000) == 1);
  CHECK(endpoint->poll(events).kind() == Kind::kDisconnected);
}

TEST_CASE("verbs: the end of a process is told from that of a path, which an adapter or the peer has lost") {
  for (const bool is_path : {false, true}) {
    auto [left, right] = connectBetween(labAddress(0), labAddress(0));
    const Fd raw(dup(left.get()));
    auto a = std::move(verbs::create(std::move(left), {}, "a", systemClock())).value();
    auto b = std::move(verbs::create(std::move(right), {}, "b", systemClock())).value();
    Pair pair({std::move(a), std::move(b)});
    REQUIRE(pair.until([&] { return !pair.a->wantsWrite() && !pair.b->wantsWrite(); }));
    if (is_path) {
      REQUIRE(write(raw.get(), "x", 1) == 1);  // b takes a for damaged
    } else {
      pair.b.reset();
    }
    REQUIRE(pair.until([&] { return !pair.a_status.isOk(); }));
    CHECK(pair.a_status.kind() == Kind::kDisconnected);
    CHECK_MESSAGE(pair.a_status.code() == (is_path ? "peer_lost" : "peer_closed"), pair.a_status.message());
  }
}

TEST_CASE("verbs: what was sent before the ends met arrives") {
  Pair pair(makeVerbsStrangers());
  for (uint32_t k = 0; k < 20; ++k) {
    REQUIRE(pair.a->send(dataHeader(k, 10'000), pattern(10'000, k).data()).value());
    REQUIRE(pair.b->send(dataHeader(k, 10), pattern(10, k).data()).value());
  }
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 20 && pair.from_b.frames.size() == 20; }));
  CHECK(pair.from_a.frames[19].payload == pattern(10'000, 19));
}

TEST_CASE("verbs: what the other end is said to be is checked") {
  auto [ours, theirs] = connectBetween(labAddress(0), labAddress(0));
  auto endpoint = std::move(verbs::create(std::move(ours), {}, "a", systemClock())).value();
  Recorder events;
  SUBCASE("a message without end") {
    const uint32_t length = ~uint32_t{0};
    REQUIRE(write(theirs.get(), &length, sizeof length) == sizeof length);
  }
  SUBCASE("a ring that is none") {
    std::string told(60, '\0');
    REQUIRE(read(theirs.get(), told.data(), told.size()) == static_cast<ssize_t>(told.size()));
    const uint32_t ring = 3 << 18;
    std::memcpy(told.data() + 4 + 44, &ring, sizeof ring);
    REQUIRE(write(theirs.get(), told.data(), told.size()) == static_cast<ssize_t>(told.size()));
  }
  CHECK(!endpoint->poll(events).isOk());
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

TEST_CASE("verbs: who waits in an operation asks a silent peer's adapter, whose process sees nothing of it") {
  VerbsPair pair;
  REQUIRE(pair.until([&] { return pair.b->prepareSleep(false); }));
  const uint64_t bytes = pair.a->answered().bytes;
  const int64_t busy_ns = pair.a->answered().busy_ns;
  const int64_t end_ns = systemClock().nowNs() + 10'000 * kNsPerMs;
  while (pair.a->answered().busy_ns == busy_ns && systemClock().nowNs() < end_ns) {
    (void)pair.a->prepareSleep(true);
    REQUIRE(pair.a->poll(pair.from_b).isOk());
  }
  CHECK(pair.a->answered().busy_ns > busy_ns);
  CHECK(pair.a->answered().bytes == bytes);
  pollfd descriptor{pair.b->waitDescriptor(), POLLIN, 0};
  CHECK(::poll(&descriptor, 1, 0) == 0);
}

}  // namespace jhetcc::transport::conformance
