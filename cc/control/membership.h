// SPDX-License-Identifier: Apache-2.0
// How one communicator ends, seen from one of its members: suspicion, reports, one verdict for all; then shrink.
// Passive: fed with events and time, asked for messages. No I/O, no threads, so the simulator can play it by the hundred.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace jhetcc::control {

/// What a member did last; the verdict quotes every member's.
struct Report {
  uint64_t started = 0;        ///< operations started on this communicator
  uint64_t finished = 0;       ///< operations finished
  std::string operation;       ///< text of the last one started, e.g. "#12 psum(f32[8,4])"; empty before the first
  std::string elsewhere;       ///< operation this rank is in on another communicator, if any
};

struct MembershipConfig {
  std::string communicator;            ///< name, for texts
  int self = 0;                        ///< my index within the communicator
  std::vector<int32_t> world_ranks;    ///< index -> world rank
  std::vector<std::string> places;     ///< index -> "host:pid", for texts
  int64_t gather_ns = 1'000'000'000;   ///< the decider waits this long for reports
  int64_t confirm_ns = 2'000'000'000;  ///< without a verdict by then, the cause is raised as unconfirmed
};

/// The end of a communicator. Equal on all members that hold a confirmed one.
struct Verdict {
  Status status;                ///< the error every operation of the communicator ends with
  std::vector<int32_t> lost;    ///< indexes that are gone or silent; empty after a mismatch or a user's abort
  bool confirmed = false;
};

/// Outcome of shrink(): who goes on, by old index, ascending. Equal on all of them.
struct Survivors {
  std::vector<int32_t> members;
  uint64_t epoch = 0;
};

class Membership {
 public:
  using Send = std::function<void(int to, std::string message)>;  ///< index; best effort, in order
  Membership(MembershipConfig config, std::function<Report()> report, Send send);

  /// Local evidence. `suspects`: indexes thought lost. The first evidence starts the abort; later evidence is merged.
  void suspect(const Status& cause, const std::vector<int32_t>& suspects, int64_t now_ns);
  /// A peer's connection is gone (with the exact text). While nothing needs it this only marks the peer.
  void peerGone(int member, const Status& why, int64_t now_ns);
  void onMessage(int from, const void* data, size_t size, int64_t now_ns);
  void tick(int64_t now_ns);

  bool ending() const;                     ///< an abort is under way or decided: start nothing
  const std::optional<Verdict>& verdict() const;
  bool isGone(int member) const;
  const Status& goneReason(int member) const;

  /// After a verdict: ask to go on with whoever else asks. Result by survivors() or failure() before the deadline.
  void beginShrink(int64_t deadline_ns, int64_t now_ns);
  const std::optional<Survivors>& survivors() const;
  const Status& shrinkFailure() const;

  /// Next time tick() must be called, or INT64_MAX.
  int64_t nextTickNs() const;
};

}  // namespace jhetcc::control
