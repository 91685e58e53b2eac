// SPDX-License-Identifier: Apache-2.0
// Operations on virtual accelerators whose paths are lost and come back: nothing is made for that on the device.
#include <doctest/doctest.h>

#include "all_well.h"
#include "rails_job.h"

using namespace jhetcc;
using namespace jhetcc::engine;
using namespace jhetcc::engine::testing;

namespace {

constexpr int kRanks = 3;
constexpr uint64_t kOwnAllocations = 2;  ///< a call's memory, which the test makes: on the device and on the host

void giveDevices(Simulation& simulation) {
  for (int rank = 0; rank < kRanks; ++rank) {
    simulation.giveDevice(rank, {});
    for (const device::Stream stream : simulation.rank(rank).device->streams) {  // gates are made here
      const Result<Turn> turn = simulation.rank(rank).engine->lane()->enter(stream);
      REQUIRE(turn.isOk());
      turn.value().open();
    }
  }
}

}  // namespace

TEST_CASE("a path that is lost in an operation and comes back costs no memory of a device, nor a halt of it") {
  uint64_t hit = 0;
  for (const bool sees_devices : {true, false}) {
    CAPTURE(sees_devices);
    transport::sim::Options network;
    network.bandwidth_bytes_per_s = 0.1e9;
    network.sees_devices = sees_devices;
    RailsJob job(7, kRanks, 3, network);
    Simulation& simulation = job.simulation;
    giveDevices(simulation);
    const int group = simulation.makeGroup("world", firstRanks(kRanks));
    for (const Planned* planned : plannedFor(kRanks, false)) {
      CAPTURE(planned->label);
      CAPTURE(planned->algorithm);
      for (const bool is_warm : {false, true}) {
        std::vector<device::fake::Counters> before;
        for (int rank = 0; rank < kRanks; ++rank) before.push_back(simulation.rank(rank).device->device->counters());
        const uint64_t losses = job.losses(), resent = job.resentBytes();
        const uint64_t salt = simulation.ask(group, planned);
        if (is_warm) {
          const int a = static_cast<int>(simulation.draw(kRanks)), b = (a + 1) % kRanks;
          const int path = static_cast<int>(simulation.draw(3));
          simulation.network.at(simulation.now() + simulation.draw(kMs), [&job, a, b, path] { job.cut(a, b, path); });
        }
        simulation.run(20'000 * kMs, 5 * kMs);  // it comes back
        hit += job.losses() > losses && job.resentBytes() > resent;
        for (int rank = 0; rank < kRanks && is_warm; ++rank) {
          const device::fake::Counters &was = before[static_cast<size_t>(rank)],
                                       is = simulation.rank(rank).device->device->counters();
          const auto& jobs = simulation.jobs();  // a message has two ranks
          const auto calls = std::count_if(jobs.begin(), jobs.end(), [salt, rank](const Simulation::Job& one) {
            return one.salt == salt && one.rank == rank;
          });
          CHECK(is.allocations - was.allocations == kOwnAllocations * static_cast<uint64_t>(calls));
          CHECK(is.device_synchronisations == was.device_synchronisations);
        }
      }
    }
    checkAllWell(simulation);
  }
  CHECK(hit > 20);
}
