// SPDX-License-Identifier: Apache-2.0
// The engine's heart: starting, advancing and finishing operations, and routing what the rails bring.
// How a communicator ends is in engine_control.cc.
#include "engine/engine.h"

#include <algorithm>

#include "base/log.h"
#include "engine/communicator.h"

namespace jhetcc::engine {
namespace {

using transport::FrameHeader;
using transport::FrameType;

constexpr size_t kUnknownFramesMax = 16384;
constexpr size_t kRetiredMax = 8;

// The part of a send's or recv's text that both sides must agree on: "f32[8]" of "send(f32[8], to=1, tag=0)".
std::string_view messageType(std::string_view text) {
  const size_t open = text.find('(');
  if (open == std::string_view::npos) return text;
  const size_t end = std::min(text.find(", ", open), text.rfind(')'));
  return text.substr(open + 1, end - open - 1);
}

Status closedStatus(const std::string& text) {
  return Status(Kind::kAborted, Scope::kCommunicator, "closed",
                text + ": this communicator was closed or replaced by shrink(); use the new one");
}

}  // namespace

Engine::Engine(int32_t world_rank, const EngineOptions& options, const Clock& clock, trace::Trace& trace)
    : world_rank_(world_rank), options_(options), clock_(clock), trace_(trace), active_storage_(new Active) {
  active_storage_->engine = this;
  makeProbes();
}

Engine::~Engine() = default;

void Engine::addRail(std::unique_ptr<rail::Rail> rail) {
  rail_of_[rail->peer()] = rail.get();
  sinks_.push_back(std::make_unique<RailSink>(this, rail.get()));
  rails_.push_back(std::move(rail));
}

rail::Rail* Engine::railOf(int32_t world_rank) {
  auto found = rail_of_.find(world_rank);
  return found == rail_of_.end() ? nullptr : found->second;
}

void Engine::createCommunicator(const CommunicatorSpec& spec) {
  auto communicator = std::make_unique<Communicator>();
  Communicator* raw = communicator.get();
  raw->spec = spec;
  for (size_t i = 0; i < spec.world_ranks.size(); ++i) raw->member_of[spec.world_ranks[i]] = static_cast<int32_t>(i);
  makeMembership(*raw);
  communicators_[spec.id] = std::move(communicator);
  for (auto& rail : rails_) {
    auto member = raw->member_of.find(rail->peer());
    if (member != raw->member_of.end() && rail->isBroken()) {
      raw->membership->peerGone(member->second, rail->brokenStatus(), clock_.nowNs());
    }
  }
  std::deque<Parked*> waiting;
  waiting.swap(unknown_);
  for (Parked* parked : waiting) {
    if (parked->header.communicator != spec.id) {
      unknown_.push_back(parked);
    } else if (!raw->isFrom(parked->header.source, parked->peer)) {
      ++stale_frames_;
      pool_.put(parked);
    } else if (parked->header.type == FrameType::kControl) {
      onControl(*raw, static_cast<int>(parked->header.source), parked->header, parked->payload.data());
      pool_.put(parked);
    } else {
      raw->parked.push_back(parked);
    }
  }
}

void Engine::destroyCommunicator(uint64_t id) {
  auto found = communicators_.find(id);
  if (found == communicators_.end()) return;
  if (active_ && active_->communicator == found->second.get()) {
    withdrawActive();
    finishActive(closedStatus(active_->text()));
  }
  for (Parked* parked : found->second->parked) pool_.put(parked);
  found->second->parked.clear();
  if (found->second->membership->ending()) {
    retired_.push_back(std::move(found->second));
    if (retired_.size() > kRetiredMax) retired_.pop_front();
  }
  communicators_.erase(found);
  dead_.insert(id);
}

Engine::Communicator* Engine::retired(uint64_t id) {
  for (auto& communicator : retired_) {
    if (communicator->spec.id == id) return communicator.get();
  }
  return nullptr;
}

/// The caller's stream goes on, whatever the outcome: it must not hang on an error.
void Engine::end(const Request& request, const Status& status) {
  request.turn.open();
  request.completion->onDone(status);
}

void Engine::start(Request request) { queue_.push_back(std::move(request)); }

bool Engine::hasOutput() const {
  return std::any_of(rails_.begin(), rails_.end(), [](const auto& rail) { return rail->hasOutput(); });
}

void Engine::activateNext() {
  Request request = std::move(queue_.front());
  queue_.pop_front();
  auto found = communicators_.find(request.communicator);
  if (found == communicators_.end()) {
    end(request, closedStatus(request.command->text));
    return;
  }
  Communicator& communicator = *found->second;
  active_ = active_storage_.get();
  active_->communicator = &communicator;
  active_->request = std::move(request);
  active_->begun = active_->withdrawn = active_->warned = false;
  const Command& command = active_->command();
  if (command.point_to_point) {
    active_->sequence = active_->send_sequence = active_->receive_sequence = 0;
    if (command.to >= 0) active_->send_sequence = communicator.sends[{command.to, command.tag}]++;
    if (command.from >= 0) active_->receive_sequence = communicator.receives[{command.from, command.tag}]++;
    countMessages();
  } else {
    active_->sequence = communicator.next_sequence++;
  }
  ++communicator.started;
  communicator.last_text = active_->text();
  trace_.counters.add(trace::Counter::kOperationsStarted);
  active_->started_ns = active_->warned_ns =
      note(trace::EventKind::kOperationStarted, communicator, active_->sequence, 0, command.text_hash);
}

/// The schedule is there: take the buffers and what came early.
void Engine::beginActive() {
  const Command& command = active_->command();
  if (!command.failure.isOk()) {
    abortCommunicator(active_->communicator->spec.id, command.failure, {});
    return;
  }
  const schedule::Schedule& schedule = *command.program->schedule;
  const Buffers& buffers = active_->request.buffers;
  if (buffers.input_bytes != static_cast<uint64_t>(schedule.input_bytes) ||
      buffers.output_bytes != static_cast<uint64_t>(schedule.output_bytes)) {
    abortCommunicator(
        active_->communicator->spec.id,
        Status(Kind::kInternal, Scope::kCall, "internal",
               active_->text() + ": buffers of " + std::to_string(buffers.input_bytes) + " and " +
                   std::to_string(buffers.output_bytes) + " bytes, the schedule wants " +
                   std::to_string(schedule.input_bytes) + " and " + std::to_string(schedule.output_bytes)),
        {});
    return;
  }
  if (!schedule.circles.empty() && !active_->communicator->spec.native) {
    abortCommunicator(active_->communicator->spec.id,
                      Status(Kind::kInternal, Scope::kCommunicator, "internal",
                             active_->text() + ": the schedule calls a vendor's library and this rank opened none"),
                      {});
    return;
  }
  const uint64_t asked = command.point_to_point ? hashText(messageType(command.text)) : command.text_hash;
  active_->fingerprint = hashNumber(command.point_to_point ? 0 : schedule.plan_hash, asked);
  const Status began = active_->operation.begin(command.program, buffers, active_, &pool_, ++generation_);
  active_->begun = true;
  if (!began.isOk()) {
    abortCommunicator(active_->communicator->spec.id, began.withContext(active_->text()), {});
    return;
  }
  const int32_t gone = firstGoneNeeded();
  if (gone >= 0) {
    abortCommunicator(active_->communicator->spec.id, active_->communicator->membership->goneReason(gone), {gone});
    return;
  }
  adoptParked();
}

bool Engine::matchesActive(const Communicator& communicator, const FrameHeader& header) const {
  if (!active_ || active_->communicator != &communicator || !active_->begun || active_->withdrawn) return false;
  const Command& command = active_->command();
  if (!(header.flags & kPointToPoint)) return !command.point_to_point && header.sequence == active_->sequence;
  return command.point_to_point && command.from == static_cast<int32_t>(header.source) && command.tag == header.tag &&
         header.sequence == active_->receive_sequence;
}

void Engine::adoptParked() {
  Communicator& communicator = *active_->communicator;
  for (size_t i = 0; i < communicator.parked.size();) {
    Parked* parked = communicator.parked[i];
    if (!matchesActive(communicator, parked->header)) {
      ++i;
      continue;
    }
    communicator.parked.erase(communicator.parked.begin() + static_cast<std::ptrdiff_t>(i));
    onData(communicator, parked->header, parked->payload.data());
    pool_.put(parked);
    if (!active_ || active_->withdrawn) return;
  }
}

void Engine::onFrame(rail::Rail& rail, const FrameHeader& header, const void* payload) {
  ++events_;
  if (header.type == FrameType::kGoodbye) {
    rail.peerSaidGoodbye();
    return;
  }
  if (header.type == FrameType::kRelay && relays_) return relays_->onFrame(rail, header, payload);
  if (header.type != FrameType::kData && header.type != FrameType::kOffer && header.type != FrameType::kControl) {
    ++stale_frames_;
    return;
  }
  if (header.type == FrameType::kControl && header.communicator == 0) {
    onProbe(rail.peer(), header, payload);
    return;
  }
  auto found = communicators_.find(header.communicator);
  if (found == communicators_.end()) {
    Communicator* ended = header.type == FrameType::kControl ? retired(header.communicator) : nullptr;
    if (ended && ended->isFrom(header.source, rail.peer())) {
      onControl(*ended, static_cast<int>(header.source), header, payload);
    } else if (dead_.count(header.communicator) || unknown_.size() >= kUnknownFramesMax) {
      ++stale_frames_;
    } else {
      unknown_.push_back(pool_.take(header, payload));
      unknown_.back()->peer = rail.peer();
    }
    return;
  }
  Communicator& communicator = *found->second;
  if (!communicator.isFrom(header.source, rail.peer())) {
    ++stale_frames_;  // an index that is not this peer's: never let it speak for somebody else
    return;
  }
  if (header.type == FrameType::kControl) {
    onControl(communicator, static_cast<int>(header.source), header, payload);
  } else {
    onData(communicator, header, payload);
  }
}

void Engine::onData(Communicator& communicator, const FrameHeader& header, const void* payload) {
  if (communicator.membership->ending()) {
    ++stale_frames_;
    communicator.membership->remind(static_cast<int>(header.source));
    return;
  }
  if (!matchesActive(communicator, header)) {
    const bool is_past = !(header.flags & kPointToPoint) && header.sequence < communicator.next_sequence &&
                         !(active_ && active_->communicator == &communicator && !active_->begun);
    if (is_past) {
      ++stale_frames_;
    } else {
      communicator.parked.push_back(pool_.take(header, payload));
    }
    return;
  }
  Status status = header.fingerprint == active_->fingerprint
                      ? active_->operation.onMessage(header, payload)
                      : Status(Kind::kMismatch, Scope::kCommunicator, "mismatch",
                               active_->text() + " met another operation of member " + std::to_string(header.source));
  if (!status.isOk()) abortCommunicator(communicator.spec.id, status, {});
}

void Engine::RailSink::onFetched(uint64_t token, Status status) {
  ++engine_->events_;
  Active* active = engine_->active_;
  if (!active || !active->begun || active->withdrawn || !active->operation.owns(token)) return;
  if (status.isOk()) {
    active->operation.onFetched(token);
    return;
  }
  const int32_t member = active->communicator->member_of.at(rail_->peer());
  engine_->abortCommunicator(active->communicator->spec.id, status.withContext(active->text()), {member});
}

void Engine::RailSink::onReleased(uint64_t cookie) {
  ++engine_->events_;
  Active* active = engine_->active_;
  if (active && active->begun && !active->withdrawn && active->operation.owns(cookie))
    active->operation.onReleased(cookie);
}

void Engine::onNativeDone(uint64_t token, const Status& status) {
  ++events_;
  if (!active_ || !active_->begun || active_->withdrawn || !active_->operation.owns(token)) return;
  active_->operation.onNativeDone(token);
  if (!status.isOk()) abortCommunicator(active_->communicator->spec.id, status.withContext(active_->text()), {});
}

bool Engine::progress() {
  bool moved = false;
  if (!active_ && !queue_.empty()) {
    activateNext();
    moved = true;
  }
  if (active_) moved |= advanceActive();
  const uint64_t events_before = events_;
  for (size_t i = 0; i < rails_.size(); ++i) {
    if (rails_[i]->poll(*sinks_[i])) {
      onRailBroken(*rails_[i]);
      moved = true;
    }
  }
  if (relays_) moved |= relays_->pump();
  if (awaitsNative()) active_->native().poll(*active_);
  if (active_ && lane_ && lane_->isBusy()) {
    const Status polled = lane_->poll(*active_);
    if (!polled.isOk()) abortCommunicator(active_->communicator->spec.id, polled.withContext(active_->text()), {});
  }
  moved |= events_before != events_;
  if (active_) moved |= advanceActive();
  if (const int64_t now = clock_.nowNs(); now >= next_tick_ns_) {
    tick(now);
    if (active_) moved |= advanceActive();  // a verdict is acted on before anybody sleeps
  }
  return moved;
}

bool Engine::advanceActive() {
  bool moved = false;
  const bool may_begin = !active_->begun && !active_->withdrawn && !active_->communicator->membership->ending();
  if (may_begin && active_->command().ready.load(std::memory_order_acquire) && active_->request.turn.isReached()) {
    beginActive();
    moved = true;
  }
  // Also where beginning failed: nothing of it may run.
  if (!active_->withdrawn && active_->communicator->membership->ending()) withdrawActive();
  if (active_->begun && !active_->withdrawn) {
    moved |= active_->operation.advance();
    if (!active_->operation.failure().isOk()) {
      abortCommunicator(active_->communicator->spec.id, active_->operation.failure().withContext(active_->text()), {});
      return true;
    }
    if (active_->operation.isComplete()) {
      finishActive(Status::ok());
      return true;
    }
  }
  if (active_->withdrawn && active_->communicator->membership->verdict()) {
    finishActive(active_->communicator->membership->verdict()->status);
    return true;
  }
  return moved;
}

void Engine::withdrawActive() {
  if (active_->begun) active_->operation.withdraw();
  active_->withdrawn = true;
}

void Engine::finishActive(const Status& status) {
  Active& active = *active_;
  if (status.isOk()) ++active.communicator->finished;
  if (active.warned && status.isOk()) {
    JHETCC_LOG(kWarn, "engine", "rank " + std::to_string(world_rank_) + " goes on: " + active.text() + " is done");
  }
  const uint64_t bytes = active.begun && !active.withdrawn ? active.operation.bytesMoved() : 0;
  trace_.counters.add(status.isOk() ? trace::Counter::kOperationsFinished : trace::Counter::kOperationsFailed);
  trace_.counters.add(trace::Counter::kBytesMoved, bytes);
  const auto kind = status.isOk() ? trace::EventKind::kOperationFinished : trace::EventKind::kOperationFailed;
  busy_ns_ += note(kind, *active.communicator, active.sequence, bytes, static_cast<uint64_t>(status.kind())) -
              active.started_ns;
  if (active.begun && !active.withdrawn) active.operation.withdraw();
  active_ = nullptr;
  const Request request = std::exchange(active.request, Request{});
  end(request, status);
}

bool Engine::awaitsNative() const {
  return active_ && active_->begun && !active_->withdrawn && active_->operation.awaitsNative();
}

int64_t Engine::busyNs() const { return busy_ns_ + (active_ ? clock_.nowNs() - active_->started_ns : 0); }

std::optional<Activity> Engine::activity() const {
  if (!active_) return std::nullopt;
  Activity activity{active_->communicator->spec.name, active_->text(), active_->sequence, active_->started_ns, {}};
  if (active_->begun && !active_->withdrawn) {
    for (int32_t member : active_->operation.waitingFor()) {
      activity.waiting_for.push_back(active_->communicator->spec.world_ranks[static_cast<size_t>(member)]);
    }
  }
  return activity;
}

}  // namespace jhetcc::engine
