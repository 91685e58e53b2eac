// SPDX-License-Identifier: Apache-2.0
// Which of two roads a payload takes, by what both have cost lately: one thread, no I/O, the same bytes either way.
// Reading the peer costs by the page and needs nobody's help; staging copies twice, at the speed of the caches, where the
// two cores share one, and far slower where they do not; and which cores those are changes while a job runs.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace jhetcc::transport::shm {

enum class Road : uint8_t { kRead = 0, kStaged = 1 };

class RoadChoice {
 public:
  Road choose(uint64_t bytes) {
    Class& c = classOf(bytes);
    const uint32_t turn = c.turn++;
    if (turn < kFirstTurns) return Road(turn % 2);
    const bool both_known = c.known[0] > 0 && c.known[1] > 0;
    const Road better = both_known && c.cost[1] < c.cost[0] ? Road::kStaged : Road::kRead;
    return turn % kLookEvery != 0 ? better : Road(1 - static_cast<int>(better));
  }

  /// What a payload cost from its fetch to its end. One that was interrupted counts four times the usual at most.
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
  static constexpr uint32_t kFirstTurns = 16;
  static constexpr uint32_t kLookEvery = 128;
  static constexpr uint32_t kWarmUp = 4;
  struct Class {
    double cost[2] = {0, 0};  ///< ns a byte
    uint32_t known[2] = {0, 0};
    uint32_t turn = 0;
  };
  /// By length: up to 32 KiB, up to 64 KiB, ..., above 2 MiB.
  Class& classOf(uint64_t bytes) {
    const int width = static_cast<int>(std::bit_width(bytes == 0 ? 0 : bytes - 1)) - 15;
    return classes_[static_cast<size_t>(std::clamp(width, 0, static_cast<int>(classes_.size()) - 1))];
  }
  std::array<Class, 8> classes_{};
};

}  // namespace jhetcc::transport::shm
