// SPDX-License-Identifier: Apache-2.0
// Which road payloads over shared memory take: the cheaper one, as long as it is the cheaper one.
#include <doctest/doctest.h>

#include "transport/shm/roads.h"

namespace jhetcc::transport::shm {

namespace {

/// Lets payloads of one length run where both roads cost what is said; how many of them were staged.
int stagedOf(RoadChoice& roads, int payloads, uint64_t bytes, int64_t read_ns, int64_t staged_ns) {
  int staged = 0;
  for (int k = 0; k < payloads; ++k) {
    const Road road = roads.choose(bytes);
    staged += road == Road::kStaged;
    roads.note(bytes, road, road == Road::kStaged ? staged_ns : read_ns);
  }
  return staged;
}

constexpr uint64_t kBytes = 256 * 1024;

}  // namespace

TEST_CASE("shm roads: both are tried, then the cheaper one is taken, and the other is looked at now and then") {
  RoadChoice roads;
  CHECK(stagedOf(roads, 16, kBytes, 20'000, 10'000) == 8);
  CHECK(stagedOf(roads, 1280, kBytes, 20'000, 10'000) == 1270);
}

TEST_CASE("shm roads: the choice turns when the costs do, either way") {
  RoadChoice roads;
  stagedOf(roads, 200, kBytes, 20'000, 10'000);
  stagedOf(roads, 64, kBytes, 20'000, 100'000);  // seen at once, for this is the road taken
  CHECK(stagedOf(roads, 100, kBytes, 20'000, 100'000) <= 1);
  stagedOf(roads, 10 * 128, kBytes, 20'000, 10'000);  // seen by looking
  CHECK(stagedOf(roads, 128, kBytes, 20'000, 10'000) >= 127);
}

TEST_CASE("shm roads: one interrupted payload does not turn the choice for long") {
  RoadChoice roads;
  stagedOf(roads, 200, kBytes, 20'000, 10'000);
  roads.note(kBytes, Road::kStaged, 50'000'000);
  stagedOf(roads, 128, kBytes, 20'000, 10'000);
  CHECK(stagedOf(roads, 128, kBytes, 20'000, 10'000) >= 126);
}

TEST_CASE("shm roads: lengths are judged apart, and reading is taken while nothing is known") {
  RoadChoice roads;
  for (int k = 0; k < 16; ++k) (void)roads.choose(kBytes);  // all fetched side by side: nothing was noted
  CHECK(roads.choose(kBytes) == Road::kRead);
  stagedOf(roads, 200, 16 * kBytes, 20'000, 10'000);
  CHECK(roads.choose(kBytes) == Road::kRead);
  CHECK(roads.choose(16 * kBytes) == Road::kStaged);
  CHECK(roads.choose(0) == Road::kRead);
  CHECK(roads.choose(~uint64_t{0}) == Road::kStaged);  // all above 2 MiB are judged together
}

}  // namespace jhetcc::transport::shm
