// SPDX-License-Identifier: Apache-2.0
// An operation whose buffers are on a device. Where the transport sees devices, messages go from and to its memory;
// elsewhere they bounce through pinned memory of the host. What the device does is done when its stream says so.
#include <algorithm>
#include <cstring>

#include "engine/operation.h"
#include "engine/reduce.h"

namespace jhetcc::engine {

using schedule::Step;
using schedule::StepKind;
using transport::FrameHeader;
using transport::FrameType;

namespace {
constexpr int64_t kSlotAlignment = 64;
}  // namespace

/// Every message step that needs staging has slots of its own, so no message waits for another one's slot.
Status Operation::beginOnDevice() {
  int64_t staging_bytes = 0;
  for (size_t i = 0; i < schedule_->steps.size(); ++i) {
    const Step& step = schedule_->steps[i];
    const bool is_send = step.kind == StepKind::kSend;
    if (!is_send && step.kind != StepKind::kRecv) continue;
    if (is_send && reaches(step.peer)) continue;
    states_[i].slots = staging_bytes;
    staging_bytes += std::min(states_[i].total, kDeviceWindow) * slotBytes(step);
  }
  JHETCC_RETURN_IF_ERROR(
      lane_->reserve(static_cast<size_t>(schedule_->scratch_bytes), static_cast<size_t>(staging_bytes)));
  scratch_ = lane_->scratch();
  return Status::ok();
}

/// Whether messages to and from this member need no bounce.
bool Operation::reaches(int32_t peer) const {
  return lane_->isRegistrable() && host_->railTo(peer)->endpoint().seesDevices();
}

/// A short message may come inline from a rank whose memory is the host's, even where longer ones need no bounce.
int64_t Operation::slotBytes(const Step& step) const {
  int64_t bytes = bytesOf(step, 0);
  if (reaches(step.peer)) bytes = std::min(bytes, static_cast<int64_t>(transport::kInlineBytesMax));
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

char* Operation::slot(int32_t index, int64_t iteration) const {
  const int64_t place = iteration % kDeviceWindow;
  return lane_->staging() + states_[static_cast<size_t>(index)].slots +
         place * slotBytes(schedule_->steps[static_cast<size_t>(index)]);
}

bool Operation::noteFailure(const Status& status) {
  if (failure_.isOk()) failure_ = status;
  return false;
}

void Operation::queueLocal(int32_t index, const Step& step, StepState& state) {
  const int64_t iteration = state.issued++;
  const size_t bytes = static_cast<size_t>(bytesOf(step, iteration));
  work_left_ -= static_cast<int64_t>(bytes);
  begun(index, iteration);
  std::vector<const void*> sources;
  for (int32_t k = step.sources_begin; k < step.sources_end; ++k) {
    sources.push_back(place(schedule_->sources[static_cast<size_t>(k)], iteration));
  }
  char* target = place(step.target, iteration);
  const bool is_nothing = bytes == 0 || (step.kind == StepKind::kCopy && sources[0] == target);
  if (is_nothing) return complete(index, iteration);
  const uint64_t token = cookieOf(index, iteration);
  Status queued;
  if (step.kind == StepKind::kFill) {
    queued = lane_->zero(target, bytes, token);
  } else if (step.kind == StepKind::kCopy) {
    queued = lane_->copy(target, sources[0], bytes, token);
  } else {
    const int divisor = step.final && schedule_->op == schedule::ReduceOp::kMean ? schedule_->size : 0;
    queued = lane_->reduce(
        {target, sources.data(), static_cast<int>(sources.size()), bytes, schedule_->type, schedule_->op, divisor},
        token);
  }
  if (!queued.isOk()) noteFailure(queued);
}

/// First into a slot of pinned memory; it goes out from there once the device has copied it.
bool Operation::stageSend(int32_t index, const Step& step, StepState& state) {
  const int64_t iteration = state.issued++;
  const size_t bytes = static_cast<size_t>(bytesOf(step, iteration));
  begun(index, iteration);
  work_left_ -= static_cast<int64_t>(bytes);
  if (bytes == 0) {
    ++state.staged;
    return true;
  }
  const char* source = place(schedule_->sources[static_cast<size_t>(step.sources_begin)], iteration);
  const Status queued = lane_->copy(slot(index, iteration), source, bytes, cookieOf(index, iteration));
  return queued.isOk() || noteFailure(queued);
}

bool Operation::sendStaged(int32_t index, const Step& step, StepState& state) {
  const int64_t iteration = state.sent;
  FrameHeader header;
  host_->fillHeader(header);
  header.stream = step.stream;
  header.index = static_cast<uint32_t>(iteration);
  header.length = static_cast<uint64_t>(bytesOf(step, iteration));
  const char* source = slot(index, iteration);
  const bool is_inline = goesInline(step, header);
  header.type = is_inline ? FrameType::kData : FrameType::kOffer;
  if (!is_inline) {
    header.address = reinterpret_cast<uintptr_t>(source);
    header.cookie = cookieOf(index, iteration);
  }
  if (!host_->railTo(step.peer)->trySend(header, source)) return false;
  ++state.sent;
  bytes_moved_ += header.length;
  if (is_inline) complete(index, iteration);
  return true;
}

void Operation::deliverToDevice(int32_t index, int64_t iteration, const FrameHeader& header, const void* payload) {
  const Step& step = schedule_->steps[static_cast<size_t>(index)];
  char* target = place(step.target, iteration);
  const uint64_t token = cookieOf(index, iteration);
  if (header.type == FrameType::kData) {
    ++states_[static_cast<size_t>(index)].landed;
    if (header.length == 0) return complete(index, iteration);
    char* staged = slot(index, iteration);
    std::memcpy(staged, payload, header.length);
    const Status queued = lane_->copy(target, staged, header.length, token);
    if (!queued.isOk()) noteFailure(queued);
    return;
  }
  char* landing = slot(index, iteration);
  if (reaches(step.peer) && header.length > 0) {
    const Result<void*> seen = lane_->alias(target, header.length);
    if (!seen.isOk()) {
      noteFailure(seen.status());
      return;
    }
    landing = static_cast<char*>(seen.value());
  }
  if (host_->railTo(step.peer)->fetch(header, landing, token)) onFetched(token);
}

/// What was fetched into a slot goes on to the device. False: it is where it belongs.
bool Operation::finishReceive(int32_t index, int64_t iteration) {
  const Step& step = schedule_->steps[static_cast<size_t>(index)];
  const size_t bytes = static_cast<size_t>(bytesOf(step, iteration));
  ++states_[static_cast<size_t>(index)].landed;
  if (bytes == 0 || reaches(step.peer)) return false;
  const Status queued =
      lane_->copy(place(step.target, iteration), slot(index, iteration), bytes, cookieOf(index, iteration));
  if (!queued.isOk()) noteFailure(queued);
  return true;
}

void Operation::onDeviceDone(uint64_t token) {
  if (!owns(token)) return;
  const auto [index, iteration] = placeOf(token);
  if (schedule_->steps[static_cast<size_t>(index)].kind == StepKind::kSend) {
    ++states_[static_cast<size_t>(index)].staged;  // in order, as it was queued
  } else {
    complete(index, iteration);
  }
}

}  // namespace jhetcc::engine
