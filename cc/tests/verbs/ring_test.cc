// SPDX-License-Identifier: Apache-2.0
// The rings' arithmetic between two machines, played by hand: what is written lands at the same place there, credit
// comes back, and neither side believes what cannot be.
#include "transport/verbs/ring.h"

#include <doctest/doctest.h>

#include <deque>
#include <random>
#include <vector>

namespace jhetcc::transport::verbs {
namespace {

struct Rings {
  Rings() : copy(2 * kRingBytesMin), ring(kRingBytesMin) {
    out.start(copy.data(), kRingBytesMin);
    in.start(ring.data(), ring.size());
  }
  bool put(FrameType type, uint64_t length, uint32_t index, uint64_t kept = 0) {
    uint8_t* place = out.reserve(length, kept);
    if (place == nullptr) return false;
    FrameHeader header;
    header.type = type;
    header.length = length;
    header.index = index;
    std::memcpy(place, &header, sizeof header);
    if (length > 0) std::memset(place + sizeof header, static_cast<int>(index & 0xff), length);
    return true;
  }
  /// All that may go, each message with the credit that came meanwhile.
  void post() {
    while (out.unposted() > 0 && out.mayPost(1)) {
      const OutRing::Range range = out.next();
      std::memcpy(ring.data() + range.begin, copy.data() + range.begin, range.bytes);
      wire.push_back(static_cast<uint16_t>(range.bytes / kUnit));
      out.posted(range.bytes);
    }
  }
  std::vector<uint8_t> copy, ring;
  OutRing out;
  InRing in;
  std::deque<uint16_t> wire;
};

}  // namespace

TEST_CASE("verbs ring: frames of any length in any grouping arrive in order, whole, round and round") {
  Rings rings;
  std::mt19937 draw(7);
  uint32_t sent = 0, seen = 0;
  std::vector<uint64_t> lengths;
  for (int step = 0; step < 60'000; ++step) {
    const uint64_t length = draw() % 3 == 0 ? draw() % kPieceBytes : draw() % 200;
    const FrameType type = length > kRailBytesMax ? kFetchData : FrameType::kRail;
    if (rings.put(type, length, sent)) {
      lengths.push_back(length);
      ++sent;
    }
    if (draw() % 3 == 0) rings.post();
    while (!rings.wire.empty() && draw() % 4 != 0) {
      REQUIRE(rings.in.publish(rings.wire.front()));
      rings.wire.pop_front();
    }
    FrameHeader header;
    const uint8_t* payload = nullptr;
    while (draw() % 5 != 0) {
      const InRing::Found found = rings.in.peek(&header, &payload);
      REQUIRE(found != InRing::Found::kDamage);
      if (found == InRing::Found::kNothing) break;
      REQUIRE(header.index == seen);
      REQUIRE(header.length == lengths[seen]);
      for (const uint64_t at : {uint64_t{0}, header.length - 1}) {
        if (header.length > 0) REQUIRE(payload[at] == (seen & 0xff));
      }
      ++seen;
      rings.in.advance();
    }
    if (rings.in.owesCredit()) REQUIRE(rings.out.credit(rings.in.takeCredit()));
  }
  CHECK(seen > 10'000);
  CHECK(sent - seen < 2'000);
}

TEST_CASE("verbs ring: at most so many messages are unread, and credit for a part of them is enough to go on") {
  Rings rings;
  for (uint32_t k = 0; k < 2 * kMessagesMax; ++k) {
    REQUIRE(rings.put(FrameType::kData, 0, k));
    rings.post();
  }
  CHECK(rings.wire.size() == kMessagesMax);
  CHECK(!rings.out.mayPost(1));
  FrameHeader header;
  const uint8_t* payload = nullptr;
  for (uint32_t k = 0; k < kMessagesMax; ++k) {
    REQUIRE(rings.in.publish(rings.wire.front()));
    rings.wire.pop_front();
    REQUIRE(rings.in.peek(&header, &payload) == InRing::Found::kFrame);
    CHECK(rings.in.owesCredit() == (k > 0 && (k + 1) % kMessagesPerCredit == 0 ? true : false));
    rings.in.advance();
    if (rings.in.owesCredit()) REQUIRE(rings.out.credit(rings.in.takeCredit()));
  }
  rings.post();
  CHECK(rings.wire.size() == 1);  // all that waited, in one message
}

TEST_CASE("verbs ring: a reserve is left for what is urgent") {
  Rings rings;
  while (rings.put(FrameType::kData, 1000, 0, kReserveBytes)) continue;
  CHECK(rings.put(FrameType::kControl, 1000, 1));
  CHECK(!rings.put(FrameType::kData, 1000, 2, kReserveBytes));
}

TEST_CASE("verbs ring: what cannot be is not believed") {
  Rings rings;
  FrameHeader header;
  const uint8_t* payload = nullptr;
  const auto publishedFrame = [&](FrameType type, uint64_t length, uint16_t units) {
    header.type = type;
    header.length = length;
    std::memcpy(rings.ring.data(), &header, sizeof header);
    REQUIRE(rings.in.publish(units));
    return rings.in.peek(&header, &payload);
  };
  SUBCASE("more bytes than the ring has") {
    CHECK(!rings.in.publish(static_cast<uint16_t>(kRingBytesMin / kUnit + 1)));
  }
  SUBCASE("more bytes than there is room for") {
    REQUIRE(rings.in.publish(static_cast<uint16_t>(kRingBytesMin / kUnit)));
    CHECK(!rings.in.publish(1));
  }
  SUBCASE("credit for what was not sent") {
    REQUIRE(rings.put(FrameType::kData, 0, 0));
    CHECK(!rings.out.credit(1));
    rings.post();
    CHECK(!rings.out.credit(2));
    CHECK(rings.out.credit(1));
    CHECK(!rings.out.credit(1));
  }
  SUBCASE("an unknown type") { CHECK(publishedFrame(FrameType{0}, 0, 1) == InRing::Found::kDamage); }
  SUBCASE("a payload longer than what is there") {
    CHECK(publishedFrame(FrameType::kData, 65, 2) == InRing::Found::kDamage);
  }
  SUBCASE("a payload longer than any") {
    CHECK(publishedFrame(FrameType::kData, kInlineBytesMax + 1, 1000) == InRing::Found::kDamage);
  }
  SUBCASE("a length that overflows") {
    CHECK(publishedFrame(kFetchData, ~uint64_t{0}, 1000) == InRing::Found::kDamage);
  }
  SUBCASE("a pad that goes past the ring's end") {
    CHECK(publishedFrame(kPad, kRingBytesMin, 1000) == InRing::Found::kDamage);
  }
}

}  // namespace jhetcc::transport::verbs
