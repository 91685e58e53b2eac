// SPDX-License-Identifier: Apache-2.0
// Which of three roads a payload takes, by what they have cost lately: one thread, no I/O, the same bytes either way.
// Changing roads has a price of its own, so another road is tried for several payloads in a row, and seldom.
// Reading the peer costs by the page and needs nobody's help. Staging copies twice: through the caches, which is the
// fastest where the two cores share one and the slowest where they do not; or past them, which is the fastest there.
// Which cores those are changes while a job runs.
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
    ++c.turn;
    if (c.trial_count == 0 && c.turn >= c.next_trial) {
      if (c.to_try == 0) c.to_try = kRoads - 1;
      c.tried = (c.tried + 1) % kRoads;
      if (c.tried == c.taken) c.tried = (c.tried + 1) % kRoads;
      c.trial_count = 1;
    }
    return Road(c.trial_count > 0 ? c.tried : c.taken);
  }

  /// What all copying of a payload cost, at both ends.
  void note(uint64_t bytes, Road road, int64_t ns) {
    Class& c = classOf(bytes);
    const auto k = static_cast<uint32_t>(road);
    const double cost = static_cast<double>(ns) / static_cast<double>(bytes);
    if (c.trial_count > 0 && k == c.tried) {
      noteTrial(c, cost);
    } else if (k == c.taken) {
      noteTaken(c, cost);
    }
  }

 private:
  static constexpr uint32_t kRoads = 3;
  static constexpr uint32_t kColdPayloads = 6;  // after a change: they find the staging memory as another road left it
  static constexpr uint32_t kTrialPayloads = 15;
  static constexpr uint32_t kTrialEvery = 4096;  // payloads; a trial of a far worse road costs some hundred of them
  static constexpr uint32_t kTrialAfterChange = 256;  // at most that often
  static constexpr double kClearly = 0.8;             // less is not worth a change
  static constexpr double kHopeless = 2.5;            // a trial ends early

  struct Class {
    uint32_t taken = 0, tried = 0;
    uint32_t turn = 0, next_trial = 2 * kColdPayloads, last_trial = 0;
    uint32_t trial_count = 0;  ///< 1 + payloads of the trial so far; 0: none under way
    uint32_t to_try = 0;       ///< trials until roads count as compared
    uint32_t cold = kColdPayloads;
    double cost = 0;       ///< of the road taken, ns a byte, averaged; 0: not known yet
    double cost_then = 0;  ///< when roads were last compared
    std::array<double, kTrialPayloads> trial{};
  };

  static void noteTaken(Class& c, double cost) {
    if (c.cold > 0) {
      --c.cold;
      return;
    }
    if (c.cost == 0) c.cost = c.cost_then = cost;
    c.cost += (std::min(cost, 4 * c.cost) - c.cost) / 8;  // one that was interrupted says little
    const bool has_changed = c.cost > 1.3 * c.cost_then || 1.3 * c.cost < c.cost_then;
    if (has_changed && c.to_try == 0) c.next_trial = std::min(c.next_trial, c.last_trial + kTrialAfterChange);
  }

  static void noteTrial(Class& c, double cost) {
    c.trial[c.trial_count - 1] = cost;
    const bool is_hopeless = c.trial_count > kColdPayloads && cost > kHopeless * c.cost;
    if (++c.trial_count <= kTrialPayloads && !is_hopeless) return;
    const auto begin = c.trial.begin() + kColdPayloads, end = c.trial.begin() + (c.trial_count - 1);
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end);
    --c.to_try;
    if (!is_hopeless && *middle < kClearly * c.cost) {
      c.taken = c.tried;
      c.cost = *middle;
      c.to_try = 1;  // another one may be better still
    }
    c.cost_then = c.cost;
    c.cold = kColdPayloads;
    c.trial_count = 0;
    c.last_trial = c.turn;
    c.next_trial = c.turn + (c.to_try > 0 ? 2 * kColdPayloads : kTrialEvery);
  }

  /// By length: up to 32 KiB, up to 64 KiB, ..., above 2 MiB.
  Class& classOf(uint64_t bytes) {
    const int width = static_cast<int>(std::bit_width(bytes == 0 ? 0 : bytes - 1)) - 15;
    return classes_[static_cast<size_t>(std::clamp(width, 0, static_cast<int>(classes_.size()) - 1))];
  }
  std::array<Class, 8> classes_{};
};

}  // namespace jhetcc::transport::shm
