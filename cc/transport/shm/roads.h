// SPDX-License-Identifier: Apache-2.0
// Which of three roads a payload takes, by what they have cost lately: one thread, no I/O, the same bytes either way.
// Reading the peer costs by the page and needs nobody's help. Staging copies twice: through the caches, which is the
// fastest where the two cores share one and the slowest where they do not; or past them, which lies between. Which cores
// those are changes while a job runs.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace jhetcc::transport::shm {

enum class Road : uint8_t { kRead = 0, kStaged = 1, kStagedPastCaches = 2 };

class RoadChoice {
 public:
  Road choose(uint64_t bytes) {
    Class& c = classOf(bytes);
    const uint32_t turn = c.turn++;
    if (turn < kFirstTurns) return Road(turn % kRoads);
    const auto best = static_cast<uint32_t>(std::min_element(c.cost.begin(), c.cost.end()) - c.cost.begin());
    if (turn == kFirstTurns || c.cost[best] < kClearly * c.cost[c.taken]) c.taken = best;
    if (turn % kLookEvery != 0) return Road(c.taken);
    return Road((c.taken + 1 + turn / kLookEvery % (kRoads - 1)) % kRoads);  // the others in turn
  }

  /// What all copying of a payload cost, at both ends. One that was interrupted counts four times the usual at most.
  void note(uint64_t bytes, Road road, int64_t ns) {
    Class& c = classOf(bytes);
    const auto k = static_cast<size_t>(road);
    const double cost = static_cast<double>(ns) / static_cast<double>(bytes);
    if (c.known[k] < kWarmUp) {
      ++c.known[k];
      c.cost[k] = cost;  // the last of these counts: the first ones take pages
    } else {
      c.cost[k] += (std::min(cost, 4 * c.cost[k]) - c.cost[k]) / 4;
    }
  }

 private:
  static constexpr uint32_t kRoads = 3;
  static constexpr uint32_t kFirstTurns = 8 * kRoads;
  static constexpr uint32_t kLookEvery = 64;
  static constexpr uint32_t kWarmUp = 4;
  static constexpr double kUnknown = 1e9;
  static constexpr double kClearly = 0.8;  // payloads of one operation on different roads hinder each other
  struct Class {
    std::array<double, kRoads> cost = {kUnknown, kUnknown, kUnknown};  ///< ns a byte
    std::array<uint32_t, kRoads> known{};
    uint32_t turn = 0;
    uint32_t taken = 0;
  };
  /// By length: up to 32 KiB, up to 64 KiB, ..., above 2 MiB.
  Class& classOf(uint64_t bytes) {
    const int width = static_cast<int>(std::bit_width(bytes == 0 ? 0 : bytes - 1)) - 15;
    return classes_[static_cast<size_t>(std::clamp(width, 0, static_cast<int>(classes_.size()) - 1))];
  }
  std::array<Class, 8> classes_{};
};

}  // namespace jhetcc::transport::shm
