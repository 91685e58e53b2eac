// SPDX-License-Identifier: Apache-2.0
// The native steps of an operation: one order of calls a rank, and what a call is told.
#include <algorithm>

#include "engine/operation.h"

namespace jhetcc::engine {

using schedule::Buffer;
using schedule::Operand;
using schedule::Step;

/// One order for all ranks: by (iteration + lag, step).
void Operation::findNextNative() {
  next_native_ = -1;
  int64_t first = 0;
  for (int32_t index : program_->native_steps) {
    const StepState& state = states_[static_cast<size_t>(index)];
    if (state.issued == state.total) continue;
    const int64_t place = state.issued + schedule_->circles[schedule_->steps[static_cast<size_t>(index)].stream].lag;
    if (next_native_ < 0 || place < first) {
      next_native_ = index;
      first = place;
    }
  }
}

bool Operation::issueNative(int32_t index, const Step& step, StepState& state) {
  const bool has_source = step.sources_end > step.sources_begin;
  const bool has_target = schedule::writes(step, schedule_->rank);
  const std::vector<int32_t>& members = circleOf(step);
  NativeCall call{};
  call.kind = step.kind;
  call.type = schedule_->type;
  call.op = schedule_->op == schedule::ReduceOp::kMean ? schedule::ReduceOp::kSum : schedule_->op;
  call.members = &members;
  const auto root = std::find(members.begin(), members.end(), step.peer);
  call.root = root == members.end() ? -1 : static_cast<int32_t>(root - members.begin());
  call.bytes = static_cast<size_t>(bytesOf(step, state.issued));
  if (has_source) {
    const Operand& operand = schedule_->sources[static_cast<size_t>(step.sources_begin)];
    call.source = place(operand, state.issued);
    call.is_source_kept = operand.buffer == Buffer::kScratch && !lane_;
  }
  if (has_target) {
    call.target = place(step.target, state.issued);
    call.is_target_kept = step.target.buffer == Buffer::kScratch && !lane_;
  }
  call.program = program_;
  call.scratch = scratch_store_;
  call.token = cookieOf(index, state.issued);
  bytes_moved_ += call.bytes;
  begun(index, state.issued);
  ++native_open_;
  ++state.issued;
  findNextNative();
  host_->native().start(std::move(call));
  return true;
}

void Operation::onNativeDone(uint64_t token) {
  --native_open_;
  const auto [index, iteration] = placeOf(token);
  complete(index, iteration);
}

}  // namespace jhetcc::engine
