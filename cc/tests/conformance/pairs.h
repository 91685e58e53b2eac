// SPDX-License-Identifier: Apache-2.0
// The transports the suite runs on.
#pragma once

#include "conformance/harness.h"
#include "transport/shm/shm.h"
#include "transport/sim/sim.h"

namespace jhetcc::transport::conformance {

class SimPair : public Pair {
 public:
  explicit SimPair(uint64_t seed = 1, const sim::Options& options = {}) : SimPair(std::make_unique<sim::Network>(seed, options)) {}
  void tick() override { network->step(); }
  std::unique_ptr<sim::Network> network;

 private:
  explicit SimPair(std::unique_ptr<sim::Network> made) : Pair(made->connect(0, 1)), network(std::move(made)) {}
};

/// Fetches by reading the peer at once, as shared memory does.
class SimInstantPair : public SimPair {
 public:
  SimInstantPair() : SimPair(2, instant()) {}
  static sim::Options instant() {
    sim::Options options;
    options.instant_fetch_probability = 1;
    options.reads_need_peer = false;
    return options;
  }
};

inline const SystemClock& systemClock() {
  static const SystemClock clock;
  return clock;
}

inline EndpointPair makeShmLocal() {
  Result<EndpointPair> made = shm::createLocalPair({}, "rank 0 -> rank 1", "rank 1 -> rank 0", systemClock());
  REQUIRE_MESSAGE(made.isOk(), made.status().message());
  return std::move(made).value();
}
class ShmLocalPair : public Pair {
 public:
  ShmLocalPair() : Pair(makeShmLocal()) {}
};

#define JHETCC_TRANSPORTS SimPair, SimInstantPair, ShmLocalPair

}  // namespace jhetcc::transport::conformance
