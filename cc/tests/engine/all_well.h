// SPDX-License-Identifier: Apache-2.0
// What tests without faults ask of a simulation: its ranks by number, and that all of it went well.
#pragma once

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "simulation.h"

namespace jhetcc::engine::testing {

inline std::vector<int32_t> firstRanks(int count) {
  std::vector<int32_t> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

inline void checkAllWell(Simulation& simulation) {
  simulation.check();
  for (const Simulation::Job& job : simulation.jobs()) {
    if (!job.status.isOk()) simulation.fail(job.planned->label + ": " + job.status.message());
  }
  CHECK_MESSAGE(simulation.failures().empty(), simulation.failures());
}

}  // namespace jhetcc::engine::testing
