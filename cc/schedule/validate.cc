// SPDX-License-Identifier: Apache-2.0
// Checks every number of a schedule that came from outside. Any thread; touches only its arguments.
#include "schedule/validate.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace jhetcc::schedule {
namespace {

constexpr uint8_t kKinds = 8;
constexpr uint8_t kBuffers = 3;
constexpr int64_t kBytesMax = int64_t{1} << 62;  // sums of a length and a chunk stay below 2^63

const char* kindName(StepKind kind) {
  constexpr const char* kNames[kKinds] = {"send", "recv",          "reduce",           "copy",
                                          "fill", "native_reduce", "native_broadcast", "native_all_reduce"};
  return static_cast<uint8_t>(kind) < kKinds ? kNames[static_cast<uint8_t>(kind)] : "unknown";
}

Status badStep(size_t index, const Step& step, const std::string& what) {
  return badSchedule("step " + std::to_string(index) + " (" + kindName(step.kind) + "): " + what);
}

bool isReduction(const Step& step) {
  return step.kind == StepKind::kReduce || step.kind == StepKind::kNativeReduce ||
         step.kind == StepKind::kNativeAllReduce;
}

bool isMessage(const Step& step) { return step.kind == StepKind::kSend || step.kind == StepKind::kRecv; }

int64_t bufferBytes(const Schedule& schedule, Buffer buffer) {
  switch (buffer) {
    case Buffer::kInput:
      return schedule.input_bytes;
    case Buffer::kOutput:
      return schedule.output_bytes;
    case Buffer::kScratch:
      return schedule.scratch_bytes;
  }
  return 0;
}

/// Whether all iterations of an operand lie inside its buffer, a ring in scratch, reductions on whole items.
bool operandFits(const Schedule& schedule, const Step& step, const Operand& operand) {
  if (static_cast<uint8_t>(operand.buffer) >= kBuffers || operand.offset < 0 || operand.wrap < 0) return false;
  int64_t extent = step.length;
  if (operand.wrap > 0) {
    if (operand.buffer != Buffer::kScratch) return false;
    if (iterations(step.length, schedule.chunk_bytes) > operand.wrap) {
      extent = int64_t{operand.wrap} * schedule.chunk_bytes;  // below length + chunk: no overflow
    }
  }
  const int64_t bytes = bufferBytes(schedule, operand.buffer);
  if (extent > bytes || operand.offset > bytes - extent) return false;
  return !isReduction(step) || operand.offset % static_cast<int64_t>(itemSize(schedule.type)) == 0;
}

Status checkHeader(const Schedule& schedule) {
  if (schedule.size < 1 || schedule.rank < 0 || schedule.rank >= schedule.size) {
    return badSchedule("rank " + std::to_string(schedule.rank) + " is not one of " + std::to_string(schedule.size));
  }
  const auto item = static_cast<int64_t>(itemSize(schedule.type));
  if (schedule.chunk_bytes <= 0 || schedule.chunk_bytes % item != 0) {
    return badSchedule("chunk_bytes " + std::to_string(schedule.chunk_bytes) +
                       " is not a positive multiple of the item size " + std::to_string(item));
  }
  for (const int64_t bytes :
       {schedule.chunk_bytes, schedule.input_bytes, schedule.output_bytes, schedule.scratch_bytes}) {
    if (bytes < 0 || bytes > kBytesMax) return badSchedule("a buffer or chunk size is negative or absurd");
  }
  int32_t sources = 0, dependencies = 0;
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (step.sources_begin != sources || step.sources_end < sources) return badStep(i, step, "sources_end descends");
    if (step.dependencies_begin != dependencies || step.dependencies_end < dependencies) {
      return badStep(i, step, "dependencies_end descends");
    }
    sources = step.sources_end;
    dependencies = step.dependencies_end;
  }
  if (static_cast<size_t>(sources) != schedule.sources.size()) return badSchedule("sources_end is not their number");
  if (static_cast<size_t>(dependencies) != schedule.dependencies.size()) {
    return badSchedule("dependencies_end is not their number");
  }
  return Status::ok();
}

Status checkCircles(const Schedule& schedule) {
  for (size_t i = 0; i < schedule.circles.size(); ++i) {
    std::vector<int32_t> members = schedule.circles[i].members;
    std::sort(members.begin(), members.end());
    const bool is_twice = std::adjacent_find(members.begin(), members.end()) != members.end();
    if (members.size() < 2 || is_twice || members.front() < 0 || members.back() >= schedule.size) {
      return badSchedule("circle " + std::to_string(i) + " is not two or more of the ranks, each once");
    }
  }
  return Status::ok();
}

Status checkNative(const Schedule& schedule, size_t index, const Step& step) {
  if (step.stream >= schedule.circles.size()) {
    return badStep(index, step, "no circle " + std::to_string(step.stream));
  }
  const std::vector<int32_t>& members = schedule.circles[step.stream].members;
  const auto isMember = [&](int32_t rank) { return std::find(members.begin(), members.end(), rank) != members.end(); };
  if (!isMember(schedule.rank)) return badStep(index, step, "this rank is not in its circle");
  const bool has_root = step.kind != StepKind::kNativeAllReduce;
  if (has_root ? !isMember(step.peer) : step.peer != -1) {
    return badStep(index, step, "peer " + std::to_string(step.peer) + " is no root in its circle");
  }
  return Status::ok();
}

int32_t fewestSources(const Schedule& schedule, const Step& step) {
  switch (step.kind) {
    case StepKind::kRecv:
    case StepKind::kFill:
      return 0;
    case StepKind::kNativeBroadcast:
      return step.peer == schedule.rank ? 1 : 0;
    default:
      return 1;
  }
}

Status checkShape(const Schedule& schedule, size_t index, const Step& step) {
  if (static_cast<uint8_t>(step.kind) >= kKinds) {
    return badStep(index, step, "no kind " + std::to_string(static_cast<int>(step.kind)));
  }
  if (step.length < 0 || step.length > kBytesMax) {
    return badStep(index, step, "length " + std::to_string(step.length) + " is negative or absurd");
  }
  if (isMessage(step)) {
    if (step.peer < 0 || step.peer >= schedule.size || step.peer == schedule.rank) {
      return badStep(index, step,
                     "peer " + std::to_string(step.peer) + " is no other rank of " + std::to_string(schedule.size));
    }
  } else if (isNative(step.kind)) {
    JHETCC_RETURN_IF_ERROR(checkNative(schedule, index, step));
  } else if (step.peer != -1 || step.stream != 0) {
    return badStep(index, step, "peer or stream is set on a local step");
  }
  const int32_t sources = step.sources_end - step.sources_begin;
  const int32_t fewest = fewestSources(schedule, step);
  if (sources < fewest || (sources > fewest && step.kind != StepKind::kReduce)) {
    return badStep(index, step, "sources are " + std::to_string(sources));
  }
  if (step.final && step.kind != StepKind::kReduce) return badStep(index, step, "final is set but it is no reduction");
  if (isReduction(step) && (schedule.type == DataType::kBytes || schedule.op == ReduceOp::kNone ||
                            step.length % static_cast<int64_t>(itemSize(schedule.type)) != 0)) {
    return badStep(index, step,
                   "length " + std::to_string(step.length) + ", type or op of the schedule cannot be reduced");
  }
  return Status::ok();
}

Status checkOperands(const Schedule& schedule, size_t index, const Step& step) {
  for (int32_t i = step.sources_begin; i < step.sources_end; ++i) {
    if (!operandFits(schedule, step, schedule.sources[static_cast<size_t>(i)])) {
      return badStep(index, step,
                     "source " + std::to_string(i - step.sources_begin) +
                         " is outside its buffer, a ring outside scratch, or not on whole items");
    }
  }
  if (!writes(step, schedule.rank)) {
    const bool empty = step.target.buffer == Buffer::kInput && step.target.offset == 0 && step.target.wrap == 0;
    return empty ? Status::ok() : badStep(index, step, "target is set");
  }
  if (!operandFits(schedule, step, step.target)) {
    return badStep(index, step, "target is outside its buffer, a ring outside scratch, or not on whole items");
  }
  if (step.target.buffer == Buffer::kInput) return badStep(index, step, "target is the input");
  return Status::ok();
}

Status checkDependencies(const Schedule& schedule, size_t index, const Step& step) {
  for (int32_t i = step.dependencies_begin; i < step.dependencies_end; ++i) {
    const Dependency& on = schedule.dependencies[static_cast<size_t>(i)];
    const std::string text = "dependency (" + std::to_string(on.step) + ", " + std::to_string(on.distance) + ")";
    if (on.step < 0 || static_cast<size_t>(on.step) >= schedule.steps.size() || on.distance < kWhole) {
      return badStep(index, step, text + " names no step or distance");
    }
    // So the waits inside one rank form no cycle within an iteration.
    if (on.distance <= 0 && static_cast<size_t>(on.step) >= index) {
      return badStep(index, step, text + " without a distance must name an earlier step");
    }
  }
  return Status::ok();
}

Status checkStreams(const Schedule& schedule) {
  std::vector<std::tuple<StepKind, int32_t, uint16_t, size_t>> seen;
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (isMessage(step)) seen.emplace_back(step.kind, step.peer, step.stream, i);
  }
  std::sort(seen.begin(), seen.end());
  for (size_t i = 1; i < seen.size(); ++i) {
    const auto& [kind, peer, stream, index] = seen[i];
    const auto& [kind_before, peer_before, stream_before, index_before] = seen[i - 1];
    if (kind == kind_before && peer == peer_before && stream == stream_before) {
      return badStep(index, schedule.steps[index],
                     "stream " + std::to_string(stream) + " has step " + std::to_string(index_before) + " with peer " +
                         std::to_string(peer) + " already");
    }
  }
  return Status::ok();
}

}  // namespace

size_t itemSize(DataType type) {
  switch (type) {
    case DataType::kBytes:
    case DataType::kBool:
    case DataType::kInt8:
    case DataType::kUint8:
      return 1;
    case DataType::kInt16:
    case DataType::kUint16:
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kFloat32:
      return 4;
    case DataType::kInt64:
    case DataType::kUint64:
    case DataType::kFloat64:
    case DataType::kComplex64:
      return 8;
    case DataType::kComplex128:
      return 16;
  }
  JHETCC_CHECK(false, "type " + std::to_string(static_cast<int>(type)));
  return 0;
}

Status badSchedule(const std::string& what) {
  return Status(Kind::kBadArgument, Scope::kCall, "bad_schedule", "schedule: " + what);
}

Status validate(const Schedule& schedule) {
  JHETCC_RETURN_IF_ERROR(checkHeader(schedule));
  JHETCC_RETURN_IF_ERROR(checkCircles(schedule));
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    JHETCC_RETURN_IF_ERROR(checkShape(schedule, i, step));
    JHETCC_RETURN_IF_ERROR(checkOperands(schedule, i, step));
    JHETCC_RETURN_IF_ERROR(checkDependencies(schedule, i, step));
  }
  return checkStreams(schedule);
}

}  // namespace jhetcc::schedule
