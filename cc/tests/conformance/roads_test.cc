// SPDX-License-Identifier: Apache-2.0
// Which road payloads over shared memory take: the cheapest one, as long as it is the cheapest one.
#include <doctest/doctest.h>

#include <array>

#include "transport/shm/roads.h"

namespace jhetcc::transport::shm {

namespace {

using Costs = std::array<int64_t, 3>;  // ns of a payload: read, staged, staged past the caches

/// Lets payloads of one length run at these costs; how many took each road.
std::array<int, 3> run(RoadChoice& roads, int payloads, uint64_t bytes, const Costs& costs) {
  std::array<int, 3> taken{};
  for (int k = 0; k < payloads; ++k) {
    const Road road = roads.choose(bytes);
    const auto index = static_cast<size_t>(road);
    ++taken[index];
    roads.note(bytes, road, costs[index]);
  }
  return taken;
}

constexpr uint64_t kBytes = 256 * 1024;
constexpr Costs kNear = {20'000, 12'000, 30'000};
constexpr Costs kFar = {40'000, 120'000, 20'000};

}  // namespace

TEST_CASE("shm roads: all are tried, then the cheapest one is taken, and the others are looked at now and then") {
  for (size_t cheapest = 0; cheapest < 3; ++cheapest) {
    CAPTURE(cheapest);
    RoadChoice roads;
    Costs costs = {20'000, 20'000, 20'000};
    costs[cheapest] = 10'000;
    CHECK(run(roads, 24, kBytes, costs) == std::array{8, 8, 8});
    const std::array<int, 3> taken = run(roads, 1280, kBytes, costs);
    CHECK(taken[cheapest] == 1260);
    CHECK(taken[(cheapest + 1) % 3] == 10);
    CHECK(taken[(cheapest + 2) % 3] == 10);
  }
}

TEST_CASE("shm roads: the choice turns when the costs do, either way") {
  RoadChoice roads;
  run(roads, 200, kBytes, kNear);
  run(roads, 64, kBytes, kFar);  // seen at once, for this is the road taken
  CHECK(run(roads, 100, kBytes, kFar)[1] <= 2);
  run(roads, 20 * 128, kBytes, kNear);  // seen by looking
  CHECK(run(roads, 128, kBytes, kNear)[1] >= 126);
}

TEST_CASE("shm roads: one interrupted payload does not turn the choice for long") {
  RoadChoice roads;
  run(roads, 200, kBytes, kNear);
  roads.note(kBytes, Road::kStaged, 50'000'000);
  run(roads, 3 * 128, kBytes, kNear);
  CHECK(run(roads, 128, kBytes, kNear)[1] >= 126);
}

TEST_CASE("shm roads: lengths are judged apart, and reading is taken while nothing is known") {
  RoadChoice roads;
  for (int k = 0; k < 24; ++k) (void)roads.choose(kBytes);
  CHECK(roads.choose(kBytes) == Road::kRead);
  run(roads, 200, 16 * kBytes, kNear);
  CHECK(roads.choose(kBytes) == Road::kRead);
  CHECK(roads.choose(16 * kBytes) == Road::kStaged);
  CHECK(roads.choose(0) == Road::kRead);
  CHECK(roads.choose(~uint64_t{0}) == Road::kStaged);  // all above 2 MiB are judged together
}

}  // namespace jhetcc::transport::shm
