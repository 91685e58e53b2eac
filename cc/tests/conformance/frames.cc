// SPDX-License-Identifier: Apache-2.0
// The suite, part one: inline frames, order, room, goodbye, a peer that is gone.
#include <algorithm>

#include "conformance/pairs.h"

namespace jhetcc::transport::conformance {

TEST_CASE_TEMPLATE("frames keep order and content in both directions", P, JHETCC_TRANSPORTS) {
  P pair;
  std::vector<uint64_t> sizes = {0, 1, 2, 63, 64, 65, 127, 128, 1000, 4095, 4096, 16320, 16383, 16384};
  for (uint64_t i = 0; i < 400; ++i) sizes.push_back(i * 2654435761U % (kInlineBytesMax + 1));
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    pair.sendSurely(*pair.a, dataHeader(i, sizes[i]), pattern(sizes[i], i).data());
    pair.sendSurely(*pair.b, dataHeader(i, sizes[i]), pattern(sizes[i], ~i).data());
  }
  REQUIRE(pair.until(
      [&] { return pair.from_a.frames.size() == sizes.size() && pair.from_b.frames.size() == sizes.size(); }));
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    const FrameHeader expected = dataHeader(i, sizes[i]);
    REQUIRE(std::memcmp(&pair.from_a.frames[i].header, &expected, sizeof expected) == 0);
    REQUIRE(std::memcmp(&pair.from_b.frames[i].header, &expected, sizeof expected) == 0);
    REQUIRE(pair.from_a.frames[i].payload == pattern(sizes[i], i));
    REQUIRE(pair.from_b.frames[i].payload == pattern(sizes[i], ~i));
  }
  CHECK(pair.a_status.isOk());
  CHECK(pair.b_status.isOk());
}

TEST_CASE_TEMPLATE("thousands of small frames pass", P, JHETCC_TRANSPORTS) {
  P pair;
  constexpr uint32_t kFrames = 20'000;
  uint32_t seen = 0;
  bool ordered = true;
  pair.from_a.on_frame = [&](const ReceivedFrame& frame) {
    ordered = ordered && frame.header.index == seen && frame.payload.size() == seen % 90;
    ++seen;
  };
  const std::vector<uint8_t> payload(90, 0x5A);
  for (uint32_t i = 0; i < kFrames; ++i) {
    pair.sendSurely(*pair.a, dataHeader(i, i % 90), payload.data());
    if (i % 64 == 0) pair.from_a.frames.clear();
  }
  REQUIRE(pair.until([&] { return seen == kFrames; }));
  CHECK(ordered);
}

TEST_CASE_TEMPLATE("a full endpoint says so, takes nothing, and recovers", P, JHETCC_TRANSPORTS) {
  P pair;
  const std::vector<uint8_t> payload = pattern(3000, 9);
  uint32_t sent = 0;
  for (int round = 0; round < 3; ++round) {
    const uint32_t before = sent;
    bool full = false;
    // Kernel buffers of sockets grow to several MiB.
    while (!full && sent - before < 50'000) {
      const Result<bool> taken = pair.a->send(dataHeader(sent, payload.size()), payload.data());
      REQUIRE(taken.isOk());
      full = !taken.value();
      if (!full) ++sent;
    }
    CHECK(full);
    REQUIRE(pair.until([&] { return pair.from_a.frames.size() == sent; }));
  }
  for (uint32_t i = 0; i < sent; ++i) REQUIRE(pair.from_a.frames[i].header.index == i);
  REQUIRE(pair.from_a.frames.back().payload == payload);
}

TEST_CASE_TEMPLATE("an inline payload that is too long is refused by name", P, JHETCC_TRANSPORTS) {
  P pair;
  const std::vector<uint8_t> payload(kInlineBytesMax + 1);
  const Result<bool> taken = pair.a->send(dataHeader(0, payload.size()), payload.data());
  REQUIRE(!taken.isOk());
  CHECK(taken.status().kind() == Kind::kBadArgument);
  CHECK(taken.status().message().find("16385") != std::string::npos);
  pair.sendSurely(*pair.a, dataHeader(1, 4), payload.data());
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 1; }));
}

TEST_CASE_TEMPLATE("a sink may send from inside a poll", P, JHETCC_TRANSPORTS) {
  P pair;
  constexpr uint32_t kRounds = 300;
  pair.from_a.on_frame = [&](const ReceivedFrame& frame) {
    REQUIRE(pair.b->send(frame.header, frame.payload.data()).value());
  };
  pair.from_b.on_frame = [&](const ReceivedFrame& frame) {
    FrameHeader next = frame.header;
    if (++next.index < kRounds) REQUIRE(pair.a->send(next, frame.payload.data()).value());
  };
  const std::vector<uint8_t> payload = pattern(777, 1);
  pair.sendSurely(*pair.a, dataHeader(0, payload.size()), payload.data());
  REQUIRE(pair.until([&] { return pair.from_b.frames.size() == kRounds; }));
  CHECK(pair.from_b.frames.back().payload == payload);
}

TEST_CASE_TEMPLATE("after a goodbye a closed peer is no error", P, JHETCC_TRANSPORTS) {
  P pair;
  FrameHeader goodbye;
  goodbye.type = FrameType::kGoodbye;
  pair.sendSurely(*pair.a, dataHeader(0, 0), nullptr);
  pair.sendSurely(*pair.a, goodbye, nullptr);
  while (pair.a->wantsWrite()) REQUIRE(pair.a->poll(pair.from_b).isOk());
  pair.a.reset();
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 2; }));
  CHECK(pair.from_a.frames[1].header.type == FrameType::kGoodbye);
  for (int i = 0; i < 20'000; ++i) pair.pollOnce();
  CHECK(pair.b_status.isOk());
  CHECK(pair.from_a.frames.size() == 2);
}

TEST_CASE_TEMPLATE("a peer that vanishes breaks the endpoint, after its last frames", P, JHETCC_TRANSPORTS) {
  P pair;
  for (uint32_t i = 0; i < 5; ++i) pair.sendSurely(*pair.a, dataHeader(i, 100), pattern(100, i).data());
  while (pair.a->wantsWrite()) REQUIRE(pair.a->poll(pair.from_b).isOk());
  pair.a.reset();
  REQUIRE(pair.until([&] { return !pair.b_status.isOk(); }));
  CHECK(pair.from_a.frames.size() == 5);
  CHECK(pair.b_status.kind() == Kind::kDisconnected);
  CHECK(pair.b_status.scope() == Scope::kEndpoint);
  CHECK(pair.b_status.message().find("closed") != std::string::npos);
  CHECK(!pair.b->send(dataHeader(9, 0), nullptr).isOk());
  CHECK(!pair.b->poll(pair.from_a).isOk());
  pair.b.reset();
}

TEST_CASE_TEMPLATE("endpoints describe themselves", P, JHETCC_TRANSPORTS) {
  P pair;
  CHECK(!pair.a->description().empty());
  CHECK(pair.a->description().find(pair.a->transportName()) == 0);
}

}  // namespace jhetcc::transport::conformance
