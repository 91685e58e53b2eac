// SPDX-License-Identifier: Apache-2.0
// Operations on virtual accelerators, of some ranks or of all: values, the order of streams, who touches what, and
// ends.
#include <doctest/doctest.h>

#include "all_well.h"

using namespace jhetcc;
using namespace jhetcc::engine;
using namespace jhetcc::engine::testing;

namespace {

transport::sim::Options networkOf(uint64_t seed) {
  transport::sim::Options options;
  options.instant_fetch_probability = seed % 3 == 0 ? 0.5 : 0;
  options.window_bytes = seed % 5 == 0 ? 40 * 1024 : 256 * 1024;
  options.sees_devices = seed % 2 == 0;
  return options;
}

/// Hosts, and devices of every kind, in one job.
void giveSomeDevices(Simulation& simulation) {
  for (int rank = 0; rank < simulation.size(); ++rank) {
    const int64_t kind = simulation.draw(5);
    if (kind == 0) continue;
    device::fake::Options options;
    options.queues = 1 + static_cast<int>(simulation.draw(2));
    options.registrable = kind != 1;
    options.stream_values = kind != 2;
    simulation.giveDevice(rank, options);
  }
}

}  // namespace

TEST_CASE("every schedule gives the right values on devices and hosts, between work of the callers' streams") {
  for (int size : {1, 2, 3, 4, 5, 8}) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      CAPTURE(size);
      CAPTURE(seed);
      Simulation simulation(size, seed, networkOf(seed));
      giveSomeDevices(simulation);
      const int group = simulation.makeGroup("world", firstRanks(size));
      for (const Planned* planned : plannedFor(size, false)) simulation.ask(group, planned);
      simulation.run();
      checkAllWell(simulation);
    }
  }
}

TEST_CASE("where the transport sees devices no byte passes through the host, and a warm operation allocates nothing") {
  for (const bool sees_devices : {true, false}) {
    CAPTURE(sees_devices);
    transport::sim::Options network;
    network.sees_devices = sees_devices;
    Simulation simulation(4, 1, network);
    for (int rank = 0; rank < 4; ++rank) {
      simulation.giveDevice(rank, {});
      for (const device::Stream stream : simulation.rank(rank).device->streams) {  // gates are made here
        const Result<Turn> turn = simulation.rank(rank).engine->lane()->enter(stream);
        REQUIRE(turn.isOk());
        turn.value().open();
      }
    }
    const int group = simulation.makeGroup("world", firstRanks(4));
    uint64_t bounced = 0;
    for (const Planned* planned : plannedFor(4, false)) {
      CAPTURE(planned->label);
      CAPTURE(planned->algorithm);
      for (int round = 0; round < 3; ++round) {
        std::vector<device::fake::Counters> before;
        for (int rank = 0; rank < 4; ++rank) before.push_back(simulation.rank(rank).device->device->counters());
        const uint64_t salt = simulation.ask(group, planned);
        simulation.run();
        for (const Simulation::Job& job : simulation.jobs()) {
          if (job.salt != salt) continue;
          device::fake::FakeDevice& device = *simulation.rank(job.rank).device->device;
          REQUIRE(device.synchronize(job.on_device->stream(), SystemClock().nowNs() + kMs * 20'000).isOk());
          const device::fake::Counters& was = before[static_cast<size_t>(job.rank)];
          const device::fake::Counters is = device.counters();
          // What the caller itself does: the call's memory, all of it up, down, and up again as poison.
          const uint64_t own = job.on_device->bytes();
          const uint64_t down = is.bytes_to_host - was.bytes_to_host - own;
          const uint64_t up = is.bytes_from_host - was.bytes_from_host - 2 * own;
          if (sees_devices) {
            CHECK(down == 0);
            CHECK(up == 0);
          }
          bounced += down + up;
          if (round > 0) CHECK(is.allocations - was.allocations == 2);
          CHECK(is.device_synchronisations == was.device_synchronisations);
          CHECK(is.callbacks == 0);
        }
      }
    }
    CHECK((bounced > 0) == !sees_devices);
    checkAllWell(simulation);
  }
}

TEST_CASE("without stream values gates go by callbacks that neither wait nor call a device") {
  Simulation simulation(3, 5);
  for (int rank = 0; rank < 3; ++rank) simulation.giveDevice(rank, {.queues = 1, .stream_values = false});
  const int group = simulation.makeGroup("world", firstRanks(3));
  for (const Planned* planned : plannedFor(3, true)) simulation.ask(group, planned);
  simulation.run();
  checkAllWell(simulation);
  for (int rank = 0; rank < 3; ++rank) {
    const device::fake::Counters seen = simulation.rank(rank).device->device->counters();
    CHECK(seen.callbacks > 0);
    CHECK(seen.callbacks_refused == 0);
    CHECK(seen.callbacks_waited == 0);
    CHECK(seen.values == 0);
  }
}

TEST_CASE("ranks that die or stop: the others' streams go on, and nothing is written after the end") {
  for (uint64_t seed = 0; seed < 120; ++seed) {
    CAPTURE(seed);
    Simulation simulation(4, seed, networkOf(seed));
    giveSomeDevices(simulation);
    const int group = simulation.makeGroup("world", firstRanks(4));
    const auto choice = plannedFor(4, seed % 2 == 0);
    for (int k = 0; k < 12; ++k) {
      simulation.ask(group, choice[static_cast<size_t>(simulation.draw(static_cast<int64_t>(choice.size())))]);
    }
    const int victim = static_cast<int>(simulation.draw(4));
    const int64_t when = simulation.draw(kMs);
    simulation.network.at(when, [&] {
      if (seed % 3 == 0) {
        simulation.stop(victim);
      } else {
        simulation.kill(victim);
      }
    });
    if (seed % 3 == 0) simulation.network.at(when + 3 * kTimeoutNs, [&] { simulation.resume(victim); });
    simulation.run(20'000 * kMs, 2 * kTimeoutNs);
    simulation.check();
    CHECK_MESSAGE(simulation.failures().empty(), simulation.failures());
  }
}

TEST_CASE("a member that leaves after its part does not end an operation whose device still copies") {
  int left = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Simulation simulation(2, seed, networkOf(seed));
    simulation.giveDevice(1, {.registrable = seed % 4 < 2});
    const int group = simulation.makeGroup("world", firstRanks(2));
    simulation.ask(group, planned(2, seed % 2 ? "broadcast(u64[300], root=0) in 80" : "long message"));
    bool has_left = false;
    for (int64_t at = 0; at < 2'000; ++at) {
      simulation.network.at(at * 10'000, [&] {
        for (const auto* job : simulation.jobsOf(group)) {
          if (has_left || !job->isDone() || job->rank != 0) continue;
          has_left = true;
          simulation.rank(0).engine->sayGoodbye();
        }
      });
    }
    simulation.rank(1).is_device_slow = true;
    simulation.run();
    left += has_left;
    checkAllWell(simulation);
  }
  CHECK(left > 30);
}

TEST_CASE("an operation waits for its stream, says so at its deadline, and its stream goes on after the error") {
  Simulation simulation(2, 3);
  for (int rank = 0; rank < 2; ++rank) simulation.giveDevice(rank, {});
  const int group = simulation.makeGroup("world", firstRanks(2));
  DeviceRank& mine = *simulation.rank(1).device;
  // All streams of rank 1 stand still: each waits for a word that nobody writes before the operation has ended.
  void* word = std::move(mine.device->allocate(sizeof(uint64_t), device::MemoryKind::kPinned)).value();
  for (const device::Stream stream : mine.streams) {
    REQUIRE(mine.device->waitValue(static_cast<uint64_t*>(word), 1, stream).isOk());
  }
  simulation.ask(group, planned(2, "psum(u64[9])"));
  simulation.run(20'000 * kMs, kTimeoutNs);
  for (const Simulation::Job& job : simulation.jobs()) {
    CHECK(job.status.kind() == Kind::kTimeout);
    CHECK_MESSAGE(job.status.message().find("is in work queued on its stream before") != std::string::npos,
                  job.status.message());
  }
  std::atomic_ref<uint64_t>(*static_cast<uint64_t*>(word)).store(1);
  simulation.check();
  CHECK_MESSAGE(simulation.failures().empty(), simulation.failures());
  REQUIRE(mine.device->free(word).isOk());
}

TEST_CASE("an operation for which the device has no memory fails before anything of it runs") {
  for (const bool sees_devices : {true, false}) {
    CAPTURE(sees_devices);
    transport::sim::Options network;
    network.sees_devices = sees_devices;
    Simulation simulation(2, 4, network);
    for (int rank = 0; rank < 2; ++rank) simulation.giveDevice(rank, {});
    Planned large = *planned(2, "psum(u64[9])");
    schedule::Schedule schedule = *large.members[1].program->schedule;
    schedule.scratch_bytes = int64_t{1} << 60;
    large.members[1].program = Program::make(std::make_shared<const schedule::Schedule>(schedule));
    simulation.ask(simulation.makeGroup("world", firstRanks(2)), &large);
    simulation.run(20'000 * kMs, kTimeoutNs);
    for (const Simulation::Job& job : simulation.jobs()) {
      CHECK_MESSAGE(job.status.message().find("device memory of") != std::string::npos, job.status.message());
    }
    CHECK(simulation.rank(1).device->device->counters().copies == 3);  // those of the caller
    simulation.check();
    CHECK_MESSAGE(simulation.failures().empty(), simulation.failures());
  }
}

TEST_CASE("an empty message needs no memory of the device") {
  for (const bool sees_devices : {true, false}) {
    CAPTURE(sees_devices);
    transport::sim::Options network;
    network.sees_devices = sees_devices;
    Simulation simulation(2, 6, network);
    for (int rank = 0; rank < 2; ++rank) simulation.giveDevice(rank, {});
    simulation.ask(simulation.makeGroup("world", firstRanks(2)), planned(2, "empty message"));
    for (int rank = 0; rank < 2; ++rank) simulation.rank(rank).todo.front()->gives_host_memory = true;
    simulation.run();
    checkAllWell(simulation);
  }
}

TEST_CASE("memory that is no device's is an error of the call on all ranks, not a crash") {
  Simulation simulation(2, 4);
  for (int rank = 0; rank < 2; ++rank) simulation.giveDevice(rank, {});
  const int group = simulation.makeGroup("world", firstRanks(2));
  simulation.ask(group, planned(2, "psum(u64[9])"));
  simulation.rank(0).todo.front()->gives_host_memory = true;
  simulation.run(20'000 * kMs, kTimeoutNs);
  for (const Simulation::Job& job : simulation.jobs()) {
    CHECK(!job.status.isOk());
    CHECK_MESSAGE(job.status.message().find("virtual accelerator") != std::string::npos, job.status.message());
  }
}
