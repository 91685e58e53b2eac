// SPDX-License-Identifier: Apache-2.0
#include "engine/lane.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace jhetcc::engine {
namespace {

constexpr int64_t kDrainNs = 10'000 * kNsPerMs;
constexpr size_t kPageBytes = 4096;

}  // namespace

Result<std::unique_ptr<Lane>> Lane::create(std::shared_ptr<device::Device> device, Reducer reducer) {
  std::unique_ptr<Lane> made(new Lane(std::move(device), std::move(reducer)));
  const Status started = made->start();
  if (!started.isOk()) return started.withContext("preparing device \"" + made->device_->capabilities().name + "\"");
  return made;
}

Status Lane::start() {
  Result<device::Stream> stream = device_->createStream(device::Queue::kPrivate);
  if (!stream.isOk()) return stream.status();
  stream_ = stream.value();
  for (Mark& mark : marks_) {
    Result<device::Event> event = device_->createEvent();
    if (!event.isOk()) return event.status();
    mark.event = event.value();
  }
  JHETCC_RETURN_IF_ERROR(reserve(kPageBytes, kPageBytes));
  const Result<void*> seen = device_->alias(scratch_.base, scratch_.bytes);
  is_registrable_ = seen.isOk();
  return seen.isOk() || seen.status().kind() == Kind::kUnavailable ? Status::ok() : seen.status();
}

Lane::~Lane() {
  std::vector<Status> outcomes;
  if (isBusy()) outcomes.push_back(drain());
  outgrown_.push_back(scratch_);
  outgrown_.push_back(staging_);
  for (const Memory& memory : outgrown_) {
    if (memory.base != nullptr) outcomes.push_back(device_->free(memory.base));
  }
  for (Mark& mark : marks_) {
    if (mark.event != nullptr) outcomes.push_back(device_->destroyEvent(mark.event));
  }
  if (stream_ != nullptr) outcomes.push_back(device_->destroyStream(stream_));
  for (const Status& outcome : outcomes) {
    if (!outcome.isOk()) JHETCC_LOG(kWarn, "engine", "a device keeps what was ours: " + outcome.message());
  }
}

Result<Turn> Lane::enter(device::Stream stream) {
  Place& place = places_[stream];
  if (!place.gate) {
    Result<std::unique_ptr<device::Gate>> gate = device::Gate::create(*device_);
    if (!gate.isOk()) return gate.status();
    place.gate = std::move(gate).value();
  }
  const Turn turn{place.gate.get(), place.last + 1};
  JHETCC_RETURN_IF_ERROR(turn.gate->signal(turn.value, stream));
  place.last = turn.value;
  if (mustWait()) return turn;
  const Status held = turn.gate->hold(turn.value, stream);
  if (!held.isOk()) return held;
  return turn;
}

Status Lane::reserve(size_t scratch_bytes, size_t staging_bytes) {
  JHETCC_RETURN_IF_ERROR(grow(scratch_, scratch_bytes, device::MemoryKind::kDevice));
  return grow(staging_, staging_bytes, device::MemoryKind::kPinned);
}

Status Lane::grow(Memory& memory, size_t bytes, device::MemoryKind kind) {
  if (bytes <= memory.bytes) return Status::ok();
  bytes = std::max(bytes, memory.bytes + memory.bytes / 2);
  const Result<void*> made = device_->allocate(bytes, kind);
  if (!made.isOk()) return made.status();
  // Freed at the end: freeing may wait for the device, whose streams may wait for the operation that needs this.
  if (memory.base != nullptr) outgrown_.push_back(memory);
  memory = {static_cast<char*>(made.value()), bytes};
  return Status::ok();
}

Status Lane::copy(void* target, const void* source, size_t bytes, uint64_t token) {
  JHETCC_RETURN_IF_ERROR(device_->copy(target, source, bytes, stream_));
  return queued(token);
}

Status Lane::zero(void* target, size_t bytes, uint64_t token) {
  JHETCC_RETURN_IF_ERROR(device_->zero(target, bytes, stream_));
  return queued(token);
}

Status Lane::reduce(const Reduction& reduction, uint64_t token) {
  JHETCC_RETURN_IF_ERROR(reducer_(reduction, stream_));
  return queued(token);
}

Status Lane::queued(uint64_t token) {
  told_.push_back(token);
  return mark();
}

/// One event for all that was queued since the last; none while all events are under way.
Status Lane::mark() {
  if (told_.empty() || under_way_ == kMarks) return Status::ok();
  Mark& mark = marks_[(first_ + under_way_) % kMarks];
  JHETCC_RETURN_IF_ERROR(device_->record(mark.event, stream_));
  mark.tokens.swap(told_);
  told_.clear();
  ++under_way_;
  return Status::ok();
}

Status Lane::poll(LaneSink& sink) {
  while (under_way_ > 0) {
    Mark& mark = marks_[first_];
    const Result<bool> is_done = device_->isDone(mark.event);
    if (!is_done.isOk()) return is_done.status();
    if (!is_done.value()) break;
    // What is told may queue more behind this mark, but not use it again before it is free.
    for (size_t k = 0; k < mark.tokens.size(); ++k) sink.onDeviceDone(mark.tokens[k]);
    if (under_way_ == 0) return Status::ok();  // drained by what was told
    mark.tokens.clear();
    first_ = (first_ + 1) % kMarks;
    --under_way_;
  }
  return mark();
}

Status Lane::drain() {
  const SystemClock clock;
  const Status ended = device_->synchronize(stream_, clock.nowNs() + kDrainNs);
  for (Mark& mark : marks_) mark.tokens.clear();
  told_.clear();
  under_way_ = 0;
  return ended;
}

}  // namespace jhetcc::engine
