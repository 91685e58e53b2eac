// SPDX-License-Identifier: Apache-2.0
// Which road payloads over shared memory take: the cheapest one, as long as it is the cheapest one.
#include "transport/shm/roads.h"

#include <doctest/doctest.h>

#include <array>

namespace jhetcc::transport::shm {

namespace {

using Costs = std::array<int64_t, 3>;  // ns of a payload: read, staged, staged past the caches

/// Payloads that cost what is said, the first five after a change of road three times as much.
struct Payloads {
  RoadChoice roads;
  size_t last = 3;
  int cold = 0;

  /// How many of the next ones take each road.
  std::array<int, 3> run(int count, const Costs& costs, uint64_t bytes = 256 * 1024) {
    std::array<int, 3> taken{};
    for (int k = 0; k < count; ++k) {
      const Road road = roads.choose(bytes);
      const auto index = static_cast<size_t>(road);
      cold = index == last ? cold - 1 : 5;
      last = index;
      ++taken[index];
      roads.note(bytes, road, costs[index] * (cold > 0 ? 3 : 1));
    }
    return taken;
  }
};

constexpr uint64_t kBytes = 256 * 1024;
constexpr Costs kNear = {20'000, 12'000, 30'000};
constexpr Costs kFar = {40'000, 120'000, 20'000};

}  // namespace

TEST_CASE("shm roads: all are tried, then the cheapest one is taken, and the others are tried now and then") {
  for (size_t cheapest = 0; cheapest < 3; ++cheapest) {
    CAPTURE(cheapest);
    Payloads payloads;
    Costs costs = {20'000, 20'000, 20'000};
    costs[cheapest] = 10'000;
    payloads.run(100, costs);
    CHECK(payloads.run(3900, costs)[cheapest] == 3900);
    const std::array<int, 3> taken = payloads.run(40'000, costs);
    CHECK(taken[cheapest] >= 39'690);
    CHECK(taken[(cheapest + 1) % 3] >= 30);
    CHECK(taken[(cheapest + 2) % 3] >= 30);
  }
}

TEST_CASE("shm roads: a road that is hardly cheaper is not worth a change") {
  Payloads payloads;
  CHECK(payloads.run(4000, {20'000, 17'000, 18'000})[0] >= 3950);
}

TEST_CASE("shm roads: the choice turns soon after the costs do, either way") {
  Payloads payloads;
  payloads.run(1000, kNear);
  payloads.run(600, kFar);
  CHECK(payloads.run(2000, kFar)[2] == 2000);
  payloads.run(600, kNear);
  CHECK(payloads.run(2000, kNear)[1] == 2000);
}

TEST_CASE("shm roads: a trial of a road that is far worse ends early") {
  Payloads payloads;
  CHECK(payloads.run(4000, {10'000, 200'000, 200'000})[0] == 4000 - 2 * 7);
}

TEST_CASE("shm roads: payloads that were interrupted do not turn the choice") {
  Payloads payloads;
  payloads.run(1000, kNear);
  for (int k = 0; k < 3; ++k) payloads.roads.note(kBytes, Road::kStaged, 50'000'000);
  CHECK(payloads.run(1000, kNear)[1] >= 950);
}

TEST_CASE("shm roads: lengths are judged apart, and reading is taken while nothing is known") {
  Payloads payloads;
  payloads.run(200, kNear, 16 * kBytes);
  CHECK(payloads.roads.choose(kBytes) == Road::kRead);
  CHECK(payloads.roads.choose(16 * kBytes) == Road::kStaged);
  CHECK(payloads.roads.choose(0) == Road::kRead);
  CHECK(payloads.roads.choose(~uint64_t{0}) == Road::kStaged);  // all above 2 MiB are judged together
}

}  // namespace jhetcc::transport::shm
