// SPDX-License-Identifier: Apache-2.0
// What was on a lost path goes again at once, and is taken once, whatever its receiver knows by then.
#include <doctest/doctest.h>

#include "rail/wire.h"
#include "talk.h"

namespace jhetcc::rail::testing {

namespace {

/// Two bundles with three paths; the first offers one payload of many stripes, and what goes again is counted.
struct Pair {
  explicit Pair(uint64_t seed) : network(seed, slowLinks()) {
    for (uint16_t path = 0; path < 3; ++path) {
      auto ends = network.connect(0, 1);
      a.addPath({path, 0, "", ""}, std::move(ends.first));
      b.addPath({path, 0, "", ""}, std::move(ends.second));
    }
    to_b.bundle = &b;
    a.watchResends([this](const PathStatus&, uint64_t bytes) { again += bytes; });
    for (size_t k = 0; k < payload.size(); ++k) payload[k] = static_cast<uint8_t>(k / 8);
    transport::FrameHeader offer;
    offer.type = transport::FrameType::kOffer;
    offer.length = payload.size();
    offer.address = reinterpret_cast<uint64_t>(payload.data());
    offer.cookie = 1;
    REQUIRE(a.send(offer, nullptr).value());
  }
  void run(int64_t for_ns, bool a_looks = true, bool b_looks = true) {
    for (const int64_t end = network.clock().nowNs() + for_ns; network.clock().nowNs() < end;) {
      network.runUntil(network.clock().nowNs() + 50'000);
      if (a_looks) REQUIRE(a.poll(to_a).isOk());
      if (b_looks) REQUIRE(b.poll(to_b).isOk());
    }
  }
  void leave(uint16_t path) { a.failPath(path, Status(Kind::kDisconnected, Scope::kEndpoint, "left", "left here")); }
  uint64_t received() const {
    uint64_t bytes = 0;
    for (const PathStatus& path : b.paths()) bytes += path.received_bytes;
    return bytes;
  }
  struct ToA : Quiet {
    int released = 0;
    void onReleased(uint64_t) override { ++released; }
  };
  struct ToB : Quiet {
    Bundle* bundle = nullptr;
    int fetched = 0;
    std::vector<uint8_t> place = std::vector<uint8_t>(2'000'000);
    void onFrame(const transport::FrameHeader& header, const void*) override {
      CHECK(bundle->fetch(header, place.data(), 1).isOk());
    }
    void onFetched(uint64_t, Status status) override {
      CHECK(status.isOk());
      ++fetched;
    }
  };
  transport::sim::Network network;
  Bundle a{"0 -> 1", network.clock(), quick()}, b{"1 -> 0", network.clock(), quick()};
  ToA to_a;
  ToB to_b;
  uint64_t again = 0;
  std::vector<uint8_t> payload = std::vector<uint8_t>(2'000'000);
};

}  // namespace

TEST_CASE("what was on a lost path goes again before the peer has said a word of it") {
  Pair pair(8);
  pair.run(5 * kMs);
  pair.leave(0);
  for (int round = 0; round < 20; ++round) pair.run(50'000, true, false);
  CHECK(pair.again > 0);
  CHECK(pair.b.paths()[0].state == PathState::kHealthy);
  pair.run(200 * kMs);
  CHECK(pair.to_a.released == 1);
  CHECK(pair.to_b.fetched == 1);
  CHECK(pair.to_b.place == pair.payload);
  CHECK(pair.received() == pair.payload.size());
  CHECK(pair.b.paths()[0].state == PathState::kLost);
}

TEST_CASE("what comes again and is whole is not taken again, and its sender takes it back") {
  Pair pair(9);
  pair.run(1 * kMs);
  for (int round = 0; round < 600 && pair.to_b.fetched == 0; ++round) pair.run(kMs, round % 20 == 0, true);
  pair.network.runUntil(pair.network.clock().nowNs() + kMs);
  const uint64_t before = pair.received();
  REQUIRE(before > 0);
  pair.leave(0);
  pair.leave(1);
  pair.run(400 * kMs);
  CHECK(pair.to_a.released == 1);
  CHECK(pair.to_b.fetched == 1);
  CHECK(pair.to_b.place == pair.payload);
  CHECK(pair.received() == pair.payload.size());
}

TEST_CASE("a stripe that comes again while the first is on its way ends that path at once") {
  Pair pair(10);
  pair.run(2 * kMs);
  pair.network.holdOneWay(0, 1, 1);  // the word of the loss, too
  pair.network.holdOneWay(0, 1, 0);
  pair.leave(0);
  int rounds = 0;
  for (; rounds < 100 && pair.b.paths()[0].state != PathState::kLost; ++rounds) pair.run(50'000);
  CHECK(pair.b.paths()[0].last_event == "lost: the peer lost it");
  pair.network.release(0, 1, 0);
  pair.network.release(0, 1, 1);
  pair.run(400 * kMs);
  CHECK(pair.to_a.released == 1);
  CHECK(pair.to_b.fetched == 1);
  CHECK(pair.to_b.place == pair.payload);
  CHECK(pair.received() == pair.payload.size());
}

namespace {

constexpr uint64_t kStripeBytes = 64 * 1024;

/// A bundle whose peer is played by hand: it offers two stripes.
struct Played {
  Played() {
    for (uint16_t path = 0; path < 3; ++path) {
      auto ends = network.connect(0, 1);
      peer.push_back(std::move(ends.first));
      bundle.addPath({path, 0, "", ""}, std::move(ends.second));
    }
    sink.bundle = &bundle;
  }
  void offer() {
    transport::FrameHeader outer, inner;
    outer.type = transport::FrameType::kRail;
    outer.flags = kMessage;
    outer.sequence = outer.address = 1;
    outer.tag = kStripeBytes;
    outer.length = sizeof inner;
    inner.type = transport::FrameType::kOffer;
    inner.length = payload.size();
    REQUIRE(peer[0]->send(outer, &inner).value());
    look();
  }
  void stripe(size_t path, uint64_t number, uint32_t index) {
    transport::FrameHeader header;
    header.type = transport::FrameType::kOffer;
    header.communicator = 1;
    header.index = index;
    header.length = kStripeBytes;
    header.address = reinterpret_cast<uint64_t>(payload.data()) + index * kStripeBytes;
    header.cookie = number;
    REQUIRE(peer[path]->send(header, nullptr).value());
    look();
  }
  void look() {
    network.runUntil(network.clock().nowNs() + kMs);
    REQUIRE(bundle.poll(sink).isOk());
  }
  void run() {
    for (int round = 0; round < 10; ++round) {
      look();
      Quiet quiet;
      for (auto& one : peer) (void)one->poll(quiet);
    }
  }
  struct Sink : Quiet {
    Bundle* bundle = nullptr;
    int fetched = 0;
    std::vector<uint8_t> place = std::vector<uint8_t>(2 * kStripeBytes);
    bool has_place = true;
    transport::FrameHeader offer;
    void onFrame(const transport::FrameHeader& header, const void*) override {
      offer = header;
      if (has_place) fetch();
    }
    void fetch() { CHECK(bundle->fetch(offer, place.data(), 1).isOk()); }
    void onFetched(uint64_t, Status status) override { fetched += status.isOk(); }
  } sink;
  transport::sim::Network network{11, slowLinks()};  // a stripe takes 2.6 ms
  Bundle bundle{"1 -> 0", network.clock(), quick()};
  std::vector<std::unique_ptr<transport::Endpoint>> peer;
  std::vector<uint8_t> payload = std::vector<uint8_t>(2 * kStripeBytes, 9);
  PathState state(size_t path) const { return bundle.paths()[path].state; }
};

}  // namespace

TEST_CASE("of two stripes of one place the later one counts, in whatever order they come") {
  for (const bool is_late : {false, true}) {
    CAPTURE(is_late);
    Played played;
    played.offer();
    played.stripe(is_late ? 2 : 1, is_late ? 8 : 7, 0);
    played.stripe(is_late ? 1 : 2, is_late ? 7 : 8, 0);
    CHECK(played.state(1) == (is_late ? PathState::kHealthy : PathState::kLost));  // late: nobody waits for it
    CHECK(played.state(2) == PathState::kHealthy);
    played.stripe(2, 9, 1);
    played.run();
    CHECK(played.sink.fetched == 1);
    CHECK(played.sink.place == played.payload);
    CHECK(played.bundle.paths()[2].received_bytes == played.payload.size());
    CHECK(played.bundle.paths()[1].received_bytes == 0);
  }
}

TEST_CASE("stripes that came before their offer, some of them again, are no others") {
  Played played;
  played.sink.has_place = false;
  played.stripe(1, 7, 0);
  played.stripe(2, 9, 0);
  played.stripe(1, 8, 1);
  played.offer();
  CHECK(played.state(1) == PathState::kLost);
  played.stripe(2, 10, 1);
  played.sink.fetch();
  played.run();
  CHECK(played.state(2) == PathState::kHealthy);
  CHECK(played.sink.fetched == 1);
  CHECK(played.sink.place == played.payload);
  CHECK(played.bundle.paths()[2].received_bytes == played.payload.size());
}

TEST_CASE("a stripe twice over one path costs the path") {
  Played played;
  played.offer();
  played.stripe(1, 7, 0);
  played.stripe(1, 8, 0);
  CHECK(played.state(1) == PathState::kLost);
  CHECK(played.bundle.paths()[1].last_event.find("a stripe that came twice") != std::string::npos);
}

}  // namespace jhetcc::rail::testing
