// SPDX-License-Identifier: Apache-2.0
#include "engine/operation.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "engine/reduce.h"

namespace jhetcc::engine {
namespace {

using schedule::Buffer;
using schedule::Operand;
using schedule::Schedule;
using schedule::Step;
using schedule::StepKind;
using transport::FrameHeader;
using transport::FrameType;

// One pass moves about this much, so that the lock is never held long.
constexpr int64_t kWorkPerPass = 1 << 20;
constexpr uint64_t kStepMask = (1 << 24) - 1;
constexpr int kIterationBits = 4;  // window 8, so iterations modulo 16 are told apart
constexpr size_t kScratchAlignment = 64;
constexpr int kReduceSourcesMax = 64;

}  // namespace

Status Operation::begin(std::shared_ptr<const Program> program, const Buffers& buffers, OperationHost* host,
                        ParkedPool* pool, uint64_t generation) {
  program_ = std::move(program);
  schedule_ = program_->schedule.get();
  buffers_ = buffers;
  host_ = host;
  pool_ = pool;
  generation_ = generation & ((uint64_t{1} << (64 - kGenerationShift)) - 1);
  bytes_moved_ = 0;
  lane_ = host->lane();
  failure_ = Status::ok();
  native_open_ = 0;
  states_.assign(schedule_->steps.size(), StepState{});
  unfinished_.clear();
  for (size_t i = 0; i < schedule_->steps.size(); ++i) {
    states_[i].total = schedule::iterations(schedule_->steps[i].length, schedule_->chunk_bytes);
    unfinished_.push_back(static_cast<int32_t>(i));
  }
  is_traced_ = std::any_of(states_.begin(), states_.end(), [](const StepState& state) { return state.total > 1; });
  findNextNative();
  if (lane_) return beginOnDevice();
  const size_t scratch_bytes = static_cast<size_t>(schedule_->scratch_bytes);
  if (!scratch_store_) scratch_store_ = std::make_shared<std::vector<char>>();
  if (scratch_store_->size() < scratch_bytes + kScratchAlignment)
    scratch_store_->resize(scratch_bytes + kScratchAlignment);
  const uintptr_t base = reinterpret_cast<uintptr_t>(scratch_store_->data());
  scratch_ = scratch_store_->data() + (kScratchAlignment - base % kScratchAlignment) % kScratchAlignment;
  return Status::ok();
}

int64_t Operation::bytesOf(const Step& step, int64_t iteration) const {
  return std::min(schedule_->chunk_bytes, step.length - iteration * schedule_->chunk_bytes);
}

char* Operation::place(const Operand& operand, int64_t iteration) {
  const int64_t slot = operand.wrap > 0 ? iteration % operand.wrap : iteration;
  const int64_t offset = operand.offset + slot * schedule_->chunk_bytes;
  switch (operand.buffer) {
    case Buffer::kInput:
      return const_cast<char*>(static_cast<const char*>(buffers_.input)) + offset;
    case Buffer::kOutput:
      return static_cast<char*>(buffers_.output) + offset;
    case Buffer::kScratch:
      return scratch_ + offset;
  }
  return nullptr;
}

uint64_t Operation::cookieOf(int32_t step, int64_t iteration) const {
  return (generation_ << kGenerationShift) | (static_cast<uint64_t>(step) << kIterationBits) |
         (static_cast<uint64_t>(iteration) & ((1 << kIterationBits) - 1));
}

bool Operation::dependenciesMet(const Step& step, int64_t iteration) const {
  for (int32_t d = step.dependencies_begin; d < step.dependencies_end; ++d) {
    const schedule::Dependency& dependency = schedule_->dependencies[d];
    const StepState& other = states_[dependency.step];
    if (dependency.distance == schedule::kWhole) {
      if (other.completed < other.total) return false;
    } else {
      const int64_t wanted = std::min(iteration - dependency.distance, other.total - 1);
      if (wanted >= 0 && other.completed <= wanted) return false;
    }
  }
  return true;
}

bool Operation::advance() {
  work_left_ = kWorkPerPass;
  bool moved = false;
  for (bool any = true; any && work_left_ > 0;) {
    any = false;
    for (size_t k = 0; k < unfinished_.size() && work_left_ > 0;) {
      const int32_t index = unfinished_[k];
      while (work_left_ > 0 && issue(index)) any = true;
      if (states_[index].completed == states_[index].total) {
        unfinished_.erase(unfinished_.begin() + static_cast<std::ptrdiff_t>(k));
        any = true;
      } else {
        ++k;
      }
    }
    moved |= any;
  }
  return moved;
}

bool Operation::issue(int32_t index) {
  if (!failure_.isOk()) return false;
  StepState& state = states_[index];
  const Step& step = schedule_->steps[index];
  if (state.sent < state.staged) return sendStaged(index, step, state);
  if (state.issued == state.total) return false;
  if (step.kind == StepKind::kRecv && !state.parked_first) return false;
  if (schedule::isNative(step.kind) && index != next_native_) return false;
  if (state.issued - state.completed >= window() || !dependenciesMet(step, state.issued)) return false;
  switch (step.kind) {
    case StepKind::kSend:
      return issueSend(index, step, state);
    case StepKind::kRecv:
      return issueReceive(index, state);
    case StepKind::kNativeReduce:
    case StepKind::kNativeBroadcast:
    case StepKind::kNativeAllReduce:
      return issueNative(index, step, state);
    default:
      break;
  }
  if (lane_) {
    queueLocal(index, step, state);
    return true;
  }
  begun(index, state.issued);
  runLocal(step, state);
  complete(index, state.issued++);
  return true;
}

bool Operation::issueSend(int32_t index, const Step& step, StepState& state) {
  if (state.slots >= 0) return stageSend(index, step, state);
  rail::Rail* rail = host_->railTo(step.peer);
  FrameHeader header;
  host_->fillHeader(header);
  header.stream = step.stream;
  header.index = static_cast<uint32_t>(state.issued);
  header.length = static_cast<uint64_t>(bytesOf(step, state.issued));
  const char* source = place(schedule_->sources[step.sources_begin], state.issued);
  // What lies on a device is always offered: no processor of the host copies it.
  const bool is_inline = !lane_ && goesInline(step, header);
  header.type = is_inline ? FrameType::kData : FrameType::kOffer;
  if (!is_inline) {
    if (lane_ && header.length > 0) {  // an empty array may lie nowhere
      const Result<void*> seen = lane_->alias(source, header.length);
      if (!seen.isOk()) return noteFailure(seen.status());
      source = static_cast<const char*>(seen.value());
    }
    header.address = reinterpret_cast<uintptr_t>(source);
    header.cookie = cookieOf(index, state.issued);
  }
  if (!rail->trySend(header, source)) return false;
  begun(index, state.issued);
  bytes_moved_ += header.length;
  if (is_inline) {
    work_left_ -= static_cast<int64_t>(header.length);
    complete(index, state.issued++);
  } else {
    ++state.issued;
  }
  return true;
}

/// A point-to-point send is a rendezvous: it ends when the receiver has taken it, so it is offered. Where both send to
/// each other in one operation, each ends no sooner than the other has begun.
bool Operation::goesInline(const Step& step, const FrameHeader& header) const {
  if (header.length > transport::kInlineBytesMax) return false;
  return !(header.flags & kPointToPoint) || program_->hears(static_cast<uint32_t>(step.peer));
}

bool Operation::issueReceive(int32_t index, StepState& state) {
  Parked* parked = state.parked_first;
  state.parked_first = parked->next;
  if (!state.parked_first) state.parked_last = nullptr;
  --state.parked;
  deliver(index, parked->header, parked->payload.data());
  pool_->put(parked);
  return true;
}

bool Operation::deliver(int32_t index, const FrameHeader& header, const void* payload) {
  StepState& state = states_[index];
  const Step& step = schedule_->steps[index];
  char* target = place(step.target, state.issued);
  const int64_t iteration = state.issued++;
  begun(index, iteration);
  work_left_ -= static_cast<int64_t>(header.length);
  bytes_moved_ += header.length;
  if (lane_) {
    deliverToDevice(index, iteration, header, payload);
  } else if (header.type == FrameType::kData) {
    if (header.length) std::memcpy(target, payload, header.length);
    complete(index, iteration);
  } else if (host_->railTo(step.peer)->fetch(header, target, cookieOf(index, iteration))) {
    complete(index, iteration);
  }
  return true;
}

Status Operation::onMessage(const FrameHeader& header, const void* payload) {
  const int32_t index = program_->receiveStep(header.source, header.stream);
  const int64_t arrival = index < 0 ? 0 : header.index;
  // Messages of a stream come in order and once; where one is missing or doubled, nothing after it is in its place.
  if (index < 0 || arrival >= states_[index].total || arrival != states_[index].issued + states_[index].parked ||
      header.length != static_cast<uint64_t>(bytesOf(schedule_->steps[index], arrival))) {
    return Status(Kind::kMismatch, Scope::kCommunicator, "mismatch",
                  "message " + std::to_string(header.index) + " of stream " + std::to_string(header.stream) +
                      " from member " + std::to_string(header.source) + " (" + std::to_string(header.length) +
                      " bytes) fits no receive of the schedule");
  }
  StepState& state = states_[index];
  if (!state.parked_first && arrival == state.issued && state.issued - state.completed < window() && failure_.isOk() &&
      dependenciesMet(schedule_->steps[index], arrival)) {
    deliver(index, header, payload);
    return Status::ok();
  }
  Parked* parked = pool_->take(header, payload);
  if (state.parked_last) {
    state.parked_last->next = parked;
  } else {
    state.parked_first = parked;
  }
  state.parked_last = parked;
  ++state.parked;
  return Status::ok();
}

void Operation::runLocal(const Step& step, StepState& state) {
  const int64_t bytes = bytesOf(step, state.issued);
  work_left_ -= bytes;
  if (bytes == 0) return;
  char* target = place(step.target, state.issued);
  if (step.kind == StepKind::kFill) {
    std::memset(target, 0, static_cast<size_t>(bytes));
    return;
  }
  const int count = step.sources_end - step.sources_begin;
  if (step.kind == StepKind::kCopy) {
    const char* source = place(schedule_->sources[step.sources_begin], state.issued);
    if (source != target) std::memmove(target, source, static_cast<size_t>(bytes));
    return;
  }
  const void* fixed[kReduceSourcesMax];
  std::vector<const void*> many;
  const void** sources = fixed;
  if (count > kReduceSourcesMax) {
    many.resize(static_cast<size_t>(count));
    sources = many.data();
  }
  for (int k = 0; k < count; ++k) sources[k] = place(schedule_->sources[step.sources_begin + k], state.issued);
  const int divisor = step.final && schedule_->op == schedule::ReduceOp::kMean ? schedule_->size : 0;
  reduce({target, sources, count, static_cast<size_t>(bytes), schedule_->type, schedule_->op, divisor});
}

void Operation::begun(int32_t index, int64_t iteration) {
  if (!is_traced_) return;
  host_->noteStep(trace::EventKind::kStepStarted, index, iteration, bytesOf(schedule_->steps[index], iteration));
}

void Operation::complete(int32_t index, int64_t iteration) {
  if (is_traced_) {
    host_->noteStep(trace::EventKind::kStepFinished, index, iteration, bytesOf(schedule_->steps[index], iteration));
  }
  StepState& state = states_[index];
  state.done_mask |= 1u << static_cast<unsigned>(iteration - state.completed);
  while (state.done_mask & 1u) {
    state.done_mask >>= 1;
    ++state.completed;
  }
}

namespace {
// The iteration behind a cookie: the one in the window with these low bits.
int64_t iterationOf(uint64_t cookie, int64_t completed) {
  const int64_t span = 1 << kIterationBits;
  const int64_t low = static_cast<int64_t>(cookie & (span - 1));
  return completed + ((low - completed) % span + span) % span;
}
}  // namespace

std::pair<int32_t, int64_t> Operation::placeOf(uint64_t token) const {
  const int32_t index = static_cast<int32_t>((token >> kIterationBits) & kStepMask);
  return {index, iterationOf(token, states_[index].completed)};
}

void Operation::onFetched(uint64_t token) {
  const auto [index, iteration] = placeOf(token);
  if (lane_ && finishReceive(index, iteration)) return;
  complete(index, iteration);
}

void Operation::onReleased(uint64_t cookie) {
  const auto [index, iteration] = placeOf(cookie);
  complete(index, iteration);
}

void Operation::withdraw() {
  if (!schedule_) return;
  if (native_open_ > 0) {
    host_->native().drop();
    scratch_store_.reset();  // the library may still write there
    native_open_ = 0;
  }
  for (size_t i = 0; i < states_.size(); ++i) {
    StepState& state = states_[i];
    const Step& step = schedule_->steps[i];
    while (state.parked_first) {
      Parked* parked = state.parked_first;
      state.parked_first = parked->next;
      pool_->put(parked);
    }
    state.parked_last = nullptr;
    if (step.kind != StepKind::kSend && step.kind != StepKind::kRecv) continue;
    for (int64_t k = state.completed; k < state.issued; ++k) {
      if (state.done_mask >> (k - state.completed) & 1u) continue;
      const uint64_t cookie = cookieOf(static_cast<int32_t>(i), k);
      rail::Rail* rail = host_->railTo(step.peer);
      if (step.kind == StepKind::kSend) {
        rail->revoke(cookie);
      } else {
        rail->cancel(cookie);
      }
    }
  }
  if (lane_ && lane_->isBusy()) {
    const Status drained = lane_->drain();
    if (!drained.isOk())
      JHETCC_LOG(kError, "engine",
                 "the device may still write to buffers of an operation that ended: " + drained.message());
  }
  unfinished_.clear();
  states_.clear();
  schedule_ = nullptr;
  lane_ = nullptr;
}

bool Operation::needs(int32_t member, bool has_left) const {
  for (int32_t index : unfinished_) {
    const Step& step = schedule_->steps[index];
    if (schedule::isNative(step.kind)) {
      const std::vector<int32_t>& members = circleOf(step);
      if (!has_left && std::find(members.begin(), members.end(), member) != members.end()) return true;
      continue;
    }
    if (step.peer != member) continue;
    const StepState& state = states_[index];
    if (step.kind == StepKind::kSend && state.completed < state.total) return true;
    if (step.kind == StepKind::kRecv) {
      int64_t here = state.issued;  // messages that came and can still be taken without the peer
      for (Parked* parked = state.parked_first; parked; parked = parked->next) {
        if (parked->header.type == FrameType::kOffer) return true;
        ++here;
      }
      const int64_t landed = lane_ ? state.landed : state.completed;
      if (landed < state.issued || here < state.total) return true;
    }
  }
  return false;
}

std::vector<int32_t> Operation::waitingFor() const {
  std::vector<int32_t> members;
  for (int32_t index : unfinished_) {
    const Step& step = schedule_->steps[index];
    const StepState& state = states_[index];
    if (schedule::isNative(step.kind)) {
      if (state.completed == state.issued) continue;
      for (int32_t member : circleOf(step)) {
        if (member != schedule_->rank) members.push_back(member);
      }
      continue;
    }
    const bool missing = step.kind == StepKind::kRecv ? !state.parked_first && state.issued < state.total
                                                      : step.kind == StepKind::kSend && state.completed < state.issued;
    if (missing) members.push_back(step.peer);
  }
  std::sort(members.begin(), members.end());
  members.erase(std::unique(members.begin(), members.end()), members.end());
  return members;
}

}  // namespace jhetcc::engine
