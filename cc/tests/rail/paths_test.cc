// SPDX-License-Identifier: Apache-2.0
// Which paths a bundle uses, how much, and when it says that the peer is gone.
#include <doctest/doctest.h>

#include "rail/wire.h"
#include "talk.h"

namespace jhetcc::rail::testing {

namespace {

std::vector<PathStatus> pathsOf(Talk& talk, int side = 0) { return talk.sides[side].bundle->paths(); }

/// Sends payloads from side 0 to side 1 for so long; bytes that each path carried.
std::vector<double> carry(Talk& talk, int64_t for_ns) {
  const std::vector<PathStatus> before = pathsOf(talk);
  const int64_t end_ns = talk.now() + for_ns;
  while (talk.now() < end_ns) {
    talk.say(20);
    REQUIRE_MESSAGE(talk.run(10'000 * kMs), talk.story());
  }
  std::vector<double> bytes;
  for (size_t k = 0; k < before.size(); ++k) {
    bytes.push_back(static_cast<double>(pathsOf(talk)[k].sent_bytes - before[k].sent_bytes));
  }
  return bytes;
}

}  // namespace

TEST_CASE("shares follow what the paths can carry") {
  Talk talk(1, 3, slowLinks());
  talk.payload_bytes_max = 2'000'000;
  talk.setBandwidth(1, 50e6);
  talk.setBandwidth(2, 100e6);
  carry(talk, 300 * kMs);
  const std::vector<double> bytes = carry(talk, 1000 * kMs);
  CHECK(bytes[1] / bytes[0] > 1.6);
  CHECK(bytes[1] / bytes[0] < 2.4);
  CHECK(bytes[2] / bytes[0] > 3.2);
  CHECK(bytes[2] / bytes[0] < 4.8);
  // One loses nine tenths of its rate, and later has it back.
  talk.setBandwidth(2, 10e6);
  carry(talk, 400 * kMs);
  const std::vector<double> slow = carry(talk, 1000 * kMs);
  CHECK(slow[2] / slow[0] < 0.6);
  talk.setBandwidth(2, 100e6);
  carry(talk, 400 * kMs);
  const std::vector<double> again = carry(talk, 1000 * kMs);
  CHECK(again[2] / again[0] > 3.0);
  for (const PathStatus& path : pathsOf(talk)) CHECK(path.losses == 0);
}

TEST_CASE("a link that was slow and is well again is found out also where little is sent") {
  BundleOptions options = quick();
  options.stall_ns = 1000 * kMs;  // a single stripe takes 64 ms on the slow link
  Talk talk(8, 3, slowLinks(), options);
  talk.payload_bytes_max = 60'000;
  carry(talk, 300 * kMs);
  talk.setBandwidth(1, 0.5e6);
  carry(talk, 1000 * kMs);
  talk.setBandwidth(1, 25e6);
  carry(talk, 2500 * kMs);
  const std::vector<double> again = carry(talk, 500 * kMs);
  CHECK(again[1] > 0.2 * (again[0] + again[1] + again[2]));
  CHECK(pathsOf(talk)[1].losses == 0);
}

TEST_CASE("a path that crawls is left with what it has, and takes a small part of the time from then on") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    BundleOptions options = quick();
    options.stall_ns = 60'000 * kMs;  // it is not silent: on a real one, a little is answered all the time
    Talk talk(seed, 2, slowLinks(), options);
    talk.payload_bytes_max = 2'000'000;
    carry(talk, 300 * kMs);
    talk.setBandwidth(1, 25e3);  // a stripe takes seconds there
    const int64_t begun_ns = talk.now();
    carry(talk, 1);  // what is under way then, and twenty payloads more, each way
    CHECK(talk.now() - begun_ns < 4000 * kMs);
    CHECK(pathsOf(talk)[1].losses + pathsOf(talk, 1)[1].losses > 0);
    CHECK(pathsOf(talk)[0].losses == 0);
    talk.at(talk.now() + 1, [&talk] { talk.reopen(1); });
    // It is back, and known to be slow.
    const std::vector<double> bytes = carry(talk, 5000 * kMs);
    CHECK(bytes[0] > 0.7 * 25e6 * 5 / 2);
    CHECK_MESSAGE(talk.failures.empty(), talk.failures);
  }
}

namespace {

class PlayedClock final : public Clock {
 public:
  int64_t nowNs() const override { return now_ns; }
  int64_t now_ns = 1;
};

/// Takes everything, delivers nothing, and answers what the test says.
class Played final : public transport::Endpoint {
 public:
  Result<bool> send(const transport::FrameHeader& header, const void*) override {
    stripes += header.type == transport::FrameType::kOffer;
    is_behind = true;
    return true;
  }
  Result<bool> fetch(const transport::FrameHeader&, void*, uint64_t) override { return false; }
  void cancel(uint64_t) override {}
  void revoke(uint64_t) override {}
  Status poll(transport::EventSink&) override {
    is_behind = false;
    return Status::ok();
  }
  int waitDescriptor() const override { return -1; }
  bool prepareSleep(bool) override {
    is_behind = false;  // as what flushes once more
    return true;
  }
  bool wantsWrite() const override { return is_behind; }
  int64_t unansweredNs(int64_t) override { return 1; }  // there is always something under way
  transport::Answered answered() override { return now; }
  const char* transportName() const override { return "played"; }
  const std::string& description() const override { return description_; }
  transport::Answered now;
  int stripes = 0;
  bool is_behind = false;

 private:
  std::string description_ = "played";
};

struct TwoPlayed {
  TwoPlayed() {
    for (uint16_t path = 0; path < 2; ++path) {
      auto end = std::make_unique<Played>();
      ends.push_back(end.get());
      bundle.addPath({path, 0, "a", "b"}, std::move(end));
    }
  }
  PlayedClock clock;
  Bundle bundle{"rank 0 -> rank 1", clock, quick()};
  std::vector<Played*> ends;
  std::vector<uint8_t> payload = std::vector<uint8_t>(4'000'000);
};

transport::FrameHeader offerOf(const std::vector<uint8_t>& payload) {
  transport::FrameHeader offer;
  offer.type = transport::FrameType::kOffer;
  offer.length = payload.size();
  offer.address = reinterpret_cast<uint64_t>(payload.data());
  offer.cookie = 1;
  return offer;
}

}  // namespace

TEST_CASE("nobody sleeps while a path would take more, if it were polled") {
  TwoPlayed played;
  Bundle& bundle = played.bundle;
  std::vector<Played*>& ends = played.ends;
  REQUIRE(bundle.send(offerOf(played.payload), nullptr).value());
  const auto given = [&] { return ends[0]->stripes + ends[1]->stripes; };
  Quiet sink;
  int polls = 0;
  do {
    REQUIRE(++polls < 1000);
    REQUIRE(bundle.poll(sink).isOk());
  } while (!bundle.prepareSleep(true));
  const int before = given();
  CHECK(before > 4);
  for (int more = 0; more < 10; ++more) REQUIRE(bundle.poll(sink).isOk());
  CHECK(given() == before);
}

TEST_CASE("one slow measurement, and nothing after it, is no path that crawls; half a second of them is") {
  TwoPlayed played;
  Bundle& bundle = played.bundle;
  std::vector<Played*>& ends = played.ends;
  Quiet sink;
  // For so long, the second path carries so many bytes a millisecond in which it is busy.
  const auto live = [&](int64_t for_ms, uint64_t bytes, int64_t busy_ns) {
    for (int64_t k = 0; k < for_ms && bundle.paths()[1].losses == 0; ++k) {
      played.clock.now_ns += kMs;
      ends[0]->now.bytes += 100'000;
      ends[0]->now.busy_ns += kMs;
      ends[1]->now.bytes += bytes;
      ends[1]->now.busy_ns += busy_ns;
      REQUIRE(bundle.poll(sink).isOk());
    }
  };
  live(100, 100'000, kMs);
  REQUIRE(bundle.send(offerOf(played.payload), nullptr).value());
  live(100, 100'000, kMs);
  for (int stop = 0; stop < 3; ++stop) {
    live(40, 1'000, kMs);  // the peer's process is about to be stopped
    live(1000, 0, 0);      // its window is shut
    live(40, 100'000, kMs);
  }
  CHECK(bundle.paths()[1].losses == 0);
  live(450, 1'000, kMs);
  CHECK(bundle.paths()[1].losses == 0);
  live(200, 1'000, kMs);
  CHECK(bundle.paths()[1].losses == 1);
  CHECK(bundle.paths()[1].last_event.find("carries 1000 kB/s") != std::string::npos);
}

TEST_CASE("what comes late is not lost: no path is left for a delay, or for a peer that does not run") {
  transport::sim::Options options;
  options.late_probability = 0.05;
  options.late_ns = 4 * kMs;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    Talk talk(seed, 3, options);
    talk.at(static_cast<int64_t>(talk.draw(3 * kMs)), [&talk] { talk.network.stop(1); });
    talk.at(300 * kMs, [&talk] { talk.network.resume(1); });
    talk.say(200);
    REQUIRE_MESSAGE(talk.run(3000 * kMs), talk.story());
    CHECK_MESSAGE(talk.failures.empty(), talk.failures);
    for (int side = 0; side < 2; ++side) {
      for (const PathStatus& path : pathsOf(talk, side)) CHECK(path.losses == 0);
    }
  }
}

TEST_CASE("a peer that closes all its paths is gone at once") {
  Talk talk(3, 3);
  talk.say(5);
  REQUIRE(talk.run(100 * kMs));
  const int64_t begin = talk.now();
  talk.sides[1].bundle.reset();
  Quiet sink;
  Status status;
  while (status.isOk() && talk.now() < begin + 100 * kMs) {
    talk.network.step();
    status = talk.sides[0].bundle->poll(sink);
  }
  CHECK(status.code() == "peer_closed");
  CHECK(status.message().find("path 2 lost") != std::string::npos);
  CHECK(talk.now() - begin < 10 * kMs);
  CHECK(!talk.sides[0].bundle->send(transport::FrameHeader{}, nullptr).isOk());
}

TEST_CASE("a goodbye does not overtake, by another path, that payloads were taken") {
  transport::sim::Options options;
  options.late_probability = 0.1;
  options.late_ns = 3 * kMs;
  struct Ends : Quiet {
    void onFrame(const transport::FrameHeader& header, const void*) override {
      goodbyes += header.type == transport::FrameType::kGoodbye;
    }
    void onReleased(uint64_t) override { ++released; }
    int goodbyes = 0, released = 0;
  };
  struct Takes : Quiet {
    void onFrame(const transport::FrameHeader& header, const void*) override { offer = header; }
    void onFetched(uint64_t, Status) override { ++fetched; }
    transport::FrameHeader offer;
    int fetched = 0;
  };
  const std::vector<uint8_t> source(300'000, 7);
  for (uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    BundleOptions patient = quick();
    patient.stall_ns = 1'000 * kMs;  // no path is to be lost
    Talk talk(seed, 3, options, patient);
    std::vector<uint8_t> target(source.size());
    Ends ends;
    Takes takes;
    transport::FrameHeader offer;
    offer.type = transport::FrameType::kOffer;
    offer.address = reinterpret_cast<uint64_t>(source.data());
    offer.length = source.size();
    offer.cookie = 5;
    REQUIRE(talk.sides[0].bundle->send(offer, nullptr).value());
    bool is_fetched = false, has_left = false;
    const int64_t end_ns = talk.now() + 200 * kMs;
    while (ends.goodbyes == 0 && talk.now() < end_ns) {
      talk.network.runUntil(talk.now() + 5'000);
      REQUIRE(talk.sides[0].bundle->poll(ends).isOk());
      REQUIRE(talk.sides[1].bundle->poll(takes).isOk());
      if (!is_fetched && takes.offer.type == transport::FrameType::kOffer) {
        is_fetched = true;
        takes.fetched += talk.sides[1].bundle->fetch(takes.offer, target.data(), 1).value();
      }
      if (!has_left && takes.fetched > 0) {
        transport::FrameHeader goodbye;
        goodbye.type = transport::FrameType::kGoodbye;
        has_left = talk.sides[1].bundle->send(goodbye, nullptr).value();
      }
    }
    CHECK(ends.goodbyes == 1);
    CHECK(ends.released == 1);
    CHECK(target == source);
  }
}

TEST_CASE("without any path it waits, so long and no longer; a refusal ends the wait") {
  for (const bool is_refused : {false, true}) {
    CAPTURE(is_refused);
    Talk talk(4, 2);
    talk.cut(0);
    talk.cut(1);
    const int64_t begin = talk.now();
    Quiet sink;
    Status status;
    while (status.isOk() && talk.now() < begin + 1000 * kMs) {
      talk.network.runUntil(talk.now() + kMs);
      status = talk.sides[0].bundle->poll(sink);
      if (is_refused && talk.now() > begin + 50 * kMs) {
        talk.sides[0].bundle->failPath(1, Status(Kind::kDisconnected, Scope::kEndpoint, "refused", "nobody listens"));
      }
    }
    CHECK(status.code() == (is_refused ? "refused" : "no_path"));
    const int64_t took = talk.now() - begin;
    CHECK(took > (is_refused ? 50 : 390) * kMs);
    CHECK(took < (is_refused ? 60 : 420) * kMs);
  }
}

TEST_CASE("a path that flaps is trusted later each time") {
  BundleOptions options = quick();
  options.settle_ns = kMs;
  Talk talk(5, 2, {}, options);
  for (int round = 0; round < 10; ++round) {
    CAPTURE(round);
    talk.cut(1);
    const int64_t lost = talk.now();
    talk.say(1);
    while (!talk.isLost(1, 0) || !talk.isLost(1, 1)) {
      talk.say(1);
      talk.run(kMs);
      REQUIRE(talk.now() < lost + 1000 * kMs);
    }
    talk.reopen(1);
    const int64_t opened = talk.now();
    while (pathsOf(talk)[1].state != PathState::kHealthy) {
      talk.say(1);
      talk.run(kMs);
      talk.network.runUntil(talk.now() + kMs / 4);
      REQUIRE(talk.now() < opened + 2'000 * kMs);
    }
    CHECK(pathsOf(talk)[1].generation == static_cast<uint32_t>(round) + 1);
    CHECK(talk.now() - opened >= kMs << round);
    CHECK(talk.now() - opened < (kMs << round) + 80 * kMs);
  }
}

TEST_CASE("a path that is away for 5 s, ten times, carries again at once each time, as long as it stays 10 s between") {
  Talk talk(9, 2, slowLinks(), BundleOptions{});  // as in a job
  const auto rest = [&talk](int64_t for_ns) { talk.network.runUntil(talk.now() + for_ns); };
  for (uint32_t round = 1; round <= 10; ++round) {
    CAPTURE(round);
    rest(11'000 * kMs);
    talk.cut(1);
    const int64_t cut_ns = talk.now();
    while (!talk.isLost(1, 0) || !talk.isLost(1, 1)) {
      carry(talk, 1);
      REQUIRE(talk.now() < cut_ns + 5'000 * kMs);
    }
    rest(5'000 * kMs);
    talk.reopen(1);
    const int64_t opened_ns = talk.now();
    while (carry(talk, 20 * kMs)[1] == 0) REQUIRE(talk.now() < opened_ns + 10'000 * kMs);
    CHECK(talk.now() - opened_ns < 1'000 * kMs);
    CHECK(pathsOf(talk)[1].losses == round);
  }
  CHECK(pathsOf(talk)[0].losses == 0);
  CHECK_MESSAGE(talk.failures.empty(), talk.failures);
}

TEST_CASE("paths of a higher tier wait until none of a lower one is left") {
  transport::sim::Network network(6);
  Bundle a("0 -> 1", network.clock(), quick()), b("1 -> 0", network.clock(), quick());
  for (uint16_t path = 0; path < 4; ++path) {
    auto ends = network.connect(0, 1);
    a.addPath({path, path / 2, "", ""}, std::move(ends.first));
    b.addPath({path, path / 2, "", ""}, std::move(ends.second));
  }
  struct Fetcher : Quiet {
    Bundle* bundle = nullptr;
    std::vector<uint8_t> place = std::vector<uint8_t>(200'000);
    void onFrame(const transport::FrameHeader& header, const void*) override {
      CHECK(bundle->fetch(header, place.data(), 1).isOk());
    }
  } fetcher;
  fetcher.bundle = &b;
  struct Released : Quiet {
    uint64_t released = 0;
    void onReleased(uint64_t cookie) override { released = cookie; }
  } released;
  const std::vector<uint8_t> payload(200'000, 7);
  const auto sendOne = [&](uint64_t cookie) {
    transport::FrameHeader offer;
    offer.type = transport::FrameType::kOffer;
    offer.length = payload.size();
    offer.address = reinterpret_cast<uint64_t>(payload.data());
    offer.cookie = cookie;
    REQUIRE(a.send(offer, nullptr).value());
    const int64_t end = network.clock().nowNs() + 500 * kMs;
    while (released.released < cookie && network.clock().nowNs() < end) {
      network.runUntil(network.clock().nowNs() + 100'000);
      REQUIRE(a.poll(released).isOk());
      REQUIRE(b.poll(fetcher).isOk());
    }
    REQUIRE(released.released == cookie);
  };
  sendOne(1);
  CHECK(a.paths()[0].sent_bytes > 0);
  CHECK(a.paths()[1].sent_bytes > 0);
  network.cut(0, 1, 0);
  sendOne(2);
  CHECK(a.paths()[2].sent_bytes + a.paths()[3].sent_bytes == 0);
  network.cut(0, 1, 1);
  sendOne(3);
  CHECK(a.paths()[2].sent_bytes > 0);
  CHECK(a.paths()[3].sent_bytes > 0);
}

TEST_CASE("what cannot be costs the path, not the peer") {
  using transport::FrameHeader;
  using transport::FrameType;
  const auto rail = [](uint8_t what) {
    FrameHeader header;
    header.type = FrameType::kRail;
    header.flags = what;
    return header;
  };
  std::vector<FrameHeader> bad;
  bad.push_back(rail(99));
  bad.push_back(rail(kAcknowledge));
  bad.back().cookie = 1000;  // never sent
  bad.push_back(rail(kMessage));
  bad.back().sequence = 7;  // out of order
  bad.push_back(rail(kMessage));
  bad.back().sequence = 1;  // without the header it wraps
  bad.push_back(rail(kLost));
  bad.back().sequence = 1;
  bad.back().length = 3;
  bad.push_back(rail(kWhole));
  bad.back().sequence = 1;
  bad.back().length = 3;
  bad.push_back(rail(kOpen));
  bad.push_back({});
  bad.back().type = FrameType::kData;  // bare
  bad.push_back({});
  bad.back().type = FrameType::kOffer;
  bad.back().communicator = 1'000'000;
  bad.back().cookie = 1;
  bad.push_back({});
  bad.back().type = FrameType::kOffer;  // the number of its stripe is none
  bad.back().communicator = 1;
  const std::vector<uint8_t> payload(64);
  for (size_t k = 0; k < bad.size(); ++k) {
    CAPTURE(k);
    transport::sim::Network network(7);
    Bundle bundle("1 -> 0", network.clock(), quick());
    auto good = network.connect(0, 1), evil = network.connect(0, 1);
    bundle.addPath({0, 0, "", ""}, std::move(good.second));
    bundle.addPath({1, 0, "", ""}, std::move(evil.second));
    REQUIRE(evil.first->send(bad[k], payload.data()).value());
    Quiet sink;
    for (int round = 0; round < 5; ++round) {
      network.runUntil(network.clock().nowNs() + kMs);
      REQUIRE(bundle.poll(sink).isOk());
    }
    CHECK(bundle.paths()[1].state == PathState::kLost);
    CHECK(bundle.paths()[1].last_event.find("the peer is damaged") != std::string::npos);
    CHECK(bundle.paths()[0].state == PathState::kHealthy);
  }
}

}  // namespace jhetcc::rail::testing
