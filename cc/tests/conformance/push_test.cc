// SPDX-License-Identifier: Apache-2.0
// tcp: payloads that come unasked, and what control frames wait for. The peer is played by hand where the wire counts.
#include <fcntl.h>

#include <algorithm>
#include <deque>

#include "conformance/pairs.h"
#include "transport/tcp/endpoint.h"

namespace jhetcc::transport::conformance {

namespace {

/// The other end of an endpoint's socket: frames as they lie on the wire.
class Wire {
 public:
  explicit Wire(Fd socket) : socket_(std::move(socket)) {}
  void put(FrameType type, uint64_t cookie, uint64_t address, uint64_t length = 0) {
    FrameHeader header;
    header.type = type;
    header.cookie = cookie;
    header.address = address;
    header.length = length;
    REQUIRE(write(socket_.get(), &header, sizeof header) == sizeof header);
  }
  void put(const FrameHeader& header) { REQUIRE(write(socket_.get(), &header, sizeof header) == sizeof header); }
  void put(const std::vector<uint8_t>& payload) {
    REQUIRE(write(socket_.get(), payload.data(), payload.size()) == static_cast<ssize_t>(payload.size()));
  }
  /// What has come since the last call; payloads of data frames are counted and dropped.
  std::vector<FrameHeader> read() {
    uint8_t bytes[16 * 1024];
    for (;;) {
      const ssize_t got = recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (got <= 0) break;
      buffer_.insert(buffer_.end(), bytes, bytes + got);
      if (is_slow) break;
    }
    std::vector<FrameHeader> found;
    for (;;) {
      const uint64_t dropped = std::min<uint64_t>(left_, buffer_.size());
      buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<long>(dropped));
      left_ -= dropped;
      payload_bytes += dropped;
      if (left_ > 0 || buffer_.size() < sizeof(FrameHeader)) return found;
      FrameHeader header;
      std::copy(buffer_.begin(), buffer_.begin() + sizeof header, reinterpret_cast<uint8_t*>(&header));
      buffer_.erase(buffer_.begin(), buffer_.begin() + sizeof header);
      if (header.type == tcp::kFetchData || header.type == FrameType::kData) left_ = header.length;
      found.push_back(header);
    }
  }
  bool is_slow = false;
  uint64_t payload_bytes = 0;

 private:
  Fd socket_;
  std::deque<uint8_t> buffer_;
  uint64_t left_ = 0;
};

/// An endpoint and its wire.
struct Played {
  Played() : Played(connectLoopback()) {}
  explicit Played(std::pair<Fd, Fd> ends)
      : wire(std::move(ends.first)), endpoint(makeTcp(std::move(ends.second), "x")) {}
  bool until(const std::function<bool()>& done) {
    const int64_t deadline_ns = systemClock().nowNs() + 20'000 * kNsPerMs;
    while (!done()) {
      if (systemClock().nowNs() > deadline_ns || !endpoint->poll(events).isOk()) return false;
      for (const FrameHeader& header : wire.read()) frames.push_back(header);
    }
    return true;
  }
  size_t count(FrameType type) const {
    return static_cast<size_t>(
        std::count_if(frames.begin(), frames.end(), [type](const FrameHeader& one) { return one.type == type; }));
  }
  Wire wire;
  std::unique_ptr<Endpoint> endpoint;
  Recorder events;
  std::vector<FrameHeader> frames;
};

constexpr uint64_t kMiB = 1 << 20;

}  // namespace

TEST_CASE("tcp: a payload within the bound comes behind its offer, unasked, and is released when it is taken") {
  Played played;
  const std::vector<uint8_t> source = pattern(300'000, 5);
  REQUIRE(played.endpoint->send(offerHeader(source.data(), source.size(), 9), nullptr).value());
  REQUIRE(played.until([&] { return played.count(tcp::kFetchDone) == 1; }));
  REQUIRE(played.frames.size() >= 4);
  CHECK(played.frames[0].type == tcp::kPush);
  CHECK(played.frames[1].type == FrameType::kOffer);
  CHECK(played.frames[2].type == tcp::kFetchData);
  CHECK(played.wire.payload_bytes == source.size());
  CHECK(played.events.released.empty());
  played.wire.put(tcp::kTaken, played.frames[0].address, 0);
  REQUIRE(played.until([&] { return !played.events.released.empty(); }));
  CHECK(played.events.released == std::vector<uint64_t>{9});
}

TEST_CASE("tcp: a short payload leaves in one piece with its offer, and is its owner's again when it is taken") {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{4096}, kInlineBytesMax}) {
    Played played;
    Pages source(bytes);
    REQUIRE(played.endpoint->send(offerHeader(source.data(), bytes, 9), nullptr).value());
    REQUIRE(played.endpoint->poll(played.events).isOk());
    played.frames = played.wire.read();
    REQUIRE(played.frames.size() == 4);
    CHECK(played.frames[0].type == tcp::kPush);
    CHECK(played.frames[1].type == FrameType::kOffer);
    CHECK(played.frames[2].type == tcp::kFetchData);
    CHECK(played.frames[3].type == tcp::kFetchDone);
    CHECK(played.wire.payload_bytes == bytes);
    CHECK(played.events.released.empty());
    played.endpoint->revoke(9);
    source.forbid();
    REQUIRE(played.until([&] { return played.count(tcp::kFetchRefused) == 1; }));
    played.wire.put(tcp::kTaken, played.frames[0].address, 0);  // crosses the refusal
    const std::vector<uint8_t> next(tcp::kPushBytes);           // the whole bound is free
    REQUIRE(played.endpoint->send(offerHeader(next.data(), next.size(), 9), nullptr).value());
    REQUIRE(played.until([&] { return played.count(tcp::kPush) == 2; }));
    CHECK(played.events.released.empty());
  }
}

TEST_CASE("tcp: what is withdrawn with its last bytes half on their way leaves no half frame behind") {
  // Whether the socket, whose other end does not read, took the beginning of the last frame at least.
  const auto withdrawn = [](uint64_t bytes) {
    CAPTURE(bytes);
    auto ends = connectLoopback();
    const int small = 4096, middling = 64 * 1024;
    REQUIRE(setsockopt(ends.second.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small) == 0);
    REQUIRE(setsockopt(ends.first.get(), SOL_SOCKET, SO_RCVBUF, &middling, sizeof middling) == 0);
    Played played(std::move(ends));
    Pages source(bytes);
    REQUIRE(played.endpoint->send(offerHeader(source.data(), bytes, 7), nullptr).value());
    for (int polls = 0; polls < 50; ++polls) REQUIRE(played.endpoint->poll(played.events).isOk());
    played.endpoint->revoke(7);
    source.forbid();
    const std::vector<uint8_t> next = pattern(5000, 3);
    REQUIRE(played.endpoint->send(offerHeader(next.data(), next.size(), 7), nullptr).value());
    REQUIRE(played.until([&] {
      return played.wire.payload_bytes == bytes + next.size() && played.frames.back().type == tcp::kFetchDone;
    }));
    std::vector<FrameType> types, wanted{tcp::kPush, FrameType::kOffer, tcp::kFetchData};
    for (const FrameHeader& header : played.frames) types.push_back(header.type);
    const bool was_begun = types.size() == 9;
    if (was_begun) wanted.push_back(tcp::kFetchDone);
    wanted.insert(wanted.end(), {tcp::kFetchRefused, tcp::kPush, FrameType::kOffer, tcp::kFetchData, tcp::kFetchDone});
    CHECK(types == wanted);
    return was_begun;
  };
  uint64_t taken = kInlineBytesMax + 1, refused = kMiB / 4;
  REQUIRE(withdrawn(taken));
  REQUIRE(!withdrawn(refused));
  while (refused - taken > 1) {
    const uint64_t middle = (taken + refused) / 2;
    (withdrawn(middle) ? taken : refused) = middle;
  }
  for (uint64_t less = 0; less < 2 * sizeof(FrameHeader); less += 8) withdrawn(taken - less);
}

TEST_CASE("tcp: no more is pushed than the bound until some of it is taken") {
  Played played;
  const std::vector<uint8_t> source = pattern(kMiB, 5);
  const auto offer = [&](uint64_t cookie) {
    REQUIRE(played.endpoint->send(offerHeader(source.data(), source.size(), cookie), nullptr).value());
  };
  for (uint64_t cookie = 1; cookie <= 4; ++cookie) offer(cookie);
  REQUIRE(played.until([&] { return played.count(tcp::kFetchDone) == 2; }));
  CHECK(played.count(tcp::kPush) == tcp::kPushBytes / kMiB);
  CHECK(played.count(FrameType::kOffer) == 4);
  CHECK(played.wire.payload_bytes == tcp::kPushBytes);
  played.wire.put(tcp::kFetchRequest, 4, 77);  // asked for, as ever
  REQUIRE(played.until([&] { return played.count(tcp::kFetchDone) == 3; }));
  CHECK(played.events.released.empty());
  played.wire.put(tcp::kTaken, 77, 0);
  REQUIRE(played.until([&] { return played.events.released == std::vector<uint64_t>{4}; }));
  played.wire.put(tcp::kTaken, played.frames[0].address, 0);
  REQUIRE(played.until([&] { return played.events.released.size() == 2; }));
  offer(5);
  REQUIRE(played.until([&] { return played.count(tcp::kPush) == 3; }));
}

TEST_CASE("tcp: a frame waits behind a bounded part of the payload that this side sends") {
  auto ends = connectLoopback();
  const int small = 32 * 1024;
  REQUIRE(setsockopt(ends.first.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
  Played played(std::move(ends));
  const std::vector<uint8_t> source = pattern(16 * kMiB, 5);
  std::vector<uint8_t> destination(4 * kMiB);
  REQUIRE(played.endpoint->send(offerHeader(source.data(), source.size(), 1), nullptr).value());
  played.wire.put(tcp::kFetchRequest, 1, 1);
  // The peer takes some of it, then looks elsewhere until everything between is full.
  REQUIRE(played.until([&] { return played.wire.payload_bytes > 4 * kMiB; }));
  for (int polls = 0; polls < 100; ++polls) REQUIRE(played.endpoint->poll(played.events).isOk());
  played.events.on_frame = [&](const ReceivedFrame& frame) {
    CHECK(!played.endpoint->fetch(frame.header, destination.data(), 3).value());
  };
  played.wire.put(offerHeader(nullptr, destination.size(), 2));
  while (played.events.frames.empty()) REQUIRE(played.endpoint->poll(played.events).isOk());
  const uint64_t before = played.wire.payload_bytes;
  played.wire.is_slow = true;
  REQUIRE(played.until([&] { return played.count(tcp::kFetchRequest) == 1; }));
  CHECK(played.wire.payload_bytes - before < 3 * kMiB / 2);
}

TEST_CASE("tcp: what was pushed early goes to its place, whenever that is given") {
  for (const int polls : {0, 1, 2, 3, 4, 6, 9, 40}) {
    CAPTURE(polls);
    TcpPair pair;
    std::vector<std::vector<uint8_t>> sources;
    std::vector<Guarded> destinations;
    for (uint64_t i = 0; i < 3; ++i) {
      sources.push_back(pattern(600'000 + i, i));
      destinations.emplace_back(sources[i].size());
      pair.sendSurely(*pair.a, offerHeader(sources[i].data(), sources[i].size(), i), nullptr);
    }
    REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 3; }));
    for (int i = 0; i < polls; ++i) pair.pollOnce();
    CHECK(pair.from_b.released.empty());
    size_t at_once = 0;
    for (uint64_t i = 3; i-- > 0;) {
      at_once += pair.b->fetch(pair.from_a.frames[i].header, destinations[i].data(), i).value() ? 1 : 0;
    }
    CHECK((polls < 40 || at_once == 3));
    REQUIRE(pair.until([&] { return at_once + pair.from_a.fetched.size() == 3 && pair.from_b.released.size() == 3; }));
    for (uint64_t i = 0; i < 3; ++i) CHECK(destinations[i].holds(sources[i]));
  }
}

TEST_CASE("tcp: a poll ends once before a payload without a place, so that it need not be copied") {
  for (const bool is_prompt : {true, false}) {
    CAPTURE(is_prompt);
    Played played;
    const std::vector<uint8_t> source = pattern(50'000, 1);
    Guarded destination(source.size());
    played.wire.put(tcp::kPush, 4, tcp::kPushBit | 1, source.size());
    played.wire.put(offerHeader(nullptr, source.size(), 4));
    played.wire.put(tcp::kFetchData, tcp::kPushBit | 1, 0, source.size());
    played.wire.put(source);
    played.wire.put(tcp::kFetchDone, tcp::kPushBit | 1, 0);
    while (played.events.frames.empty()) REQUIRE(played.endpoint->poll(played.events).isOk());
    for (int polls = 0; polls < 1000 && !is_prompt; ++polls) REQUIRE(played.endpoint->poll(played.events).isOk());
    const FrameHeader offer = played.events.frames[0].header;
    CHECK(played.endpoint->fetch(offer, destination.data(), 7).value() != is_prompt);
    REQUIRE(played.until([&] { return played.count(tcp::kTaken) == 1; }));
    CHECK(destination.holds(source));
    CHECK(played.events.fetched.size() == (is_prompt ? 1 : 0));
  }
}

TEST_CASE("tcp: a withdrawn push is forgotten on both sides, and its bytes count no more") {
  TcpPair pair;
  const std::vector<uint8_t> source = pattern(tcp::kPushBytes, 1);
  for (uint64_t cookie = 1; cookie <= 5; ++cookie) {
    CAPTURE(cookie);
    const size_t frames = pair.from_a.frames.size();
    pair.sendSurely(*pair.a, offerHeader(source.data(), source.size(), cookie), nullptr);
    REQUIRE(pair.until([&] { return pair.from_a.frames.size() > frames; }));
    for (uint64_t i = 1; i < 4 * cookie; ++i) pair.pollOnce();
    pair.a->revoke(cookie);
  }
  // The whole bound is free again, and a fetch of what was withdrawn is refused.
  pair.sendSurely(*pair.a, dataHeader(0, 0), nullptr);
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 6; }));
  Guarded destination(source.size());
  CHECK(!pair.b->fetch(pair.from_a.frames[2].header, destination.data(), 8).value());
  REQUIRE(pair.until([&] { return pair.from_a.fetched.size() == 1; }));
  CHECK(pair.from_a.fetched[0].second.code() == "offer_revoked");
  pair.sendSurely(*pair.a, offerHeader(source.data(), source.size(), 6), nullptr);
  for (int i = 0; i < 1000; ++i) pair.pollOnce();
  CHECK(pair.b->fetch(pair.from_a.frames[6].header, destination.data(), 9).value());
  CHECK(destination.holds(source));
  REQUIRE(pair.until([&] { return pair.from_b.released == std::vector<uint64_t>{6}; }));
}

TEST_CASE("tcp: a withdrawn push ends before a later offer of the same cookie, whatever was under way") {
  for (const int polls : {0, 1, 2, 3, 5, 9, 40}) {
    CAPTURE(polls);
    TcpPair pair;
    const std::vector<uint8_t> other = pattern(600'000, 1), first = pattern(600'000, 2), second = pattern(600'000, 3);
    Guarded destination(second.size());
    pair.sendSurely(*pair.a, offerHeader(other.data(), other.size(), 7), nullptr);
    pair.sendSurely(*pair.a, offerHeader(first.data(), first.size(), 5), nullptr);
    for (int i = 0; i < polls; ++i) pair.pollOnce();
    pair.a->revoke(5);
    pair.sendSurely(*pair.a, offerHeader(second.data(), second.size(), 5), nullptr);
    REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 3; }));
    const bool done = pair.b->fetch(pair.from_a.frames[2].header, destination.data(), 8).value();
    REQUIRE(pair.until([&] { return done || pair.from_a.fetched.size() == 1; }));
    if (!done) CHECK_MESSAGE(pair.from_a.fetched[0].second.isOk(), pair.from_a.fetched[0].second.message());
    CHECK(destination.holds(second));
    REQUIRE(pair.until([&] { return pair.from_b.released == std::vector<uint64_t>{5}; }));
  }
}

TEST_CASE("tcp: what is released is not read any more, though the peer asked for it twice") {
  for (const bool is_push_first : {true, false}) {
    CAPTURE(is_push_first);
    Played played;
    Pages source(kMiB);
    REQUIRE(played.endpoint->send(offerHeader(source.data(), kMiB, 3), nullptr).value());
    if (is_push_first) REQUIRE(played.until([&] { return played.count(tcp::kFetchDone) == 1; }));
    for (uint64_t fetch = 1; fetch <= 12; ++fetch) played.wire.put(tcp::kFetchRequest, 3, fetch);
    if (is_push_first) {
      // The socket is full, and a data frame is in the middle of its way.
      for (int polls = 0; polls < 100; ++polls) REQUIRE(played.endpoint->poll(played.events).isOk());
      played.wire.put(tcp::kTaken, tcp::kPushBit | 1, 0);
    }
    const int64_t deadline_ns = systemClock().nowNs() + 20'000 * kNsPerMs;
    while (played.events.released.empty()) {
      REQUIRE(systemClock().nowNs() < deadline_ns);
      REQUIRE(played.endpoint->poll(played.events).isOk());
      if (is_push_first) continue;
      for (const FrameHeader& header : played.wire.read()) {
        played.frames.push_back(header);
        if (header.type == tcp::kFetchDone) played.wire.put(tcp::kTaken, header.cookie, 0);
      }
    }
    source.forbid();
    REQUIRE(played.until([&] { return played.count(tcp::kFetchRefused) + played.count(tcp::kFetchDone) >= 13; }));
    CHECK(played.events.released == std::vector<uint64_t>{3});
    // Nothing of it counts any more: the whole bound is free.
    const std::vector<uint8_t> next(tcp::kPushBytes);
    REQUIRE(played.endpoint->send(offerHeader(next.data(), next.size(), 3), nullptr).value());
    REQUIRE(played.until([&] { return played.count(tcp::kPush) == 2; }));
  }
}

TEST_CASE("tcp: pushes that cannot be break the endpoint") {
  const uint64_t id = tcp::kPushBit | 1;
  const auto breaks = [](const std::function<void(Wire&)>& play, size_t offers) {
    Played played;
    const std::vector<uint8_t> source(tcp::kPushBytes);  // more than a socket takes whose other end does not read
    for (uint64_t i = 0; i < offers; ++i) {
      REQUIRE(played.endpoint->send(offerHeader(source.data(), source.size(), i), nullptr).value());
    }
    play(played.wire);
    Status status;
    const int64_t deadline_ns = systemClock().nowNs() + 10'000 * kNsPerMs;
    while (status.isOk() && systemClock().nowNs() < deadline_ns) status = played.endpoint->poll(played.events);
    CHECK(status.code() == "bad_frame");
  };
  breaks([&](Wire& wire) { wire.put(tcp::kPush, 1, id, tcp::kPushBytes + 1); }, 0);
  breaks([&](Wire& wire) { wire.put(tcp::kPush, 1, id, 0); }, 0);
  breaks([&](Wire& wire) { wire.put(tcp::kPush, 1, 5, 100); }, 0);
  breaks([&](Wire& wire) { wire.put(tcp::kFetchRequest, 1, id); }, 1);
  breaks([&](Wire& wire) { wire.put(tcp::kTaken, id, 0); }, 1);
  breaks(
      [&](Wire& wire) {
        wire.put(tcp::kPush, 1, id, 100);
        wire.put(tcp::kPush, 2, id, 100);
      },
      0);
  breaks(
      [&](Wire& wire) {
        wire.put(tcp::kPush, 1, id, tcp::kPushBytes / 2 + 1);
        wire.put(tcp::kPush, 2, id + 1, tcp::kPushBytes / 2);
      },
      0);
}

}  // namespace jhetcc::transport::conformance
