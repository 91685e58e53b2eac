// SPDX-License-Identifier: Apache-2.0
// The suite, part two: offers, and everything that may happen to one.
#include <algorithm>

#include "conformance/pairs.h"

namespace jhetcc::transport::conformance {

namespace {

/// Fetches `offer` at end b; true if it is done at once.
bool fetchAtB(Pair& pair, const FrameHeader& offer, void* destination, uint64_t token) {
  const Result<bool> done = pair.b->fetch(offer, destination, token);
  REQUIRE_MESSAGE(done.isOk(), done.status().message());
  return done.value();
}

void fetchSurely(Pair& pair, const FrameHeader& offer, void* destination, uint64_t token) {
  if (fetchAtB(pair, offer, destination, token)) return;
  const size_t before = pair.from_a.fetched.size();
  REQUIRE(pair.until([&] { return pair.from_a.fetched.size() > before; }));
  CHECK(pair.from_a.fetched.back().first == token);
  REQUIRE_MESSAGE(pair.from_a.fetched.back().second.isOk(), pair.from_a.fetched.back().second.message());
}

/// The endpoints still work: one more offer passes.
void checkUsable(Pair& pair, uint64_t cookie) {
  const std::vector<uint8_t> source = pattern(70'001, cookie);
  Guarded destination(source.size());
  const size_t before = pair.from_a.frames.size();
  pair.sendSurely(*pair.a, offerHeader(source.data(), source.size(), cookie), nullptr);
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() > before; }));
  fetchSurely(pair, pair.from_a.frames.back().header, destination.data(), cookie);
  CHECK(destination.holds(source));
  REQUIRE(
      pair.until([&] { return std::count(pair.from_b.released.begin(), pair.from_b.released.end(), cookie) == 1; }));
}

/// There the peer finds a payload whatever becomes of this process, and there is no other path.
bool isSharedMemory(const Endpoint& endpoint) { return endpoint.transportName() == std::string("shm"); }

constexpr uint64_t kMiB = 1 << 20;

}  // namespace

TEST_CASE_TEMPLATE("offers of every size arrive whole and are released", P, JHETCC_TRANSPORTS) {
  P pair;
  uint64_t cookie = 100;
  for (const uint64_t size : {uint64_t{1}, uint64_t{7}, uint64_t{64}, uint64_t{4097}, 65536 + uint64_t{3}, kMiB - 1,
                              kMiB, kMiB + 1, 3 * kMiB + 5, 8 * kMiB}) {
    CAPTURE(size);
    const std::vector<uint8_t> source = pattern(size, size);
    Guarded destination(size);
    pair.sendSurely(*pair.a, offerHeader(source.data(), size, ++cookie), nullptr);
    REQUIRE(
        pair.until([&] { return !pair.from_a.frames.empty() && pair.from_a.frames.back().header.cookie == cookie; }));
    const FrameHeader offer = pair.from_a.frames.back().header;
    CHECK(offer.length == size);
    CHECK(offer.type == FrameType::kOffer);
    fetchSurely(pair, offer, destination.data(), cookie * 3);
    REQUIRE(destination.holds(source));
    REQUIRE(pair.until([&] { return !pair.from_b.released.empty() && pair.from_b.released.back() == cookie; }));
  }
  CHECK(pair.from_b.released.size() == 10);
}

TEST_CASE_TEMPLATE("nothing is released that the peer's process does not have", P, JHETCC_TRANSPORTS) {
  // What lies in sockets or rings may be lost with its path, and a goodbye over another one may be there first.
  P pair;
  if (isSharedMemory(*pair.a)) return;
  constexpr uint64_t kOffers = 6;
  const std::vector<uint8_t> source = pattern(500'000, 6);
  std::vector<Guarded> destinations(kOffers, Guarded(source.size()));
  for (uint64_t i = 0; i < kOffers; ++i) {
    pair.sendSurely(*pair.a, offerHeader(source.data(), source.size(), i), nullptr);
  }
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == kOffers; }));
  for (int i = 0; i < 100; ++i) pair.pollOnce();
  size_t taken = 0;
  for (uint64_t i = 0; i < kOffers; ++i) {
    taken += fetchAtB(pair, pair.from_a.frames[i].header, destinations[i].data(), i) ? 1 : 0;
  }
  for (int turn = 0; pair.from_b.released.size() < kOffers; ++turn) {
    REQUIRE(turn < 100'000);
    REQUIRE(pair.b->poll(pair.from_a).isOk());  // its requests go out
    for (int i = 0; i < 50; ++i) {
      REQUIRE(pair.a->poll(pair.from_b).isOk());
      pair.tick();
    }
    REQUIRE(pair.from_b.released.size() <= taken + pair.from_a.fetched.size());
  }
  for (const Guarded& destination : destinations) CHECK(destination.holds(source));
}

TEST_CASE_TEMPLATE("an offer may be fetched from inside a poll", P, JHETCC_TRANSPORTS) {
  P pair;
  const std::vector<uint8_t> source = pattern(200'003, 4);
  Guarded destination(source.size());
  bool done = false;
  pair.from_a.on_frame = [&](const ReceivedFrame& frame) {
    done = fetchAtB(pair, frame.header, destination.data(), 5);
  };
  pair.sendSurely(*pair.a, offerHeader(source.data(), source.size(), 1), nullptr);
  REQUIRE(pair.until([&] { return done || !pair.from_a.fetched.empty(); }));
  CHECK(destination.holds(source));
  REQUIRE(pair.until([&] { return pair.from_b.released == std::vector<uint64_t>{1}; }));
}

TEST_CASE_TEMPLATE("many offers at once, fetched in reverse, with frames between", P, JHETCC_TRANSPORTS) {
  P pair;
  constexpr uint64_t kOffers = 300;
  std::vector<std::vector<uint8_t>> sources;
  std::vector<Guarded> destinations;
  for (uint64_t i = 0; i < kOffers; ++i) {
    sources.push_back(pattern(17'000 + 37 * i, i));
    destinations.emplace_back(sources.back().size());
    pair.sendSurely(*pair.a, offerHeader(sources[i].data(), sources[i].size(), i), nullptr);
  }
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == kOffers; }));
  uint64_t at_once = 0;
  for (uint64_t i = kOffers; i-- > 0;) {
    if (fetchAtB(pair, pair.from_a.frames[i].header, destinations[i].data(), i)) ++at_once;
    pair.sendSurely(*pair.a, dataHeader(static_cast<uint32_t>(i), 8), sources[i].data());
  }
  REQUIRE(pair.until([&] { return pair.from_a.fetched.size() + at_once == kOffers; }));
  for (const auto& [token, status] : pair.from_a.fetched) REQUIRE(status.isOk());
  for (uint64_t i = 0; i < kOffers; ++i) REQUIRE(destinations[i].holds(sources[i]));
  REQUIRE(pair.until([&] { return pair.from_b.released.size() == kOffers; }));
  std::sort(pair.from_b.released.begin(), pair.from_b.released.end());
  for (uint64_t i = 0; i < kOffers; ++i) REQUIRE(pair.from_b.released[i] == i);
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 2 * kOffers; }));
}

TEST_CASE_TEMPLATE("after cancel the destination is left alone, at every stage", P, JHETCC_TRANSPORTS) {
  P pair;
  for (const int step : {0, 1, 2, 3, 5, 9, 17, 32, 33, 34, 35, 37, 41, 49}) {
    const int polls = step % 32;
    CAPTURE(step);
    const uint64_t cookie = 50 + static_cast<uint64_t>(step);
    const std::vector<uint8_t> source = pattern(step < 32 ? 6 * kMiB + 11 : kMiB + 11, 3);
    Guarded destination(source.size());
    const size_t frames = pair.from_a.frames.size();
    pair.sendSurely(*pair.a, offerHeader(source.data(), source.size(), cookie), nullptr);
    REQUIRE(pair.until([&] { return pair.from_a.frames.size() > frames; }));
    const size_t fetched = pair.from_a.fetched.size();
    bool done = fetchAtB(pair, pair.from_a.frames.back().header, destination.data(), 7);
    for (int i = 0; i < polls; ++i) pair.pollOnce();
    done = done || pair.from_a.fetched.size() > fetched;
    pair.b->cancel(7);
    if (!done) {
      const std::vector<uint8_t> then = destination.snapshot();
      checkUsable(pair, 1000 + cookie);
      CHECK(destination.snapshot() == then);
      CHECK(std::none_of(pair.from_a.fetched.begin() + static_cast<long>(fetched), pair.from_a.fetched.end(),
                         [](const auto& event) { return event.first == 7; }));
    }
    CHECK(destination.guardsIntact());
    pair.a->revoke(cookie);
  }
}

TEST_CASE_TEMPLATE("a revoked offer is refused to a later fetch", P, JHETCC_TRANSPORTS) {
  P pair;
  Pages source(3 * kMiB);  // longer than what may come unasked, and so before it is withdrawn
  std::vector<uint8_t> destination(3 * kMiB);
  pair.sendSurely(*pair.a, offerHeader(source.data(), destination.size(), 8), nullptr);
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 1; }));
  pair.a->revoke(8);
  source.forbid();
  REQUIRE(!fetchAtB(pair, pair.from_a.frames[0].header, destination.data(), 21));
  REQUIRE(pair.until([&] { return !pair.from_a.fetched.empty(); }));
  CHECK(pair.from_a.fetched[0].first == 21);
  CHECK(pair.from_a.fetched[0].second.code() == "offer_revoked");
  checkUsable(pair, 9);
  CHECK(pair.from_b.released.size() == 1);
}

TEST_CASE_TEMPLATE("revoked memory is not read any more, at every stage", P, JHETCC_TRANSPORTS) {
  P pair;
  for (const int step : {0, 1, 2, 3, 5, 9, 17, 32, 33, 34, 35, 37, 41, 49}) {
    const int polls = step % 32;
    CAPTURE(step);
    const uint64_t size = step < 32 ? 6 * kMiB + 13 : kMiB + 13;
    const std::vector<uint8_t> content = pattern(size, 77);
    const uint64_t cookie = 50 + static_cast<uint64_t>(step);
    Pages source(size);
    std::memcpy(source.data(), content.data(), size);
    Guarded destination(size);
    const size_t frames = pair.from_a.frames.size();
    const size_t released = pair.from_b.released.size();
    pair.sendSurely(*pair.a, offerHeader(source.data(), size, cookie), nullptr);
    REQUIRE(pair.until([&] { return pair.from_a.frames.size() > frames; }));
    const size_t fetched = pair.from_a.fetched.size();
    const bool done = fetchAtB(pair, pair.from_a.frames.back().header, destination.data(), 7);
    for (int i = 0; i < polls; ++i) pair.pollOnce();
    pair.a->revoke(cookie);
    source.forbid();
    const size_t released_by_then = pair.from_b.released.size();
    if (!done) {
      REQUIRE(pair.until([&] { return pair.from_a.fetched.size() > fetched; }));
      const Status& status = pair.from_a.fetched.back().second;
      if (status.isOk()) {
        CHECK(destination.holds(content));
      } else {
        CHECK(status.code() == "offer_revoked");
      }
    }
    CHECK(destination.guardsIntact());
    CHECK(released_by_then - released <= 1);
    checkUsable(pair, 1000 + cookie);
    CHECK(pair.from_b.released.size() == released_by_then + 1);
  }
}

TEST_CASE_TEMPLATE("lengths and addresses have 64 bits", P, JHETCC_TRANSPORTS) {
  P pair;
  const uint64_t length = (uint64_t{5} << 32) + 3;
  void* memory = mmap(nullptr, length, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  FrameHeader offer = offerHeader(memory, length, 0xFEDCBA9876543210ULL);
  pair.sendSurely(*pair.a, offer, nullptr);
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 1; }));
  if (pair.a->transportName() == std::string("rail")) offer.address = pair.from_a.frames[0].header.address;
  CHECK(std::memcmp(&pair.from_a.frames[0].header, &offer, sizeof offer) == 0);
  pair.a->revoke(offer.cookie);
  checkUsable(pair, 1);
  pair.a.reset();
  munmap(memory, length);
}

TEST_CASE_TEMPLATE("offers that nobody fetches hold up none that is fetched", P, JHETCC_TRANSPORTS) {
  P pair;
  constexpr uint64_t kOffers = 40;
  const std::vector<uint8_t> source = pattern(4 * kMiB, 9);
  for (uint64_t i = 0; i < kOffers; ++i) {
    pair.sendSurely(*pair.a, offerHeader(source.data(), source.size() - i, 100 + i), nullptr);
  }
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == kOffers; }));
  for (int i = 0; i < 1000; ++i) pair.pollOnce();  // whatever comes unasked has come
  for (uint64_t i = kOffers; i-- > kOffers - 3;) {
    Guarded destination(source.size() - i);
    fetchSurely(pair, pair.from_a.frames[i].header, destination.data(), i);
    CHECK(destination.guardsIntact());
    CHECK(std::memcmp(destination.data(), source.data(), source.size() - i) == 0);
  }
}

TEST_CASE_TEMPLATE("a fetch under way does not hold up small frames", P, JHETCC_TRANSPORTS) {
  P pair;
  const std::vector<uint8_t> source = pattern(8 * kMiB, 3);
  Guarded destination(source.size());
  pair.sendSurely(*pair.a, offerHeader(source.data(), source.size(), 1), nullptr);
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 1; }));
  const bool done = fetchAtB(pair, pair.from_a.frames[0].header, destination.data(), 2);
  uint32_t sent = 0;
  REQUIRE(pair.until([&] {
    const Result<bool> taken = pair.a->send(dataHeader(sent, 64), source.data());
    REQUIRE(taken.isOk());
    if (taken.value()) ++sent;
    return done || !pair.from_a.fetched.empty();
  }));
  REQUIRE(sent > 0);
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 1 + sent; }));
  CHECK(destination.holds(source));
}

}  // namespace jhetcc::transport::conformance
