// SPDX-License-Identifier: Apache-2.0
// Finds wait cycles between communicators: rank 0 is in A and has not come to B, rank 1 is in B and has not come to A.
// Passive: no I/O, no threads; one instance per process, over all its communicators.
//
// Model: a rank runs its operations one at a time, and an operation completes nowhere before all its members have
// started it. A rank p that is long in X sends a probe to X's members. A member that has not started X and is in Y
// passes it on to Y's members with (itself, Y) appended. If p gets its own probe about some Z that it has not started,
// still being in X, there is a cycle.
//
// No phantoms. Let the path be p in X, r1 in Y1, ..., rk in Yk = Z, where each r(i+1) had not started Yi when it passed
// the probe on, and let p receive it at time T. p has not started Z at T and p is a member of Z, so Z is complete
// nowhere, so rk, which was in Z when it forwarded, is in Z still. Being in one operation at a time, rk has not started
// Y(k-1) since, so Y(k-1) is complete nowhere and r(k-1) is in it still; and so on down to r1, which has not started X.
// All of them wait at T, each for the next, and no step of theirs can change that. None missed: in a deadlock every
// waiting rank waits for one that is in another operation for ever, so following the waits ends in a cycle; a rank on
// it probes again and again, every rank forwards each probe once, so one probe returns.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace jhetcc::control {

/// One operation of one communicator, the same on all its members.
struct Instance {
  uint64_t communicator = 0;
  uint64_t sequence = 0;
  bool operator==(const Instance&) const = default;
};

struct BlockedOperation {
  Instance instance;
  std::string text;              ///< e.g. "#12 psum(f32[8]) on \"world\""
  std::vector<int32_t> members;  ///< world ranks, self included or not; of send and recv the two partners
  int64_t since_ns = 0;
};

struct ProbesConfig {
  int32_t self = 0;                         ///< world rank
  int64_t threshold_ns = 500'000'000;       ///< in one operation for so long before the first probe
  int64_t interval_max_ns = 8'000'000'000;  ///< probes repeat after the threshold, doubling up to this
  int forwards_per_threshold = 64;          ///< probes passed on within one threshold, at most
};

class WaitProbes {
 public:
  struct Hooks {
    std::function<void(int32_t world_rank, std::string message)> send;  ///< best effort
    std::function<std::optional<BlockedOperation>()> current;           ///< started and not finished, if any
    std::function<bool(const Instance&)> has_started;  ///< or finished; false for unknown communicators
  };
  WaitProbes(ProbesConfig config, Hooks hooks);

  void onMessage(int32_t from, const void* data, size_t size, int64_t now_ns);
  void tick(int64_t now_ns);
  int64_t nextTickNs() const {
    return next_ns_;
  }  ///< valid after a tick; call tick() when an operation starts to wait, too

  /// The cycle that the current operation is on: kind mismatch, code wait_cycle. The caller ends that operation's
  /// communicator with it. Every rank of the cycle gets the same one.
  const Status& found() const { return found_; }
  const Instance& foundInstance() const { return found_instance_; }
  uint64_t malformed() const { return malformed_; }

 private:
  struct Hop {
    int32_t rank = 0;
    Instance instance;
    std::string text;
  };
  enum class Type : uint8_t { kProbe = 1, kCycle };
  std::string encode(Type type, uint64_t number, const std::vector<Hop>& path) const;
  void sendTo(const std::vector<int32_t>& members, const std::string& message) const;
  void onProbe(uint64_t number, std::vector<Hop> path, int64_t now_ns);
  void onCycle(const std::vector<Hop>& path);
  void report(const std::vector<Hop>& path, const Instance& instance);
  bool mayForward(int32_t initiator, uint64_t number, int64_t now_ns);

  const ProbesConfig config_;
  const Hooks hooks_;
  std::optional<Instance> probed_;  // what I probe about
  uint64_t number_ = 0;             // of my last probe
  int64_t next_ns_, interval_ns_ = 0;
  std::map<int32_t, uint64_t> forwarded_;  // initiator -> last number passed on
  int64_t window_ns_ = 0;
  int window_count_ = 0;
  Status found_;
  Instance found_instance_;
  uint64_t malformed_ = 0;
};

}  // namespace jhetcc::control
