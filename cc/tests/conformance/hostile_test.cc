// SPDX-License-Identifier: Apache-2.0
// Damaged or hostile peers: wrong indexes, lengths, types. The endpoint breaks; nothing else does.
#include <sys/eventfd.h>

#include <random>

#include "conformance/pairs.h"
#include "transport/shm/endpoint.h"

namespace jhetcc::transport::conformance {

namespace {

/// Side 0 of a segment whose other side the test plays by hand.
struct Victim {
  Victim() {
    auto made = shm::Segment::createLocal(shm::kRingBytesMin);
    REQUIRE(made.isOk());
    segment = made.value();
    auto bells = std::make_shared<shm::LocalBells>();
    for (Fd& event : bells->events) event = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    shm::Parts parts;
    parts.segment = segment;
    parts.bell = shm::makeLocalBell(bells, segment, 0);
    parts.reads = shm::Reads::kThroughRing;
    parts.description = "shm victim";
    parts.clock = &systemClock();
    endpoint = std::make_unique<shm::ShmEndpoint>(std::move(parts));
  }
  void put(uint64_t position, const FrameHeader& header) {
    std::memcpy(segment->ring(1) + position, &header, sizeof header);
  }
  void publish(uint64_t head) { segment->layout().rings[1].head.store(head); }
  std::shared_ptr<shm::Segment> segment;
  std::unique_ptr<shm::ShmEndpoint> endpoint;
  Recorder events;
};

void checkBreaks(Victim& victim) {
  const Status status = victim.endpoint->poll(victim.events);
  REQUIRE(!status.isOk());
  CHECK(status.code() == "bad_frame");
  CHECK(!victim.endpoint->send(dataHeader(0, 0), nullptr).isOk());
}

}  // namespace

TEST_CASE("shm: indexes and lengths that cannot be break the endpoint") {
  SUBCASE("more bytes than the ring has") {
    Victim victim;
    victim.publish(shm::kRingBytesMin + 64);
    checkBreaks(victim);
  }
  SUBCASE("index that goes back") {
    Victim victim;
    victim.put(0, dataHeader(0, 0));
    victim.publish(64);
    CHECK(victim.endpoint->poll(victim.events).isOk());
    victim.publish(0);
    checkBreaks(victim);
  }
  SUBCASE("index that is not aligned") {
    Victim victim;
    victim.publish(65);
    checkBreaks(victim);
  }
  SUBCASE("payload longer than what is there") {
    Victim victim;
    victim.put(0, dataHeader(0, 64));
    victim.publish(64);
    checkBreaks(victim);
  }
  SUBCASE("payload length that overflows") {
    Victim victim;
    victim.put(0, dataHeader(0, ~uint64_t{0}));
    victim.publish(128);
    checkBreaks(victim);
  }
  SUBCASE("unknown type") {
    Victim victim;
    victim.publish(64);  // zeros
    checkBreaks(victim);
  }
  SUBCASE("our own frames read past their end") {
    Victim victim;
    victim.segment->layout().rings[0].tail.store(1 << 20);
    for (int i = 0; i < 2000; ++i) {
      if (!victim.endpoint->send(dataHeader(0, 0), nullptr).isOk()) break;
    }
    checkBreaks(victim);
  }
  SUBCASE("a piece that lies outside of its payload") {
    Victim victim;
    Guarded destination(100);
    CHECK(!victim.endpoint->fetch(offerHeader(nullptr, 100, 1), destination.data(), 1).value());
    FrameHeader piece;
    piece.type = shm::kFetchData;
    piece.cookie = 1;
    SUBCASE("by its offset") {
      piece.address = 64;
      piece.length = 64;
    }
    SUBCASE("by its length") { piece.length = 101; }
    SUBCASE("longer than any piece") { piece.length = shm::kPieceBytes + 1; }
    victim.put(0, piece);
    victim.publish(64);
    checkBreaks(victim);
    CHECK(destination.guardsIntact());
  }
  SUBCASE("room in the staging memory that nobody could have made") {
    Victim victim;
    std::vector<uint8_t> source(3 * shm::kStageBytes);
    REQUIRE(victim.endpoint->send(offerHeader(source.data(), source.size(), 7), nullptr).value());
    victim.segment->layout().stages[0].tail.store(uint64_t{1} << 40);
    FrameHeader request;
    request.type = shm::kFetchRequest;
    request.cookie = 7;
    request.address = 1;
    victim.put(0, request);
    victim.publish(64);
    for (int i = 0; i < 4; ++i) (void)victim.endpoint->poll(victim.events);
    checkBreaks(victim);
  }
}

TEST_CASE("shm: any bytes in the ring are survived") {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    Victim victim;
    Guarded destination(5000);
    std::vector<uint8_t> source(30'000);
    REQUIRE(victim.endpoint->send(offerHeader(source.data(), source.size(), 1), nullptr).value());
    REQUIRE(victim.endpoint->fetch(offerHeader(nullptr, 5000, 1), destination.data(), 1).isOk());
    uint64_t head = 0;
    for (int frame = 0; frame < 40; ++frame) {
      FrameHeader header;
      const uint8_t types[] = {1, 2, 3, 4, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85};
      header.type = FrameType{types[random() % (seed % 4 == 0 ? 10 : 9)]};
      header.length = random() % 300;
      if (random() % 50 == 0) header.length = random();
      header.cookie = random() % 3;
      header.address = random() % 2 == 0 ? 0 : random() % 6000;
      victim.put(head % shm::kRingBytesMin, header);
      head += random() % 60 == 0 ? random() : 64 + header.length % 512 / 64 * 64;
      victim.publish(head);
      if (!victim.endpoint->poll(victim.events).isOk()) break;
      (void)victim.endpoint->prepareSleep(true);
    }
    CHECK(destination.guardsIntact());
  }
}

TEST_CASE("tcp: lengths, types and pieces that cannot be break the endpoint") {
  std::vector<FrameHeader> bad(4);
  bad[0] = dataHeader(0, kInlineBytesMax + 1);
  bad[1] = dataHeader(0, ~uint64_t{0});
  bad[2].type = FrameType{9};
  bad[3].type = FrameType{0x83};
  bad[3].cookie = 1;
  bad[3].address = 90;
  bad[3].length = 20;
  for (const FrameHeader& header : bad) {
    auto [stranger, ours] = connectLoopback();
    auto endpoint = makeTcp(std::move(ours), "victim");
    Guarded destination(100);
    CHECK(!endpoint->fetch(offerHeader(nullptr, 100, 1), destination.data(), 1).value());
    REQUIRE(write(stranger.get(), &header, sizeof header) == sizeof header);
    Recorder events;
    Status status;
    const int64_t deadline_ns = systemClock().nowNs() + 10'000 * kNsPerMs;
    while (status.isOk() && systemClock().nowNs() < deadline_ns) status = endpoint->poll(events);
    CHECK(status.code() == "bad_frame");
    CHECK(destination.guardsIntact());
  }
}

TEST_CASE("tcp: any bytes are survived, and half a frame is no frame") {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    auto [stranger, ours] = connectLoopback();
    auto endpoint = makeTcp(std::move(ours), "victim");
    Guarded destination(5000);
    CHECK(!endpoint->fetch(offerHeader(nullptr, 5000, 1), destination.data(), 1).value());
    std::vector<uint8_t> bytes;
    for (int frame = 0; frame < 30; ++frame) {
      FrameHeader header;
      const uint8_t types[] = {1, 2, 3, 4, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x99};
      header.type = FrameType{types[random() % (seed % 4 == 0 ? 11 : 10)]};
      header.length = random() % 300;
      header.cookie = random() % 3;
      header.address = random() % 2 == 0 ? 0 : random() % 6000;
      if (header.type == FrameType{0x86}) header.address = uint64_t{1} << 63 | random() % 3;  // a push, and its pieces
      if (random() % 2 == 0) header.cookie |= uint64_t{1} << 63;
      const auto* first = reinterpret_cast<const uint8_t*>(&header);
      bytes.insert(bytes.end(), first, first + sizeof header);
      if (random() % 3 > 0) bytes.resize(bytes.size() + header.length);
    }
    REQUIRE(write(stranger.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    stranger.reset();
    Recorder events;
    Status status;
    for (int polls = 0; polls < 5000 && status.isOk(); ++polls) status = endpoint->poll(events);
    CHECK(destination.guardsIntact());
    CHECK((!status.isOk() || endpoint->waitDescriptor() == -1));
  }
}

TEST_CASE("tcp: an offer withdrawn in the middle of a frame keeps the stream in step") {
  auto [client, server] = connectLoopback();
  const int small = 16 * 1024;
  REQUIRE(setsockopt(client.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small) == 0);
  REQUIRE(setsockopt(server.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
  Pair pair({makeTcp(std::move(client), "a"), makeTcp(std::move(server), "b")});
  Pages source(900'000);
  std::memset(source.data(), 7, 900'000);
  Guarded destination(900'000);
  pair.sendSurely(*pair.a, offerHeader(source.data(), 900'000, 1), nullptr);
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 1; }));
  CHECK(!pair.b->fetch(pair.from_a.frames[0].header, destination.data(), 1).value());
  pair.sendSurely(*pair.a, dataHeader(1, 0), nullptr);
  REQUIRE(pair.until([&] { return destination.data()[0] == 7; }));
  CHECK(destination.data()[899'999] != 7);
  pair.a->revoke(1);
  source.forbid();
  pair.sendSurely(*pair.a, dataHeader(2, 0), nullptr);
  REQUIRE(pair.until([&] { return !pair.from_a.fetched.empty() && pair.from_a.frames.size() == 3; }));
  CHECK(pair.from_a.fetched[0].second.code() == "offer_revoked");
  CHECK(pair.from_b.released.empty());
  CHECK(pair.a_status.isOk());
  CHECK(pair.b_status.isOk());
}

TEST_CASE("tls: a frame said again, changed, or made up by somebody between breaks the endpoint and is never seen") {
  for (const char* what : {"again", "changed", "made up"}) {
    CAPTURE(what);
    std::pair<Fd, Fd> wire;
    EndpointPair ends = makeTlsPair(&wire);
    Recorder events;
    const auto poll = [&](Endpoint& endpoint) { return endpoint.poll(events); };
    REQUIRE(ends.first->send(dataHeader(1, 0), nullptr).value());
    REQUIRE(poll(*ends.first).isOk());
    char bytes[1000];
    const ssize_t got = recv(wire.second.get(), bytes, sizeof bytes, MSG_PEEK);
    REQUIRE(got > static_cast<ssize_t>(sizeof(FrameHeader)));
    CHECK(std::string_view(bytes, static_cast<size_t>(got)).find(std::string(8, 0)) == std::string_view::npos);
    REQUIRE(poll(*ends.second).isOk());
    REQUIRE(events.frames.size() == 1);
    if (*what == 'c') bytes[got - 1] ^= 1;
    const FrameHeader header = dataHeader(2, 0);
    const bool is_made_up = *what == 'm';
    const void* said = is_made_up ? static_cast<const void*>(&header) : bytes;
    const size_t size = is_made_up ? sizeof header : static_cast<size_t>(got);
    REQUIRE(write(wire.first.get(), said, size) == static_cast<ssize_t>(size));
    Status status;
    const int64_t deadline_ns = systemClock().nowNs() + 10'000 * kNsPerMs;
    while (status.isOk() && systemClock().nowNs() < deadline_ns) status = poll(*ends.second);
    CHECK(status.kind() == Kind::kDisconnected);
    CHECK_MESSAGE(status.message().find("Bad message") != std::string::npos, status.message());
    CHECK(events.frames.size() == 1);
  }
}

}  // namespace jhetcc::transport::conformance
