// SPDX-License-Identifier: Apache-2.0
#include "control/membership.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "control/decision.h"
#include "control/membership_verdict.h"
#include "control/membership_wire.h"

namespace jhetcc::control {

namespace {
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr uint8_t kMagic = 0x4d;
// Eight silences fit into confirm_ns: a dead decider costs one, gathering gets what is left, two are for the last
// messages.
constexpr int64_t kSilencesPerConfirm = 8;
constexpr int kStallsMax = 4;  // forgiven; a process that is stopped all the time must end too
}  // namespace

Membership::Membership(MembershipConfig config, std::function<Report()> report, Send send)
    : config_(std::move(config)),
      size_(static_cast<int>(config_.world_ranks.size())),
      silence_ns_(std::max<int64_t>(config_.confirm_ns / kSilencesPerConfirm, 1)),
      report_(std::move(report)),
      send_(std::move(send)),
      suspects_(static_cast<size_t>(size_)),
      accused_(static_cast<size_t>(size_)),
      gone_reasons_(static_cast<size_t>(size_)),
      evidence_(static_cast<size_t>(size_)),
      reminded_(static_cast<size_t>(size_)),
      commit_by_ns_(static_cast<size_t>(size_)) {
  JHETCC_CHECK(config_.self >= 0 && config_.self < size_ && config_.places.size() == config_.world_ranks.size(),
               std::to_string(config_.self) + " of " + std::to_string(size_));
  makeVerdictDecision();
}

Membership::~Membership() = default;

void Membership::makeVerdictDecision() {
  Decision::Hooks hooks;
  hooks.send = [this](int to, std::string message) { this->send(to, Channel::kVerdict, message); };
  hooks.is_gone = [this](int member) { return isGone(member); };
  hooks.takes_part = [](int) { return true; };
  hooks.report = [this] { return evidence(); };
  hooks.on_report = [this](int from, std::string_view body, int64_t) {
    auto evidence = decodeEvidence(body, static_cast<size_t>(size_));
    if (!evidence) return false;
    auto& known = evidence_[static_cast<size_t>(from)];
    if (known && evidence->cause.isOk()) evidence->cause = known->cause;
    known = std::move(evidence);
    return true;
  };
  hooks.is_complete = [](int) { return true; };
  hooks.is_doubtful = [this](int member) { return isDoubtful(member); };
  hooks.gather_until = [this](int64_t lead_since_ns) {
    const int64_t in_time = ending_since_ns_ + config_.confirm_ns - 2 * silence_ns_;
    return std::max(lead_since_ns + silence_ns_, std::min(lead_since_ns + config_.gather_ns, in_time));
  };
  hooks.decide = [this](const std::vector<bool>& answered, int64_t gathered_ns) {
    evidence_[static_cast<size_t>(config_.self)] = decodeEvidence(evidence(), static_cast<size_t>(size_));
    const Verdict verdict = composeVerdict({config_, evidence_, answered, gone_reasons_, gathered_ns});
    return encodeVerdict(verdict, static_cast<size_t>(size_));
  };
  hooks.is_valid = [this](std::string_view value) {
    return decodeVerdict(value, static_cast<size_t>(size_)).has_value();
  };
  hooks.adopt = [this](const std::string& value) { adoptVerdict(value); };
  verdict_decision_ = std::make_unique<Decision>(config_.self, size_, silence_ns_, std::move(hooks));
}

bool Membership::isGone(int member) const { return !gone_reasons_[static_cast<size_t>(member)].isOk(); }

bool Membership::isOut(int member) const {
  return agreed_ && agreed_->confirmed &&
         std::find(agreed_->lost.begin(), agreed_->lost.end(), member) != agreed_->lost.end();
}

bool Membership::isDoubtful(int member) const {
  const auto i = static_cast<size_t>(member);
  return std::any_of(evidence_.begin(), evidence_.end(),
                     [&](const auto& known) { return known && (known->gone[i] || known->accused[i]); });
}

int Membership::firstDecider() const {
  for (int member = 0; member < size_; ++member) {
    if (member == config_.self || (!isGone(member) && !suspects_[static_cast<size_t>(member)])) return member;
  }
  return config_.self;
}

std::string Membership::evidence() {
  Evidence evidence{report_(), cause_, accused_, std::vector<bool>(static_cast<size_t>(size_)), {}};
  for (int member = 0; member < size_; ++member) {
    if (!isGone(member)) continue;
    evidence.gone[static_cast<size_t>(member)] = true;
    evidence.reasons.push_back(goneReason(member).message());
  }
  return encodeEvidence(evidence);
}

void Membership::send(int to, Channel channel, const std::string& body) {
  Writer writer;
  writer.u8(kMagic);
  writer.u8(static_cast<uint8_t>(channel));
  writer.u64(config_.epoch);
  std::string message = writer.take() + body;
  JHETCC_CHECK(message.size() <= kMessageBytesMax, std::to_string(message.size()));
  send_(to, std::move(message));
}

// Timers measure time in which this process ran. Where ticks are overdue it was stopped, and what the others sent
// meanwhile waits unread: everything is put off, so that it is read before anybody is called silent.
void Membership::noteTime(int64_t now_ns) {
  const int64_t due = std::max(last_ns_, std::min(nextTickNs(), now_ns));
  const int64_t late = now_ns - due;
  last_ns_ = std::max(last_ns_, now_ns);
  if (!ending_ || late <= silence_ns_ / 2 || stalls_ >= kStallsMax) return;
  ++stalls_;
  const int64_t by = late + silence_ns_ / 2;
  ending_since_ns_ += by;
  verdict_decision_->shift(by);
  if (shrink_decision_) shrink_decision_->shift(by);
}

void Membership::beginEnding(bool tell_all, int64_t now_ns) {
  if (ending_) return;
  ending_ = true;
  ending_since_ns_ = now_ns;
  verdict_decision_->start(firstDecider(), tell_all, now_ns);
}

void Membership::suspect(const Status& cause, const std::vector<int32_t>& suspects, int64_t now_ns) {
  noteTime(now_ns);
  if (verdict_ || cause.isOk()) return;
  bool changed = false;
  for (const int32_t member : suspects) {
    if (!isMember(member) || member == config_.self) continue;
    const auto i = static_cast<size_t>(member);
    changed |= !suspects_[i] || (isLoss(cause) && !accused_[i]);
    suspects_[i] = true;
    accused_[i] = accused_[i] || isLoss(cause);
  }
  if (cause_.isOk() || causeOrder(cause) < causeOrder(cause_)) {
    cause_ = cause;
    changed = true;
  }
  if (!ending_) {
    beginEnding(true, now_ns);
  } else if (changed) {
    verdict_decision_->refresh(now_ns);
  }
}

void Membership::peerGone(int member, const Status& why, int64_t now_ns) {
  noteTime(now_ns);
  if (!isMember(member) || member == config_.self || isGone(member)) return;
  gone_reasons_[static_cast<size_t>(member)] =
      why.isOk() ? Status(Kind::kDisconnected, Scope::kEndpoint, "peer_lost", "its connection ended") : why;
  if (ending_) {
    verdict_decision_->refresh(now_ns);
    verdict_decision_->onGone(member, now_ns);
  }
  if (shrink_decision_) shrink_decision_->onGone(member, now_ns);
}

void Membership::onMessage(int from, const void* data, size_t size, int64_t now_ns) {
  noteTime(now_ns);
  Reader reader(std::string_view(static_cast<const char*>(data), size));
  const uint8_t magic = reader.u8();
  const auto channel = static_cast<Channel>(reader.u8());
  const uint64_t epoch = reader.u64();
  const std::string_view body = reader.rest();
  if (!isMember(from) || from == config_.self || size > kMessageBytesMax || !reader.ok() || magic != kMagic) {
    ++malformed_;
    return;
  }
  if (epoch != config_.epoch) return;  // late, from another life of this communicator
  bool understood = true;
  if (channel == Channel::kVerdict) {
    if (!ending_) ending_since_ns_ = now_ns;  // the decision's limits count from the first word of it
    understood = verdict_decision_->onMessage(from, body, now_ns);
    if (understood) beginEnding(false, now_ns);
  } else if (channel == Channel::kShrink) {
    if (!shrink_decision_) return;  // no verdict here yet; the sender repeats itself
    if (isOut(from)) {
      send(from, Channel::kOut, {});
    } else {
      understood = shrink_decision_->onMessage(from, body, now_ns);
    }
  } else if (channel == Channel::kOut && body.empty()) {
    if (joined_ && !survivors_) {
      finishShrink(Status(Kind::kDisconnected, Scope::kProcess, "shrink_left_out",
                          "shrink() of \"" + config_.communicator +
                              "\": the other ranks had declared this rank lost and go on "
                              "without it; init() again"));
    }
  } else {
    understood = false;
  }
  if (!understood) ++malformed_;
}

void Membership::adoptVerdict(const std::string& value) {
  agreed_ = decodeVerdict(value, static_cast<size_t>(size_));
  ending_ = true;
  if (!verdict_) {
    verdict_ = agreed_;
    if (isOut(config_.self)) verdict_->status = givenUpStatus(config_, agreed_->status);
  }
  makeShrinkDecision();
}

// Nobody fixed a verdict in time: what this member knows itself, marked so. A verdict that comes later only serves
// shrink().
void Membership::giveUp() {
  Verdict verdict;
  Status cause = cause_;
  for (const auto& known : evidence_) {
    if (!known || known->cause.isOk()) continue;
    if (cause.isOk() || causeOrder(known->cause) < causeOrder(cause)) cause = known->cause;
  }
  if (cause.isOk())
    cause = Status(Kind::kDisconnected, Scope::kRank, "peer_lost", "another rank ended the communicator");
  verdict.status = unconfirmedStatus(config_, cause);
  for (int member = 0; member < size_; ++member) {
    if (isGone(member)) verdict.lost.push_back(member);
  }
  verdict_ = std::move(verdict);
  makeShrinkDecision();
}

void Membership::remind(int member) {
  if (!isMember(member) || member == config_.self || !agreed_ || reminded_[static_cast<size_t>(member)]) return;
  reminded_[static_cast<size_t>(member)] = true;
  verdict_decision_->tell(member);
}

void Membership::tick(int64_t now_ns) {
  noteTime(now_ns);
  if (ending_) verdict_decision_->tick(now_ns);
  if (ending_ && !verdict_ && now_ns >= ending_since_ns_ + config_.confirm_ns) giveUp();
  if (shrink_decision_) shrink_decision_->tick(now_ns);
  if (joined_ && !survivors_ && shrink_failure_.isOk() && now_ns >= join_deadline_ns_) {
    finishShrink(Status(Kind::kTimeout, Scope::kCommunicator, "shrink_failed",
                        "shrink() of \"" + config_.communicator +
                            "\": no agreement on who goes on before the deadline; call it "
                            "again on every remaining rank, or init() again"));
    shrink_decision_->refresh(now_ns);  // whoever leads must not count on this member any more
  }
}

int64_t Membership::nextTickNs() const {
  int64_t next = kNever;
  if (ending_) next = verdict_decision_->nextTickNs();
  if (ending_ && !verdict_) next = std::min(next, ending_since_ns_ + config_.confirm_ns);
  if (shrink_decision_) next = std::min(next, shrink_decision_->nextTickNs());
  if (joined_ && !survivors_ && shrink_failure_.isOk()) next = std::min(next, join_deadline_ns_);
  return next;
}

}  // namespace jhetcc::control
