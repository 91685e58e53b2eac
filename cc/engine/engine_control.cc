// SPDX-License-Identifier: Apache-2.0
// How operations and communicators end: gone peers, deadlines, verdicts, wait cycles, goodbye.
#include <algorithm>

#include "base/log.h"
#include "engine/communicator.h"

namespace jhetcc::engine {
namespace {

using transport::FrameHeader;
using transport::FrameType;

constexpr int64_t kTickNs = 2 * kNsPerMs;
constexpr int64_t kDeviceLookNs = 100'000;
constexpr int64_t kRelayLookNs = 10 * kNsPerMs;
/// What a rank is in whose stream has not come to the call yet.
constexpr const char* kEarlierWork = "work queued on its stream before";
constexpr uint64_t kProbeCommunicator = 0;  ///< control frames between ranks, whatever the communicator

std::string seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", static_cast<double>(ns) / 1e9);
  return text;
}

// Both partners of a message know it by the same numbers.
uint64_t messageId(uint64_t communicator, int32_t from, int32_t to, uint32_t tag) {
  return hashNumber(tag, hashNumber(static_cast<uint64_t>(to), hashNumber(static_cast<uint64_t>(from), communicator)));
}

}  // namespace

void Engine::makeProbes() {
  control::ProbesConfig config;
  config.self = world_rank_;
  config.threshold_ns = options_.probe_after_ns;
  control::WaitProbes::Hooks hooks;
  hooks.send = [this](int32_t to, const std::string& message) {
    rail::Rail* rail = railOf(to);
    if (!rail) return;
    FrameHeader header;
    header.type = FrameType::kControl;
    header.communicator = kProbeCommunicator;
    header.length = message.size();
    rail->sendControl(header, message.data());
  };
  hooks.current = [this] { return blocked(); };
  hooks.has_started = [this](const control::Instance& instance) {
    auto found = communicators_.find(instance.communicator);
    if (found != communicators_.end()) return instance.sequence < found->second->next_sequence;
    auto messages = messages_started_.find(instance.communicator);
    return messages != messages_started_.end() && instance.sequence < messages->second;
  };
  probes_ = std::make_unique<control::WaitProbes>(config, hooks);
}

std::optional<control::BlockedOperation> Engine::blocked() const {
  if (!active_ || active_->withdrawn) return std::nullopt;
  const Communicator& communicator = *active_->communicator;
  const Command& command = active_->command();
  control::BlockedOperation blocked;
  blocked.text = active_->text() + " on \"" + communicator.spec.name + "\"";
  blocked.since_ns = active_->started_ns;
  if (!command.point_to_point) {
    blocked.instance = {communicator.spec.id, active_->sequence};
    blocked.members = communicator.spec.world_ranks;
    return blocked;
  }
  const bool receives =
      command.from >= 0 && (command.to < 0 || !active_->begun || active_->operation.needs(command.from));
  const int32_t self = communicator.spec.self;
  const int32_t partner = receives ? command.from : command.to;
  blocked.instance.communicator = receives ? messageId(communicator.spec.id, partner, self, command.tag)
                                           : messageId(communicator.spec.id, self, partner, command.tag);
  blocked.instance.sequence = receives ? active_->receive_sequence : active_->send_sequence;
  blocked.members = {communicator.spec.world_ranks[static_cast<size_t>(partner)]};
  return blocked;
}

void Engine::countMessages() {
  const Command& command = active_->command();
  const uint64_t id = active_->communicator->spec.id;
  const int32_t self = active_->communicator->spec.self;
  if (command.to >= 0) messages_started_[messageId(id, self, command.to, command.tag)] = active_->send_sequence + 1;
  if (command.from >= 0)
    messages_started_[messageId(id, command.from, self, command.tag)] = active_->receive_sequence + 1;
}

void Engine::makeMembership(Communicator& communicator) {
  control::MembershipConfig config;
  config.communicator = communicator.spec.name;
  config.epoch = communicator.spec.epoch;
  config.self = communicator.spec.self;
  config.world_ranks = communicator.spec.world_ranks;
  config.places = communicator.spec.places;
  config.gather_ns = options_.abort_gather_ns;
  config.confirm_ns = options_.abort_confirm_ns;
  Communicator* raw = &communicator;
  auto report = [this, raw] {
    control::Report report;
    report.started = raw->started;
    report.finished = raw->finished;
    report.operation = raw->last_text;
    if (active_ && active_->communicator != raw) {
      report.elsewhere = active_->text() + " on \"" + active_->communicator->spec.name + "\"";
    } else if (active_ && !active_->request.turn.isReached()) {
      report.elsewhere = kEarlierWork;
    }
    return report;
  };
  auto send = [this, raw](int member, const std::string& message) {
    rail::Rail* rail = railOf(raw->spec.world_ranks[static_cast<size_t>(member)]);
    if (!rail) return;
    FrameHeader header;
    header.type = FrameType::kControl;
    header.communicator = raw->spec.id;
    header.source = static_cast<uint32_t>(raw->spec.self);
    header.length = message.size();
    rail->sendControl(header, message.data());
  };
  communicator.membership = std::make_unique<control::Membership>(config, report, send);
}

control::Membership* Engine::membership(uint64_t id) {
  auto found = communicators_.find(id);
  return found == communicators_.end() ? nullptr : found->second->membership.get();
}

void Engine::onControl(Communicator& communicator, int from, const FrameHeader& header, const void* payload) {
  communicator.membership->onMessage(from, payload, header.length, clock_.nowNs());
}

void Engine::onProbe(int32_t from, const FrameHeader& header, const void* payload) {
  probes_->onMessage(from, payload, header.length, clock_.nowNs());
  if (!probes_->found().isOk()) next_tick_ns_ = 0;
}

void Engine::abortCommunicator(uint64_t id, const Status& cause, const std::vector<int32_t>& suspects) {
  auto found = communicators_.find(id);
  if (found == communicators_.end()) return;
  trace_.counters.add(trace::Counter::kAborts);
  note(trace::EventKind::kSuspected, *found->second, found->second->next_sequence, 0,
       static_cast<uint64_t>(cause.kind()));
  found->second->membership->suspect(cause, suspects, clock_.nowNs());
  next_tick_ns_ = 0;
}

void Engine::abortAll(const Status& cause) {
  for (auto& [id, communicator] : communicators_) abortCommunicator(id, cause, {});
}

void Engine::endAll(const Status& cause) {
  if (active_) {
    if (!active_->withdrawn) withdrawActive();
    finishActive(cause.withContext(active_->text()));
  }
  for (; !queue_.empty(); queue_.pop_front()) end(queue_.front(), cause.withContext(queue_.front().command->text));
}

void Engine::beginShrink(uint64_t id, int64_t deadline_ns) {
  control::Membership* membership = this->membership(id);
  if (membership) membership->beginShrink(deadline_ns, clock_.nowNs());
  next_tick_ns_ = 0;
}

void Engine::sayGoodbye(bool by_thirds_only) {
  for (auto& rail : rails_) {
    if (!by_thirds_only || !rail->isDirect()) rail->sayGoodbye();
  }
}

bool Engine::holdsThirds() const {
  const auto needsThird = [](const auto& rail) {
    const bool answers = rail->hearsGoodbyes() && rail->endpoint().wantsWrite();
    return !rail->isDirect() && (rail->hasUnacknowledged() || answers);
  };
  return (relays_ && (relays_->isNeeded() || relays_->hasOutput())) ||
         std::any_of(rails_.begin(), rails_.end(), needsThird);
}

bool Engine::hasUnacknowledged() const {
  return std::any_of(rails_.begin(), rails_.end(), [](const auto& rail) { return rail->hasUnacknowledged(); });
}

int32_t Engine::firstGoneNeeded() const {
  const Communicator& communicator = *active_->communicator;
  const Command& command = active_->command();
  if (command.point_to_point) {
    for (int32_t partner : {command.to, command.from}) {
      if (partner >= 0 && communicator.membership->isGone(partner)) return partner;
    }
    return -1;
  }
  for (size_t member = 0; member < communicator.spec.world_ranks.size(); ++member) {
    if (communicator.membership->isGone(static_cast<int>(member))) return static_cast<int32_t>(member);
  }
  return -1;
}

void Engine::onRailBroken(rail::Rail& rail) {
  if (relays_) relays_->onRailBroken(rail.peer(), rail.brokenStatus().code() == "left");
  for (auto& [id, communicator] : communicators_) {
    auto member = communicator->member_of.find(rail.peer());
    if (member == communicator->member_of.end()) continue;
    communicator->membership->peerGone(member->second, rail.brokenStatus(), clock_.nowNs());
    const bool is_active =
        active_ && active_->communicator == communicator.get() && active_->begun && !active_->withdrawn;
    if (is_active && active_->operation.needs(member->second, rail.brokenStatus().code() == "left")) {
      abortCommunicator(id, rail.brokenStatus().withContext(active_->text()), {member->second});
    }
  }
  for (auto& communicator : retired_) {
    auto member = communicator->member_of.find(rail.peer());
    if (member != communicator->member_of.end()) {
      communicator->membership->peerGone(member->second, rail.brokenStatus(), clock_.nowNs());
    }
  }
  next_tick_ns_ = 0;
}

void Engine::tick(int64_t now_ns) {
  next_tick_ns_ = now_ns + kTickNs;
  for (auto& [id, communicator] : communicators_) communicator->membership->tick(now_ns);
  for (auto& communicator : retired_) communicator->membership->tick(now_ns);
  if (relays_ && now_ns >= next_relay_look_ns_) {
    next_relay_look_ns_ = now_ns + kRelayLookNs;
    relays_->look();
  }
  if (!active_ || active_->withdrawn) return;
  probes_->tick(now_ns);
  if (!probes_->found().isOk() && blocked() && probes_->foundInstance() == blocked()->instance) {
    abortCommunicator(active_->communicator->spec.id, probes_->found(), {});
    return;
  }
  const int64_t waited = now_ns - active_->started_ns;
  if (options_.operation_timeout_ns != INT64_MAX && waited > options_.operation_timeout_ns) {
    std::string what;
    if (!active_->command().ready.load(std::memory_order_acquire)) {
      what = " (its schedule was still being planned)";
    } else if (!active_->request.turn.isReached()) {
      what = std::string(" (while in ") + kEarlierWork + ")";
    }
    abortCommunicator(active_->communicator->spec.id,
                      Status(Kind::kTimeout, Scope::kCommunicator, "operation_timeout",
                             active_->text() + what +
                                 " waited longer than operation_timeout = " + seconds(options_.operation_timeout_ns)),
                      active_->begun ? active_->operation.waitingFor() : std::vector<int32_t>{});
    return;
  }
  if (options_.warn_after_ns != INT64_MAX && now_ns - active_->warned_ns > options_.warn_after_ns) warn(now_ns);
}

void Engine::warn(int64_t now_ns) {
  active_->warned_ns = now_ns;
  std::string missing;
  const std::optional<Activity> waiting = activity();
  for (int32_t rank : waiting->waiting_for) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
  JHETCC_LOG(kWarn, "engine",
             "rank " + std::to_string(world_rank_) + " has waited " + seconds(now_ns - active_->started_ns) + " in " +
                 active_->text() + " on \"" + active_->communicator->spec.name + "\" for rank(s) [" + missing +
                 "]; it gives up after operation_timeout");
  active_->warned = true;
}

int64_t Engine::nextWakeNs() const {
  if (next_tick_ns_ == 0) return clock_.nowNs();
  int64_t next = INT64_MAX;
  for (const auto& [id, communicator] : communicators_) next = std::min(next, communicator->membership->nextTickNs());
  for (const auto& communicator : retired_) next = std::min(next, communicator->membership->nextTickNs());
  if (!active_ || active_->withdrawn) return next;
  // Nothing wakes us when a stream moves on: a callback a copy would cost more than looking.
  if (!active_->request.turn.isReached() || (lane_ && lane_->isBusy()))
    next = std::min(next, clock_.nowNs() + kDeviceLookNs);
  next = std::min(next, probes_->nextTickNs());
  if (options_.operation_timeout_ns != INT64_MAX)
    next = std::min(next, active_->started_ns + options_.operation_timeout_ns);
  if (options_.warn_after_ns != INT64_MAX) next = std::min(next, active_->warned_ns + options_.warn_after_ns);
  return next;
}

}  // namespace jhetcc::engine
