// SPDX-License-Identifier: Apache-2.0
// Paths that are not answered, and NICs that the system takes away: when that ends a path, and when the peer.
#include <doctest/doctest.h>

#include <algorithm>

#include "talk.h"

namespace jhetcc::rail::testing {

namespace {

const Status kNicLost(Kind::kDisconnected, Scope::kEndpoint, "nic_lost", "the system says: eth0 is down");

uint32_t losses(Talk& talk, int side) {
  uint32_t count = 0;
  for (const PathStatus& path : talk.sides[side].bundle->paths()) count += path.losses;
  return count;
}

/// Both sides look every millisecond, for so long or until side 0 breaks.
Status live(Talk& talk, int64_t for_ns, bool both = true) {
  Quiet sink;
  Status status;
  for (const int64_t end_ns = talk.now() + for_ns; status.isOk() && talk.now() < end_ns;) {
    talk.network.runUntil(talk.now() + kMs);
    status = talk.sides[0].bundle->poll(sink);
    if (both) REQUIRE(talk.sides[1].bundle->poll(sink).isOk());
  }
  return status;
}

void sayOne(Talk& talk, int side = 0) {
  transport::FrameHeader header;
  header.type = transport::FrameType::kData;
  REQUIRE(talk.sides[side].bundle->send(header, nullptr).value());
}

bool names(const Status& status, const std::string& words) { return status.message().find(words) != std::string::npos; }

}  // namespace

TEST_CASE("who looks late has to ask before it leaves a path: an idle one may be silent, too") {
  Talk talk(1, 2);
  talk.hold(0);
  talk.hold(1);
  sayOne(talk);
  talk.network.runUntil(talk.now() + 100 * kMs);  // this side does not run
  REQUIRE(live(talk, 50 * kMs).isOk());
  CHECK(losses(talk, 0) == 0);
  talk.release(0);
  talk.release(1);
  REQUIRE(live(talk, 50 * kMs).isOk());
  CHECK(losses(talk, 0) == 0);
  talk.hold(0);
  sayOne(talk);
  REQUIRE(live(talk, 60 * kMs).isOk());
  CHECK(losses(talk, 0) == 1);
}

TEST_CASE("a host that is silent on every path is lost, so long after its last answer; one that answers again is not") {
  for (const bool comes_back : {false, true}) {
    CAPTURE(comes_back);
    Talk talk(2, 3);
    for (int path = 0; path < 3; ++path) talk.hold(path);
    sayOne(talk);
    const int64_t begin = talk.now();
    if (comes_back) {
      talk.at(begin + 350 * kMs, [&talk] {
        for (int path = 0; path < 3; ++path) talk.release(path);
      });
    }
    const Status status = live(talk, 1000 * kMs);
    if (comes_back) {
      CHECK(status.isOk());
      continue;
    }
    CHECK(status.code() == "no_path");
    CHECK(talk.now() - begin > 390 * kMs);
    CHECK(talk.now() - begin < 430 * kMs);
    for (int path = 0; path < 3; ++path) {
      CHECK_MESSAGE(names(status, "path " + std::to_string(path) + " no answer for "), status.message());
    }
  }
}

TEST_CASE("who did not run for long asks before it gives its peer up") {
  Talk talk(7, 2);
  talk.hold(0);
  talk.hold(1);
  sayOne(talk);
  talk.network.runUntil(talk.now() + 5000 * kMs);
  REQUIRE(live(talk, 200 * kMs).isOk());
  talk.release(0);
  talk.release(1);
  CHECK(live(talk, 1000 * kMs).isOk());
}

TEST_CASE("a peer whose process does not run is not lost, as long as its host answers") {
  Talk talk(3, 2);
  talk.network.stop(1);
  sayOne(talk);
  CHECK(live(talk, 2000 * kMs, false).isOk());
  CHECK(losses(talk, 0) == 0);
}

TEST_CASE("who only waits finds out, too") {
  Talk talk(4, 2);
  for (int path = 0; path < 2; ++path) talk.hold(path);
  const int64_t begin = talk.now();
  talk.sides[0].bundle->prepareSleep(false);
  CHECK(live(talk, 3000 * kMs).isOk());
  talk.sides[0].bundle->prepareSleep(true);
  CHECK(live(talk, 3000 * kMs).code() == "no_path");
  CHECK(talk.now() - begin < 3000 * kMs + 1500 * kMs);
}

TEST_CASE("the last NIC's path is kept, but counts as none from when the system says that it is gone") {
  for (const bool comes_back : {false, true}) {
    CAPTURE(comes_back);
    Talk talk(5, 2);
    Bundle& bundle = *talk.sides[0].bundle;
    REQUIRE(live(talk, 10 * kMs).isOk());
    bundle.failPath(0, kNicLost);
    bundle.failPath(1, kNicLost);
    CHECK(losses(talk, 0) == 1);
    CHECK(bundle.needsRelay());
    const int64_t begin = talk.now();
    if (comes_back) {
      REQUIRE(live(talk, 300 * kMs).isOk());
      bundle.restorePath(1);
      CHECK(!bundle.needsRelay());
      sayOne(talk);
      CHECK(live(talk, 2000 * kMs).isOk());
      CHECK(losses(talk, 0) == 1);
      continue;
    }
    const Status status = live(talk, 2000 * kMs);
    CHECK(status.code() == "no_path");
    CHECK(talk.now() - begin > 390 * kMs);
    CHECK(talk.now() - begin < 420 * kMs);
    CHECK_MESSAGE(names(status, "path 0 lost: the system says: eth0 is down; path 1 the system says"),
                  status.message());
  }
}

TEST_CASE("what the system says of a NIC takes the place of the peer's word, which came first") {
  Talk talk(7, 2);
  Bundle& bundle = *talk.sides[1].bundle;
  REQUIRE(live(talk, 10 * kMs).isOk());
  talk.sides[0].bundle->failPath(1, kNicLost);
  REQUIRE(live(talk, 10 * kMs).isOk());
  CHECK(bundle.paths()[1].last_event == "lost: the peer lost it");
  bundle.failPath(1, kNicLost);
  CHECK(bundle.paths()[1].last_event == "lost: the system says: eth0 is down");
  bundle.failPath(1, Status(Kind::kDisconnected, Scope::kEndpoint, "unreachable", "no route"));
  CHECK(bundle.paths()[1].last_event == "lost: the system says: eth0 is down; still lost: no route");
}

TEST_CASE("a path that comes up beside one that the system took away takes its place") {
  Talk talk(6, 2);
  Bundle& bundle = *talk.sides[0].bundle;
  bundle.failPath(0, kNicLost);
  bundle.failPath(1, kNicLost);
  REQUIRE(live(talk, 50 * kMs).isOk());
  talk.reopen(0);
  REQUIRE(live(talk, 150 * kMs).isOk());
  CHECK(talk.isLost(1, 0));
  CHECK(!talk.isLost(0, 0));
  CHECK(!bundle.needsRelay());
}

}  // namespace jhetcc::rail::testing
