// SPDX-License-Identifier: Apache-2.0
// A vendor's collective library among simulated ranks: it blocks, cannot be aborted, and reads and writes memory only
// while a call is under way. Belongs to the thread that steps the network.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "engine/native.h"
#include "transport/sim/sim.h"

namespace jhetcc::engine::testing {

class PretendLibrary {
 public:
  /// `is_up`: a dead rank's calls never begin. `fail` hears what no correct caller does.
  PretendLibrary(uint64_t seed, transport::sim::Network& network, std::function<bool(int)> is_up,
                 std::function<void(const std::string&)> fail);
  std::shared_ptr<NativePort> port(uint64_t communicator, const std::vector<int32_t>& world_ranks, int32_t self);
  /// Where the library finds a call's memory.
  std::function<void*(const void* memory, size_t bytes)> see = [](const void* memory, size_t) {
    return const_cast<void*>(memory);
  };
  uint64_t callsBegun() const { return calls_begun_; }
  uint64_t callsGivenUp() const { return calls_given_up_; }
  /// The next call to begin anywhere ends with this error at every member.
  void failNext(const Status& status) { next_failure_ = status; }

 private:
  class Port;
  struct Part {
    Port* port = nullptr;
    NativeCall call{};
    std::vector<char> data;
    bool is_told = false;
  };
  /// One collective call: the parts of its members as they come.
  struct Meeting {
    std::vector<Part> parts;
    Status failure;
    size_t begun = 0;
  };
  using Key = std::pair<std::pair<uint64_t, std::vector<int32_t>>, uint64_t>;

  void begin(Port& port, NativeCall call);
  void endWhatCan(Meeting& meeting);
  bool canEnd(const Meeting& meeting, size_t member) const;
  std::vector<char> result(const Meeting& meeting) const;

  SeededRandom random_;
  transport::sim::Network& network_;
  const std::function<bool(int)> is_up_;
  const std::function<void(const std::string&)> fail_;
  const bool is_eager_;  ///< members end as soon as they can, not when all have come
  std::map<Key, Meeting> meetings_;
  Status next_failure_;
  uint64_t calls_begun_ = 0, calls_given_up_ = 0;
};

}  // namespace jhetcc::engine::testing
