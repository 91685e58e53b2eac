// SPDX-License-Identifier: Apache-2.0
// Sleeping on the wait descriptor: two threads, one endpoint each; no wake-up may be lost. A lost one is a 10 s
// timeout.
#include <poll.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "conformance/pairs.h"

namespace jhetcc::transport::conformance {

namespace {

constexpr int kLostAfterMs = 10'000;

/// One end with its thread's loop: poll, and sleep whenever nothing happened.
class Sleeper {
 public:
  explicit Sleeper(Endpoint& endpoint) : endpoint_(endpoint) {}
  /// False: the endpoint broke, or nothing woke us.
  bool until(const std::function<bool()>& done) {
    while (!done()) {
      if (!endpoint_.poll(events).isOk()) return false;
      if (done()) return true;
      if (!endpoint_.prepareSleep(true)) continue;
      pollfd descriptor{endpoint_.waitDescriptor(), POLLIN, 0};
      if (endpoint_.wantsWrite()) descriptor.events |= POLLOUT;
      ++sleeps;
      if (::poll(&descriptor, 1, kLostAfterMs) == 0) return false;
    }
    return true;
  }
  bool send(const FrameHeader& header, const void* payload) {
    bool is_broken = false;
    const bool sent = until([&] {
      const Result<bool> taken = endpoint_.send(header, payload);
      is_broken = !taken.isOk();
      return is_broken || taken.value();
    });
    return sent && !is_broken;
  }
  Recorder events;
  int sleeps = 0;

 private:
  Endpoint& endpoint_;
};

}  // namespace

TEST_CASE_TEMPLATE("ping-pong between sleepers loses no wake-up", P, JHETCC_SLEEPING_TRANSPORTS) {
  P pair;
  constexpr uint32_t kRounds = 2000;
  std::atomic<bool> echoed{false};
  std::thread echo([&] {
    Sleeper sleeper(*pair.b);
    uint32_t seen = 0;
    bool sent = true;
    sleeper.events.on_frame = [&](const ReceivedFrame&) { ++seen; };
    for (uint32_t i = 0; i < kRounds && sent; ++i) {
      sent = sleeper.until([&] { return seen > i; }) && sleeper.send(dataHeader(i, 0), nullptr);
    }
    while (sent && pair.b->wantsWrite()) sent = pair.b->poll(sleeper.events).isOk();
    echoed = sent;
  });
  Sleeper sleeper(*pair.a);
  bool sent = true;
  for (uint32_t i = 0; i < kRounds && sent; ++i) {
    sent = sleeper.send(dataHeader(i, 0), nullptr) && sleeper.until([&] { return sleeper.events.frames.size() > i; });
  }
  echo.join();
  CHECK(sent);
  CHECK(echoed);
  CHECK(sleeper.sleeps > 0);
}

TEST_CASE_TEMPLATE("a sleeper that waits for room is woken", P, JHETCC_SLEEPING_TRANSPORTS) {
  P pair;
  constexpr uint32_t kFrames = 6000;
  const std::vector<uint8_t> payload = pattern(5000, 2);
  std::atomic<bool> received{false};
  std::thread reader([&] {
    Sleeper sleeper(*pair.b);
    uint32_t seen = 0;
    sleeper.events.on_frame = [&](const ReceivedFrame& frame) {
      if (frame.header.index == seen && frame.payload == payload) ++seen;
    };
    received = sleeper.until([&] {
      sleeper.events.frames.clear();
      return seen == kFrames;
    });
  });
  Sleeper sleeper(*pair.a);
  bool sent = true;
  for (uint32_t i = 0; i < kFrames && sent; ++i) sent = sleeper.send(dataHeader(i, payload.size()), payload.data());
  // Output that is queued still has to be pushed out by us.
  sent = sent && sleeper.until([&] { return !pair.a->wantsWrite(); });
  reader.join();
  CHECK(sent);
  CHECK(received);
}

namespace {

const std::vector<uint8_t>& some() {
  static const std::vector<uint8_t> payload = pattern(5000, 3);
  return payload;
}

bool sendSome(Endpoint& endpoint, uint32_t index) {
  return endpoint.send(dataHeader(index, some().size()), some().data()).value();
}

/// How many it takes.
uint32_t fill(Endpoint& endpoint) {
  uint32_t sent = 0;
  while (sendSome(endpoint, sent)) ++sent;
  return sent;
}

/// Takes what is on its way here, and leaves what waits at the other end.
void drain(Endpoint& endpoint) {
  Recorder events;
  for (int quiet = 0; quiet < 50; ++quiet) {
    const size_t before = events.frames.size();
    REQUIRE(endpoint.poll(events).isOk());
    if (events.frames.size() > before) quiet = 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool isWoken(Endpoint& endpoint) {
  pollfd descriptor{endpoint.waitDescriptor(), POLLIN, 0};
  if (endpoint.wantsWrite()) descriptor.events |= POLLOUT;
  return ::poll(&descriptor, 1, kLostAfterMs) > 0;
}

}  // namespace

TEST_CASE_TEMPLATE("who was refused room does not sleep while there is some", P, JHETCC_SLEEPING_TRANSPORTS) {
  P pair;
  const uint32_t sent = fill(*pair.a);
  drain(*pair.b);
  CHECK((!pair.a->prepareSleep(true) || isWoken(*pair.a)));
  Recorder own;
  REQUIRE(pair.a->poll(own).isOk());
  CHECK(sendSome(*pair.a, sent));
}

TEST_CASE_TEMPLATE("who was refused room is woken for it, though less found some since", P,
                   JHETCC_SLEEPING_TRANSPORTS) {
  P pair;
  const uint32_t sent = fill(*pair.a);
  (void)pair.a->send(dataHeader(sent, 0), nullptr).value();
  Recorder own;
  while (!pair.a->prepareSleep(true)) REQUIRE(pair.a->poll(own).isOk());
  std::thread reader([&] { drain(*pair.b); });
  CHECK(isWoken(*pair.a));
  reader.join();
}

TEST_CASE_TEMPLATE("what is urgent wakes a peer that left all else lying", P, JHETCC_SLEEPING_TRANSPORTS) {
  P pair;
  REQUIRE(pair.b->prepareSleep(false));
  const uint32_t sent = fill(*pair.a);
  FrameHeader urgent = dataHeader(sent, 5000);
  urgent.type = FrameType::kControl;
  (void)pair.a->send(urgent, some().data()).value();
  CHECK(isWoken(*pair.b));
}

TEST_CASE_TEMPLATE("sleepers fetch and release", P, JHETCC_SLEEPING_TRANSPORTS) {
  P pair;
  constexpr uint64_t kOffers = 60;
  std::vector<std::vector<uint8_t>> sources;
  for (uint64_t i = 0; i < kOffers; ++i) sources.push_back(pattern(20'000 + i * 40'009, i));
  std::atomic<bool> fetched{false};
  std::thread reader([&] {
    Sleeper sleeper(*pair.b);
    bool good = true;
    for (uint64_t i = 0; i < kOffers && good; ++i) {
      good = sleeper.until([&] { return sleeper.events.frames.size() > i; });
      if (!good) break;
      std::vector<uint8_t> destination(sources[i].size());
      const Result<bool> done = pair.b->fetch(sleeper.events.frames[i].header, destination.data(), i);
      good = done.isOk();
      if (good && !done.value()) {
        good = sleeper.until([&] { return !sleeper.events.fetched.empty(); });
        good = good && sleeper.events.fetched[0].first == i && sleeper.events.fetched[0].second.isOk();
        sleeper.events.fetched.clear();
      }
      good = good && destination == sources[i];
    }
    // The last release may still be queued here; the owner says when it has it.
    fetched = good && sleeper.until([&] { return sleeper.events.frames.size() > kOffers; });
  });
  Sleeper sleeper(*pair.a);
  bool sent = true;
  for (uint64_t i = 0; i < kOffers && sent; ++i) {
    sent = sleeper.send(offerHeader(sources[i].data(), sources[i].size(), i), nullptr);
  }
  sent = sent && sleeper.until([&] { return sleeper.events.released.size() == kOffers; });
  sent = sent && sleeper.send(dataHeader(0, 0), nullptr) && sleeper.until([&] { return !pair.a->wantsWrite(); });
  reader.join();
  CHECK(sent);
  CHECK(fetched);
}

TEST_CASE_TEMPLATE("a sleeper learns that its peer is gone", P, JHETCC_SLEEPING_TRANSPORTS) {
  P pair;
  std::atomic<bool> told{false};
  std::thread waiter([&] {
    Sleeper sleeper(*pair.b);
    told = !sleeper.until([] { return false; }) && !pair.b->poll(sleeper.events).isOk();
  });
  pair.a.reset();
  waiter.join();
  CHECK(told);
}

TEST_CASE("within a process, revoke waits for the copy under way") {
  ShmLocalPair pair;
  constexpr uint64_t kSize = 900'000;
  constexpr uint64_t kRounds = 200;
  std::atomic<uint64_t> offered{0};
  std::vector<uint8_t> source(kSize, 1);
  std::vector<uint8_t> destination(kSize);
  std::atomic<bool> stop{false};
  uint64_t torn = 0;
  std::thread reader([&] {
    Recorder events;
    bool fetch_next = false;
    events.on_frame = [&](const ReceivedFrame&) { fetch_next = true; };
    while (!stop) {
      if (!pair.b->poll(events).isOk()) return;
      if (!fetch_next) continue;
      fetch_next = false;
      const Result<bool> done = pair.b->fetch(events.frames.back().header, destination.data(), 1);
      if (!done.isOk() || !done.value()) continue;
      if (destination[0] != destination[kSize - 1]) ++torn;
    }
  });
  Recorder events;
  for (uint64_t i = 1; i <= kRounds; ++i) {
    if (!pair.a->send(offerHeader(source.data(), kSize, i), nullptr).value()) break;
    offered = i;
    for (uint64_t polls = 0; polls < i * 20; ++polls) (void)pair.a->poll(events).isOk();
    pair.a->revoke(i);
    std::fill(source.begin(), source.end(), static_cast<uint8_t>(i));  // a read under way would be a race
    (void)pair.a->poll(events).isOk();
  }
  stop = true;
  reader.join();
  CHECK(offered == kRounds);
  CHECK(torn == 0);
}

}  // namespace jhetcc::transport::conformance
