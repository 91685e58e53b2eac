// SPDX-License-Identifier: Apache-2.0
#include "control/decision.h"

#include <algorithm>

#include "control/membership_wire.h"

namespace jhetcc::control {

namespace {
constexpr uint32_t kBallotMax = 1u << 20;  // far beyond any job's; a wild number must not end all take-overs
}

Decision::Decision(int self, int size, int64_t silence_ns, Hooks hooks)
    : self_(self), size_(size), silence_ns_(silence_ns), hooks_(std::move(hooks)), silent_(static_cast<size_t>(size)) {}

void Decision::send(int to, Type type, uint32_t ballot, uint32_t value_ballot, std::string_view body) {
  if (to == self_ || hooks_.is_gone(to)) return;
  Writer writer;
  writer.u8(static_cast<uint8_t>(type));
  writer.u32(ballot);
  writer.u32(value_ballot);
  std::string message = writer.take();
  message += body;
  hooks_.send(to, std::move(message));
}

// A report carries the accepted value if there is one (the leader then proposes that), else the contribution.
void Decision::sendReport(int to) {
  send(to, Type::kReport, promised_, accepted_ballot_, accepted_ballot_ ? accepted_ : hooks_.report());
}

void Decision::start(int first_leader, bool tell_all, int64_t now_ns) {
  if (has_value_ || waiting_) return;
  waiting_ = true;
  heard_ns_ = now_ns;
  repeated_ = false;
  const uint32_t first = static_cast<uint32_t>(first_leader);
  const bool fresh = !has_promise_ || first > promised_;
  if (fresh) {
    has_promise_ = true;
    promised_ = first;
    leading_ = proposed_ = false;
  }
  if (tell_all) {
    for (int member = 0; member < size_; ++member) sendReport(member);
  } else if (leaderOf(promised_) != self_) {
    sendReport(leaderOf(promised_));
  }
  if (leaderOf(promised_) != self_) {
    if (hooks_.is_gone(leaderOf(promised_)) || !hooks_.takes_part(leaderOf(promised_))) nextBallot(now_ns);
  } else if (leading_) {
    refresh(now_ns);
  } else {
    lead(now_ns);
  }
}

void Decision::refresh(int64_t now_ns) {
  if (has_value_) return;
  if (leading_) {
    hooks_.on_report(self_, hooks_.report(), now_ns);
    tryPropose(now_ns);
  } else if (has_promise_) {
    sendReport(leaderOf(promised_));
  }
}

void Decision::promise(uint32_t ballot, int64_t now_ns) {
  has_promise_ = true;
  promised_ = ballot;
  leading_ = proposed_ = false;
  heard_ns_ = now_ns;
  repeated_ = false;
  if (has_value_) return;
  if (leaderOf(ballot) == self_) {
    lead(now_ns);
  } else if (waiting_) {
    sendReport(leaderOf(ballot));
  }
}

void Decision::nextBallot(int64_t now_ns) {
  uint32_t ballot = promised_ + 1;
  while (leaderOf(ballot) != self_) {
    const int leader = leaderOf(ballot);
    if (hooks_.takes_part(leader) && !hooks_.is_gone(leader) && !silent_[static_cast<size_t>(leader)]) break;
    ++ballot;
  }
  promise(ballot, now_ns);
}

void Decision::ownBallot(int64_t now_ns) {
  uint32_t ballot = promised_ + 1;
  while (leaderOf(ballot) != self_) ++ballot;
  promise(ballot, now_ns);
}

void Decision::lead(int64_t now_ns) {
  leading_ = true;
  proposed_ = false;
  answered_.assign(static_cast<size_t>(size_), false);
  acknowledged_.assign(static_cast<size_t>(size_), false);
  answered_[static_cast<size_t>(self_)] = acknowledged_[static_cast<size_t>(self_)] = true;
  hooks_.on_report(self_, hooks_.report(), now_ns);
  lead_since_ns_ = now_ns;
  beat(now_ns);
  tryPropose(now_ns);
}

void Decision::beat(int64_t now_ns) {
  if (!waiting_ && !proposed_ && hooks_.gather_until(lead_since_ns_) == std::numeric_limits<int64_t>::max()) {
    leading_ = false;  // nobody waits for a value any more; the next report takes the lead up again
    return;
  }
  beat_ns_ = now_ns + silence_ns_ / 3;
  for (int member = 0; member < size_; ++member) {
    const bool ask = !proposed_ && !answered_[static_cast<size_t>(member)];
    if (hooks_.takes_part(member)) send(member, Type::kGather, promised_, ask ? 1 : 0, {});
  }
}

bool Decision::isWaitedFor(int member) const { return hooks_.takes_part(member) && !hooks_.is_gone(member); }

void Decision::tryPropose(int64_t now_ns) {
  if (!leading_ || proposed_ || has_value_) return;
  // With an accepted value in hand only others' accepted values matter: nobody is waited for to complete its
  // contribution, and not again who was silent for long already.
  const bool is_fixed = accepted_ballot_ != 0;
  bool missing = false, worth_waiting = false;
  for (int member = 0; member < size_; ++member) {
    const auto i = static_cast<size_t>(member);
    if (!isWaitedFor(member) || (answered_[i] && hooks_.is_complete(member))) continue;
    if (is_fixed && (answered_[i] || silent_[i])) continue;
    missing = true;
    worth_waiting |= !hooks_.is_doubtful(member) || now_ns < lead_since_ns_ + silence_ns_;
  }
  if (missing && worth_waiting && now_ns < hooks_.gather_until(lead_since_ns_)) return;
  if (accepted_ballot_ == 0) accepted_ = hooks_.decide(answered_, now_ns - lead_since_ns_);
  accepted_ballot_ = promised_ + 1;
  proposed_ = true;
  proposed_ns_ = now_ns;
  for (int member = 0; member < size_; ++member) send(member, Type::kPropose, promised_, accepted_ballot_, accepted_);
  tryShow();
}

void Decision::tryShow() {
  if (!leading_ || !proposed_ || has_value_) return;
  for (int member = 0; member < size_; ++member) {
    const auto i = static_cast<size_t>(member);
    if (isWaitedFor(member) && answered_[i] && !acknowledged_[i]) return;
  }
  take(promised_, std::string(accepted_));
}

void Decision::take(uint32_t ballot, std::string_view value) {
  const bool was_leading = leading_;
  accepted_ = std::string(value);
  accepted_ballot_ = ballot + 1;
  has_value_ = true;
  leading_ = proposed_ = false;
  hooks_.adopt(accepted_);
  for (int member = 0; was_leading && member < size_; ++member) tell(member);
}

void Decision::tell(int member) {
  if (has_value_) send(member, Type::kKnown, accepted_ballot_ - 1, accepted_ballot_, accepted_);
}

void Decision::onGone(int member, int64_t now_ns) {
  if (has_value_) return;
  if (leading_) {
    tryPropose(now_ns);
    tryShow();
  } else if (waiting_ && has_promise_ && leaderOf(promised_) == member) {
    nextBallot(now_ns);
  }
}

void Decision::onReport(int from, uint32_t ballot, uint32_t accepted_ballot, std::string_view body, int64_t now_ns) {
  if (has_value_) {
    promised_ = std::max(promised_, ballot);
    tell(from);
    return;
  }
  if (!has_promise_ || ballot > promised_) promise(ballot, now_ns);
  if (has_value_) return;
  if (ballot < promised_) {
    if (leaderOf(ballot) == self_) sendReport(from);  // it took this member for the leader; tell it who is
    return;
  }
  if (!leading_ && leaderOf(ballot) == self_) lead(now_ns);
  if (!leading_ || has_value_) return;
  if (proposed_) return;  // too late for this ballot: it is told the value, and is not waited for
  // A value that came here in somebody's report was accepted by it: among several the highest ballot counts.
  if (accepted_ballot > accepted_ballot_) {
    accepted_ballot_ = accepted_ballot;
    accepted_ = std::string(body);
  }
  answered_[static_cast<size_t>(from)] = true;
  tryPropose(now_ns);
}

void Decision::onPropose(int from, uint32_t ballot, std::string_view value, int64_t now_ns) {
  if (has_value_) {
    tell(from);
    return;
  }
  if (has_promise_ && ballot < promised_) {
    sendReport(from);
    return;
  }
  if (!has_promise_ || ballot > promised_) {
    has_promise_ = true;
    promised_ = ballot;
    leading_ = proposed_ = false;
    heard_ns_ = now_ns;
    repeated_ = false;
  }
  accepted_ = std::string(value);
  accepted_ballot_ = ballot + 1;
  send(from, Type::kAck, ballot, 0, {});
}

bool Decision::onMessage(int from, std::string_view message, int64_t now_ns) {
  Reader reader(message);
  const auto type = static_cast<Type>(reader.u8());
  const uint32_t ballot = reader.u32();
  const uint32_t extra = reader.u32();
  const std::string_view body = reader.rest();
  if (!reader.ok() || ballot > kBallotMax || extra > kBallotMax + 1) return false;
  const bool by_leader = leaderOf(ballot) == from;
  switch (type) {
    case Type::kReport:
      if (extra != 0 ? !hooks_.is_valid(body) : !hooks_.on_report(from, body, now_ns)) return false;
      break;
    case Type::kGather:
      if (!by_leader || !body.empty()) return false;
      break;
    case Type::kPropose:
      if (!by_leader || !hooks_.is_valid(body)) return false;
      break;
    case Type::kKnown:
      if (!hooks_.is_valid(body)) return false;
      break;
    case Type::kAck:
      if (!body.empty()) return false;
      break;
    default:
      return false;
  }
  silent_[static_cast<size_t>(from)] = false;
  if (has_promise_ && leaderOf(promised_) == from) heard_ns_ = now_ns;
  if (type == Type::kReport) {
    onReport(from, ballot, extra, body, now_ns);
  } else if (type == Type::kPropose) {
    onPropose(from, ballot, body, now_ns);
  } else if (type == Type::kGather) {
    if (has_value_) {
      tell(from);
      return true;
    }
    const bool higher = !has_promise_ || ballot > promised_;
    if (higher) promise(ballot, now_ns);
    // promise() has reported already where this member waits and holds no value.
    const bool reported = higher && waiting_;
    if (!reported && (extra != 0 || higher || ballot < promised_)) sendReport(from);
  } else if (type == Type::kKnown) {
    if (!has_value_) take(ballot, body);
  } else if (leading_ && proposed_ && ballot == promised_) {
    acknowledged_[static_cast<size_t>(from)] = true;
    tryShow();
  }
  return true;
}

void Decision::tick(int64_t now_ns) {
  if (has_value_) return;
  if (leading_) {
    // Somebody reported and then fell silent: once more without it, with the same value.
    if (proposed_ && now_ns >= proposed_ns_ + silence_ns_) {
      for (size_t i = 0; i < silent_.size(); ++i) silent_[i] = silent_[i] || (answered_[i] && !acknowledged_[i]);
      return ownBallot(now_ns);
    }
    if (now_ns >= beat_ns_) beat(now_ns);
    tryPropose(now_ns);
  } else if (waiting_ && now_ns >= heard_ns_ + silence_ns_) {
    silent_[static_cast<size_t>(leaderOf(promised_))] = true;
    nextBallot(now_ns);
  } else if (waiting_ && !repeated_ && now_ns >= heard_ns_ + silence_ns_ / 2) {
    repeated_ = true;
    sendReport(leaderOf(promised_));
  }
}

int64_t Decision::nextTickNs() const {
  if (has_value_) return std::numeric_limits<int64_t>::max();
  if (leading_) {
    if (proposed_) return std::min(beat_ns_, proposed_ns_ + silence_ns_);
    return std::min(beat_ns_, hooks_.gather_until(lead_since_ns_));
  }
  if (!waiting_) return std::numeric_limits<int64_t>::max();
  return heard_ns_ + (repeated_ ? silence_ns_ : silence_ns_ / 2);
}

void Decision::shift(int64_t ns) {
  lead_since_ns_ += ns;
  beat_ns_ += ns;
  proposed_ns_ += ns;
  heard_ns_ += ns;
}

}  // namespace jhetcc::control
