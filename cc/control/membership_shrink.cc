// SPDX-License-Identifier: Apache-2.0
// The second half of Membership: who goes on after a verdict. The leader need not ask for itself: it gathers for those
// who do.
#include <algorithm>
#include <limits>
#include <utility>

#include "control/decision.h"
#include "control/membership.h"
#include "control/membership_wire.h"

namespace jhetcc::control {

namespace {
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
}  // namespace

// A report says whether the member wants to go on, and for how long it will wait.
void Membership::makeShrinkDecision() {
  if (shrink_decision_) return;
  Decision::Hooks hooks;
  hooks.send = [this](int to, std::string message) { this->send(to, Channel::kShrink, message); };
  hooks.is_gone = [this](int member) { return isGone(member); };
  hooks.takes_part = [this](int member) { return !isOut(member); };
  hooks.report = [this] {
    Writer writer;
    writer.u64(joined_ ? static_cast<uint64_t>(std::max<int64_t>(join_deadline_ns_ - last_ns_, 1)) : 0);
    return writer.take();
  };
  hooks.on_report = [this](int from, std::string_view body, int64_t now_ns) {
    Reader reader(body);
    const auto left_ns = static_cast<int64_t>(std::min<uint64_t>(reader.u64(), kNever / 4));
    if (!reader.done()) return false;
    // Committed early enough that the news arrives before the member's own deadline.
    commit_by_ns_[static_cast<size_t>(from)] = left_ns ? now_ns + left_ns - std::min(2 * silence_ns_, left_ns / 2) : 0;
    return true;
  };
  hooks.is_complete = [this](int member) { return commit_by_ns_[static_cast<size_t>(member)] != 0; };
  hooks.is_doubtful = [](int) { return false; };
  hooks.gather_until = [this](int64_t lead_since_ns) {
    int64_t until = kNever;
    for (int member = 0; member < size_; ++member) {
      const int64_t by = commit_by_ns_[static_cast<size_t>(member)];
      if (by != 0 && !isGone(member) && !isOut(member)) until = std::min(until, by);
    }
    // A late take-over hears the others first: they may have decided already.
    return std::max(until, lead_since_ns + silence_ns_);
  };
  hooks.decide = [this](const std::vector<bool>& answered, int64_t) {
    std::vector<bool> members(static_cast<size_t>(size_));
    for (int member = 0; member < size_; ++member) {
      const auto i = static_cast<size_t>(member);
      members[i] = answered[i] && commit_by_ns_[i] != 0 && !isGone(member) && !isOut(member);
    }
    Writer writer;
    writer.bits(members);
    return writer.take();
  };
  hooks.is_valid = [this](std::string_view value) {
    Reader reader(value);
    (void)reader.bits(static_cast<size_t>(size_));
    return reader.done();
  };
  hooks.adopt = [this](const std::string& value) { adoptSurvivors(value); };
  shrink_decision_ = std::make_unique<Decision>(config_.self, size_, silence_ns_, std::move(hooks));
}

/// For good: asking again would end alike.
Status Membership::leftOut(const std::string& why) const {
  return Status(Kind::kDisconnected, Scope::kProcess, "shrink_left_out",
                "shrink() of \"" + config_.communicator + "\": " + why + "; init() again");
}

void Membership::finishShrink(Status failure) {
  joined_ = false;
  shrink_failure_ = std::move(failure);
  shrink_decision_->stop();
}

void Membership::adoptSurvivors(const std::string& value) {
  const std::vector<bool> members = Reader(value).bits(static_cast<size_t>(size_));
  Survivors survivors;
  for (int member = 0; member < size_; ++member) {
    if (members[static_cast<size_t>(member)]) survivors.members.push_back(member);
  }
  survivors.epoch = config_.epoch + 1;
  if (!members[static_cast<size_t>(config_.self)]) {
    shrink_failure_ = leftOut("this rank asked after the others had agreed; they go on without it");
  } else if (!joined_) {
    // Counted in, but its own deadline passed first. The new communicator's birth fails on the others, by its own
    // deadline.
    shrink_failure_ = leftOut("the agreement came after this rank's deadline; the others go on without this rank");
  } else if (survivors.members.size() == 1 && !(agreed_ && agreed_->confirmed)) {
    shrink_failure_ = leftOut("no other rank answered, so others may go on without this rank");
  } else {
    survivors_ = std::move(survivors);
  }
  joined_ = false;
}

void Membership::beginShrink(int64_t deadline_ns, int64_t now_ns) {
  noteTime(now_ns);
  if (joined_ || survivors_) return;
  if (!verdict_) {
    shrink_failure_ =
        Status(Kind::kBadArgument, Scope::kCall, "shrink_before_verdict",
               "shrink() of \"" + config_.communicator + "\", which has not ended; call it after an error");
    return;
  }
  if (isOut(config_.self)) {
    shrink_failure_ = leftOut("this rank was declared lost by the others, which go on without it");
    return;
  }
  if (shrink_decision_->hasValue()) return;  // decided without this member; shrinkFailure() says so already
  shrink_failure_ = Status();
  joined_ = true;
  join_deadline_ns_ = deadline_ns;
  int leader = config_.self;
  for (int member = size_ - 1; member >= 0; --member) {
    if (member == config_.self || (!isGone(member) && !isOut(member))) leader = member;
  }
  shrink_decision_->start(leader, false, now_ns);
}

}  // namespace jhetcc::control
