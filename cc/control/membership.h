// SPDX-License-Identifier: Apache-2.0
// How one communicator ends, seen from one of its members: suspicion, reports, one verdict for all; then shrink.
// Passive: fed with events and time, asked for messages. No I/O, no threads, so the simulator can play it by the
// hundred.
//
// Abort: any evidence is told to all with a Report; whoever hears it stops starting operations and reports to the
// decider (lowest index not suspected), which fixes one verdict. Shrink: members that ask are gathered the same way.
// Both are one Decision each; what is guaranteed when deciders die, stall or race is written and argued in decision.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace jhetcc::control {

class Decision;
struct Evidence;

/// What a member did last; the verdict quotes every member's.
struct Report {
  uint64_t started = 0;   ///< operations started on this communicator
  uint64_t finished = 0;  ///< operations finished
  std::string operation;  ///< text of the last one started, e.g. "#12 psum(f32[8,4])"; empty before the first
  std::string elsewhere;  ///< what this rank is in instead, if anything: an operation on another communicator, ...
};

struct MembershipConfig {
  std::string communicator;  ///< name, for texts
  uint64_t epoch = 0;        ///< of this communicator; survivors get epoch + 1; messages of others change nothing
  int self = 0;              ///< my index within the communicator
  std::vector<int32_t> world_ranks;    ///< index -> world rank
  std::vector<std::string> places;     ///< index -> "host:pid", for texts
  int64_t gather_ns = 1'000'000'000;   ///< the decider waits this long for reports
  int64_t confirm_ns = 2'000'000'000;  ///< without a verdict by then, the cause is raised as unconfirmed
};

/// The end of a communicator. Equal on all members that hold a confirmed one.
struct Verdict {
  Status status;              ///< the error every operation of the communicator ends with
  std::vector<int32_t> lost;  ///< indexes that are gone or silent; empty after a mismatch or a user's abort
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
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  /// Local evidence. `suspects`: indexes thought lost. The first evidence starts the abort; later evidence is merged.
  /// Codes of causes with a text of their own: peer_lost, left, operation_timeout, mismatch, wait_cycle, aborted; any
  /// other is a failure of this member. Of several causes the one nearer to the root names the verdict, in the order
  /// mismatch, wait_cycle, aborted, failure, peer_lost, left, operation_timeout,
  /// offer_revoked (a symptom of another's cause).
  void suspect(const Status& cause, const std::vector<int32_t>& suspects, int64_t now_ns);
  /// A peer's connection is gone (with the exact text). While nothing needs it this only marks the peer.
  void peerGone(int member, const Status& why, int64_t now_ns);
  void onMessage(int from, const void* data, size_t size, int64_t now_ns);
  void tick(int64_t now_ns);

  bool ending() const { return ending_; }  ///< an abort is under way or decided: start nothing
  /// Set once, then kept. Unconfirmed where the others did not answer in time.
  const std::optional<Verdict>& verdict() const { return verdict_; }
  bool isGone(int member) const;
  const Status& goneReason(int member) const { return gone_reasons_[static_cast<size_t>(member)]; }
  /// Tells a member that still talks on this ended communicator what the verdict was. Nothing before there is one.
  void remind(int member);

  /// After a verdict: ask to go on with whoever else asks. Result by survivors() or shrinkFailure() before the
  /// deadline. May be called again after a failure by deadline.
  void beginShrink(int64_t deadline_ns, int64_t now_ns);
  const std::optional<Survivors>& survivors() const { return survivors_; }
  const Status& shrinkFailure() const { return shrink_failure_; }

  /// Next time tick() must be called, or INT64_MAX.
  int64_t nextTickNs() const;
  /// Messages that were not understood; they change nothing.
  uint64_t malformed() const { return malformed_; }

 private:
  enum class Channel : uint8_t { kVerdict = 1, kShrink, kOut };
  bool isMember(int member) const { return member >= 0 && member < size_; }
  bool isOut(int member) const;  ///< lost by a confirmed verdict
  bool isDoubtful(int member) const;
  int firstDecider() const;
  std::string evidence();
  void send(int to, Channel channel, const std::string& body);
  void makeVerdictDecision();
  void makeShrinkDecision();
  void beginEnding(bool tell_all, int64_t now_ns);
  void noteTime(int64_t now_ns);
  void adoptVerdict(const std::string& value);
  void giveUp();
  Status leftOut(const std::string& why) const;
  void finishShrink(Status failure);
  void adoptSurvivors(const std::string& value);

  const MembershipConfig config_;
  const int size_;
  const int64_t silence_ns_;  ///< a decider that says nothing for so long is passed over
  const std::function<Report()> report_;
  const Send send_;
  std::unique_ptr<Decision> verdict_decision_, shrink_decision_;

  bool ending_ = false;
  int64_t ending_since_ns_ = 0, last_ns_ = 0;
  int stalls_ = 0;
  Status cause_;
  std::vector<bool> suspects_;  ///< all, whatever the cause; none of them decides first
  std::vector<bool> accused_;   ///< of them, those whose connection is said to have broken
  std::vector<Status> gone_reasons_;
  std::vector<std::optional<Evidence>> evidence_;
  std::vector<bool> reminded_;
  std::optional<Verdict> verdict_;  ///< what this member raises
  std::optional<Verdict>
      agreed_;  ///< what was decided; differs from verdict_ only where that is unconfirmed or names me lost

  bool joined_ = false;
  int64_t join_deadline_ns_ = 0;
  std::vector<int64_t> commit_by_ns_;  ///< by index; 0: has not asked to go on
  std::optional<Survivors> survivors_;
  Status shrink_failure_;
  uint64_t malformed_ = 0;
};

}  // namespace jhetcc::control
