// SPDX-License-Identifier: Apache-2.0
// The binary form (docs/seams.md) into a Schedule. Any thread; touches only its arguments.
#include <bit>
#include <cstring>
#include <string>

#include "schedule/schedule.h"
#include "schedule/validate.h"

namespace jhetcc::schedule {
namespace {

static_assert(std::endian::native == std::endian::little, "the binary form is little endian");

constexpr uint32_t kMagic = 0x3153484A;  // "JHS1"
constexpr size_t kHeaderBytes = 72;
// Bytes of one entry in all columns of a table.
constexpr size_t kStepBytes = 1 + 1 + 2 + 4 + 8 + 1 + 8 + 4 + 4 + 4;
constexpr size_t kSourceBytes = 1 + 8 + 4;
constexpr size_t kDependencyBytes = 4 + 4;
constexpr size_t kCircleBytes = 2 + 4;
constexpr size_t kMemberBytes = 4;

/// Takes values from the front; the caller has checked that there are enough bytes.
class Reader {
 public:
  explicit Reader(const void* data) : at_(static_cast<const unsigned char*>(data)) {}

  template <typename T>
  T take() {
    T value;
    std::memcpy(&value, at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  /// Calls set(index, value) for each entry of a column.
  template <typename T, typename Set>
  void column(size_t count, Set set) {
    for (size_t i = 0; i < count; ++i) set(i, take<T>());
  }

 private:
  const unsigned char* at_;
};

struct Counts {
  size_t steps, sources, dependencies, circles, members;
};

Result<Counts> takeHeader(Reader& reader, size_t size, Schedule& schedule) {
  if (size < kHeaderBytes) {
    return badSchedule(std::to_string(size) + " bytes are shorter than the header's " + std::to_string(kHeaderBytes));
  }
  if (reader.take<uint32_t>() != kMagic) return badSchedule("magic is not JHS1");
  schedule.size = reader.take<int32_t>();
  schedule.rank = reader.take<int32_t>();
  const uint8_t type = reader.take<uint8_t>();
  const uint8_t op = reader.take<uint8_t>();
  const uint16_t circles = reader.take<uint16_t>();
  const int32_t steps = reader.take<int32_t>();
  const int32_t sources = reader.take<int32_t>();
  const int32_t dependencies = reader.take<int32_t>();
  const int32_t members = reader.take<int32_t>();
  if (type > static_cast<uint8_t>(DataType::kComplex128)) return badSchedule("no type " + std::to_string(type));
  if (op > static_cast<uint8_t>(ReduceOp::kMean)) return badSchedule("no op " + std::to_string(op));
  schedule.type = static_cast<DataType>(type);
  schedule.op = static_cast<ReduceOp>(op);
  schedule.chunk_bytes = reader.take<int64_t>();
  schedule.input_bytes = reader.take<int64_t>();
  schedule.output_bytes = reader.take<int64_t>();
  schedule.scratch_bytes = reader.take<int64_t>();
  schedule.plan_hash = reader.take<uint64_t>();
  if (steps < 0 || sources < 0 || dependencies < 0 || members < 0) return badSchedule("a negative count in the header");
  const Counts counts{static_cast<size_t>(steps), static_cast<size_t>(sources), static_cast<size_t>(dependencies),
                      circles, static_cast<size_t>(members)};
  // Counts are below 2^31 and entries below 64 bytes: no overflow.
  const uint64_t wanted = kHeaderBytes + uint64_t{counts.steps} * kStepBytes + uint64_t{counts.sources} * kSourceBytes +
                          uint64_t{counts.dependencies} * kDependencyBytes + uint64_t{counts.circles} * kCircleBytes +
                          uint64_t{counts.members} * kMemberBytes;
  if (wanted != size) {
    return badSchedule("the counts of the header need " + std::to_string(wanted) + " bytes, there are " +
                       std::to_string(size));
  }
  return counts;
}

void takeSteps(Reader& reader, size_t count, std::vector<Step>& steps) {
  steps.resize(count);
  reader.column<uint8_t>(count, [&](size_t i, uint8_t v) { steps[i].kind = static_cast<StepKind>(v); });
  // Other values than 0 and 1 are refused before the columns are read.
  reader.column<uint8_t>(count, [&](size_t i, uint8_t v) { steps[i].final = v != 0; });
  reader.column<uint16_t>(count, [&](size_t i, uint16_t v) { steps[i].stream = v; });
  reader.column<int32_t>(count, [&](size_t i, int32_t v) { steps[i].peer = v; });
  reader.column<int64_t>(count, [&](size_t i, int64_t v) { steps[i].length = v; });
  reader.column<uint8_t>(count, [&](size_t i, uint8_t v) { steps[i].target.buffer = static_cast<Buffer>(v); });
  reader.column<int64_t>(count, [&](size_t i, int64_t v) { steps[i].target.offset = v; });
  reader.column<int32_t>(count, [&](size_t i, int32_t v) { steps[i].target.wrap = v; });
  int32_t begin = 0;
  reader.column<int32_t>(count, [&](size_t i, int32_t v) {
    steps[i].sources_begin = begin;
    begin = steps[i].sources_end = v;
  });
  begin = 0;
  reader.column<int32_t>(count, [&](size_t i, int32_t v) {
    steps[i].dependencies_begin = begin;
    begin = steps[i].dependencies_end = v;
  });
}

/// The members of circle k begin where those of circle k-1 end.
Status takeCircles(Reader& reader, const Counts& counts, std::vector<Circle>& circles) {
  std::vector<int32_t> ends(counts.circles), members(counts.members);
  circles.resize(counts.circles);
  reader.column<uint16_t>(counts.circles, [&](size_t i, uint16_t v) { circles[i].lag = v; });
  reader.column<int32_t>(counts.circles, [&](size_t i, int32_t v) { ends[i] = v; });
  reader.column<int32_t>(counts.members, [&](size_t i, int32_t v) { members[i] = v; });
  int32_t begin = 0;
  for (size_t i = 0; i < counts.circles; ++i) {
    if (ends[i] < begin || static_cast<size_t>(ends[i]) > counts.members) return badSchedule("circle_end descends");
    circles[i].members.assign(members.begin() + begin, members.begin() + ends[i]);
    begin = ends[i];
  }
  return static_cast<size_t>(begin) == counts.members ? Status::ok() : badSchedule("circle_end is not their number");
}

/// `final` is a byte in the form and a bool in the value: anything but 0 and 1 is refused.
Status checkFinals(const void* data, size_t steps) {
  const auto* finals = static_cast<const unsigned char*>(data) + kHeaderBytes + steps;
  for (size_t i = 0; i < steps; ++i) {
    if (finals[i] > 1) return badSchedule("step " + std::to_string(i) + ": final is not 0 or 1");
  }
  return Status::ok();
}

}  // namespace

Result<std::shared_ptr<const Schedule>> decode(const void* data, size_t size) {
  auto schedule = std::make_shared<Schedule>();
  Reader reader(data);
  Result<Counts> header = takeHeader(reader, size, *schedule);
  if (!header.isOk()) return header.status();
  const Counts counts = header.value();
  JHETCC_RETURN_IF_ERROR(checkFinals(data, counts.steps));
  takeSteps(reader, counts.steps, schedule->steps);
  auto& sources = schedule->sources;
  sources.resize(counts.sources);
  reader.column<uint8_t>(counts.sources, [&](size_t i, uint8_t v) { sources[i].buffer = static_cast<Buffer>(v); });
  reader.column<int64_t>(counts.sources, [&](size_t i, int64_t v) { sources[i].offset = v; });
  reader.column<int32_t>(counts.sources, [&](size_t i, int32_t v) { sources[i].wrap = v; });
  auto& dependencies = schedule->dependencies;
  dependencies.resize(counts.dependencies);
  reader.column<int32_t>(counts.dependencies, [&](size_t i, int32_t v) { dependencies[i].step = v; });
  reader.column<int32_t>(counts.dependencies, [&](size_t i, int32_t v) { dependencies[i].distance = v; });
  JHETCC_RETURN_IF_ERROR(takeCircles(reader, counts, schedule->circles));
  JHETCC_RETURN_IF_ERROR(validate(*schedule));
  return std::shared_ptr<const Schedule>(std::move(schedule));
}

}  // namespace jhetcc::schedule
