// SPDX-License-Identifier: Apache-2.0
// Ranks, each a real engine, on the simulated network: what they are asked, in any order of stepping, and what must
// hold. Everything follows from the seed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "device_rank.h"
#include "engine/engine.h"
#include "pretend_library.h"
#include "schedules.h"
#include "transport/sim/sim.h"

namespace jhetcc::engine::testing {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kTimeoutNs = 1000 * kMs, kGatherNs = 100 * kMs, kConfirmNs = 200 * kMs, kProbeNs = 20 * kMs;
constexpr int64_t kSlackNs = 60 * kMs;

class Simulation {
 public:
  /// What stands between a rank and its endpoint to another.
  using Wrap =
      std::function<std::unique_ptr<transport::Endpoint>(int from, int to, std::unique_ptr<transport::Endpoint>)>;
  /// What joins two ranks; else one link does.
  using Join = std::function<std::pair<std::unique_ptr<transport::Endpoint>, std::unique_ptr<transport::Endpoint>>(
      transport::sim::Network&, int a, int b)>;
  Simulation(int ranks, uint64_t seed, const transport::sim::Options& network = {}, const Wrap& wrap = {},
             const Join& join = {});
  ~Simulation();

  /// One call of one rank, checked when it ends; its buffers are poisoned then and looked at again by check().
  struct Job final : Completion {
    Simulation* simulation = nullptr;
    const Planned* planned = nullptr;
    std::shared_ptr<Command> command;
    std::vector<uint8_t> input, output;
    int rank = 0, group = 0, member = 0;
    uint64_t salt = 0;
    bool is_in_place = false;  ///< input and output are the same memory
    bool gives_host_memory = false;
    std::unique_ptr<DeviceCall> on_device;  ///< where the rank has a device: input and output are there
    int64_t not_before_ns = 0, begun_ns = -1, ended_ns = -1;
    Status status;
    void onDone(const Status& status) override;
    bool isDone() const { return ended_ns >= 0; }
    uint8_t poison() const { return static_cast<uint8_t>(0xa0 + salt % 16); }
  };
  struct Group {
    CommunicatorSpec spec;
    int calls = 0;
    std::vector<bool> has;  ///< by member: the communicator was made there
  };
  struct Rank {
    std::unique_ptr<DeviceRank> device;  ///< its calls are on it; null: on memory of the host
    std::unique_ptr<Engine> engine;
    std::deque<Job*> todo;
    std::vector<Job*> running;
    bool dead = false, stopped = false, ever_stopped = false;
    bool is_device_slow = false;  ///< hardly ever goes on
    int depth = 1;                ///< calls handed to the engine at once
    int64_t last_end_ns = 0;
  };

  /// Before the first call: its memory is a virtual accelerator's from now on.
  void giveDevice(int rank, device::fake::Options options);

  /// A communicator on all its members; `late`: a member makes it when its first call is due.
  int makeGroup(const std::string& name, const std::vector<int32_t>& ranks, uint64_t epoch = 0, bool late = false);
  /// Every member of the group will call this, after what it was asked before. Returns the salt.
  uint64_t ask(int group, const Planned* planned);
  void askOne(int group, int member, const Planned* planned, uint64_t salt);
  /// Lets the whole network live until nobody has anything to do (or `limit_ns` from now), then `more_ns`.
  void run(int64_t limit_ns = 20'000 * kMs, int64_t more_ns = 0);

  void kill(int rank);
  void stop(int rank);
  void resume(int rank);
  void abort(int rank, int group, const std::string& why);
  /// What the survivors of a group do next. Returns the new group, or -1 if nobody goes on. `may_part`: links between
  /// ranks that live are cut, so that they may come to different answers (the largest group is returned).
  int shrink(int group, bool may_part);

  /// What must hold whatever was done to the ranks. Members of communicators of at least `verdicts_from` ranks must
  /// hold the same verdict: 1, unless two ranks that live cannot talk to each other.
  void check(size_t verdicts_from = 1);
  void fail(const std::string& what);
  std::string failures() const;  ///< empty: all is well

  Rank& rank(int index) { return ranks_[static_cast<size_t>(index)]; }
  Group& group(int index) { return *groups_[static_cast<size_t>(index)]; }
  const std::deque<Job>& jobs() const { return jobs_; }
  std::vector<const Job*> jobsOf(int group) const;
  int64_t draw(int64_t below) {
    return below <= 0 ? 0 : static_cast<int64_t>(random_.below(static_cast<uint64_t>(below)));
  }
  int64_t now() { return network.clock().nowNs(); }
  int size() const { return static_cast<int>(ranks_.size()); }
  control::Membership* membershipOf(int group, int member);
  bool isUp(int rank) { return !this->rank(rank).dead && !this->rank(rank).stopped; }

  transport::sim::Network network;
  PretendLibrary library;    ///< of every cluster
  bool with_library = true;  ///< communicators made from now on have one
  bool limit_time = true;    ///< check that every operation ends in time

 private:
  bool pass(bool all);
  void feed(Rank& rank, int64_t now_ns);
  int64_t nextDueNs();
  bool isIdle();
  void makeOn(int group, int member);
  void checkJobs();
  void checkDeviceJobs();
  void checkVerdicts(int group);

  const uint64_t seed_;
  SeededRandom random_;
  std::deque<Rank> ranks_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::deque<Job> jobs_;
  std::vector<int> order_;
  std::string failures_;
  int failure_count_ = 0;
  uint64_t next_salt_ = 1;
};

}  // namespace jhetcc::engine::testing
