// SPDX-License-Identifier: Apache-2.0
// decode(): a schedule that Python made, and everything that a hostile or broken one can be.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace jhetcc::schedule {
namespace {

constexpr char kMeanHex[] =
#include "schedule/pmean_two_shot.inc"
    ;
constexpr char kNativeHex[] =
#include "schedule/psum_native.inc"
    ;

using Bytes = std::vector<unsigned char>;

Bytes bytesOf(std::string_view hex) {
  Bytes bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<unsigned char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}
Bytes meanBlob() { return bytesOf(kMeanHex); }
Bytes nativeBlob() { return bytesOf(kNativeHex); }

template <typename T>
T load(const Bytes& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

template <typename T>
Bytes with(Bytes bytes, size_t at, T value) {
  const auto* begin = reinterpret_cast<const unsigned char*>(&value);
  for (size_t i = 0; i < sizeof(T); ++i) bytes.at(at + i) = begin[i];
  return bytes;
}

/// Where the columns of a blob begin, by docs/seams.md.
struct Columns {
  size_t steps, sources, dependencies;
  size_t kind = 72, final, stream, peer, length, target_buffer, target_offset, target_wrap, sources_end,
         dependencies_end, source_buffer, source_offset, source_wrap, dependency_step, dependency_distance;

  explicit Columns(const Bytes& b)
      : steps(load<uint32_t>(b, 16)), sources(load<uint32_t>(b, 20)), dependencies(load<uint32_t>(b, 24)) {
    final = kind + steps;
    stream = final + steps;
    peer = stream + 2 * steps;
    length = peer + 4 * steps;
    target_buffer = length + 8 * steps;
    target_offset = target_buffer + steps;
    target_wrap = target_offset + 8 * steps;
    sources_end = target_wrap + 4 * steps;
    dependencies_end = sources_end + 4 * steps;
    source_buffer = dependencies_end + 4 * steps;
    source_offset = source_buffer + sources;
    source_wrap = source_offset + 8 * sources;
    dependency_step = source_wrap + 4 * sources;
    dependency_distance = dependency_step + 4 * dependencies;
  }
};

size_t stepOf(const Schedule& schedule, StepKind kind) {
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    if (schedule.steps[i].kind == kind) return i;
  }
  FAIL("no such step");
  return 0;
}

void checkRefused(const Bytes& bytes, const std::string& part) {
  const auto result = decode(bytes.data(), bytes.size());
  REQUIRE_FALSE(result.isOk());
  CHECK(result.status().kind() == Kind::kBadArgument);
  CHECK(result.status().code() == "bad_schedule");
  INFO(result.status().message());
  CHECK(result.status().message().find(part) != std::string::npos);
}

TEST_CASE("a schedule made by Python decodes to what was planned") {
  const Bytes bytes = meanBlob();
  const auto result = decode(bytes.data(), bytes.size());
  REQUIRE_MESSAGE(result.isOk(), result.status().message());
  const Schedule& s = *result.value();
  CHECK(s.size == 3);
  CHECK(s.rank == 1);
  CHECK(s.type == DataType::kFloat32);
  CHECK(s.op == ReduceOp::kMean);
  CHECK(s.chunk_bytes == 16);
  CHECK(s.input_bytes == 280);
  CHECK(s.output_bytes == 280);
  CHECK(s.plan_hash != 0);
  REQUIRE(s.steps.size() == 9);
  const Step& reduce = s.steps[stepOf(s, StepKind::kReduce)];
  CHECK(reduce.final);
  CHECK(reduce.length == 92);  // 70 elements over 3 ranks: 24, 23, 23
  CHECK(reduce.target.buffer == Buffer::kOutput);
  CHECK(reduce.target.offset == 96);
  CHECK(reduce.sources_end - reduce.sources_begin == 3);
  // Rank order: own contribution in the middle.
  CHECK(s.sources[static_cast<size_t>(reduce.sources_begin) + 1].buffer == Buffer::kInput);
  CHECK(iterations(reduce.length, s.chunk_bytes) == 6);
  const Step& recv = s.steps[stepOf(s, StepKind::kRecv)];
  CHECK(recv.target.wrap == 4);
  REQUIRE(recv.dependencies_end > recv.dependencies_begin);
  CHECK(s.dependencies[static_cast<size_t>(recv.dependencies_begin)].distance == 4);
}

TEST_CASE("every truncation is refused, and so is a byte too many") {
  const Bytes whole = meanBlob();
  for (size_t size = 0; size < whole.size(); ++size) {
    const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));  // so that ASan sees the end
    checkRefused(part, "schedule: ");
  }
  Bytes longer = whole;
  longer.push_back(0);
  checkRefused(longer, "bytes, there are");
}

TEST_CASE("counts are checked before anything is allocated") {
  const Bytes good = meanBlob();
  for (const size_t at : {16, 20, 24}) {
    checkRefused(with<int32_t>(good, at, 0x7fffffff), "bytes, there are");
    checkRefused(with<int32_t>(good, at, -1), "negative count");
  }
}

TEST_CASE("header fields") {
  const Bytes good = meanBlob();
  checkRefused(with<uint32_t>(good, 0, 0x3153484B), "magic");
  checkRefused(with<int32_t>(good, 4, 0), "rank 1 is not one of 0");
  checkRefused(with<int32_t>(good, 8, 3), "rank 3");
  checkRefused(with<int32_t>(good, 8, -1), "rank -1");
  checkRefused(with<uint8_t>(good, 12, 16), "no type 16");
  checkRefused(with<uint8_t>(good, 13, 6), "no op 6");
  checkRefused(with<uint16_t>(good, 14, 1), "bytes, there are");  // circles
  checkRefused(with<int32_t>(good, 28, 1), "bytes, there are");   // their members
  checkRefused(with<int32_t>(good, 28, -1), "negative count");
  checkRefused(with<int64_t>(good, 32, 0), "chunk_bytes 0");
  checkRefused(with<int64_t>(good, 32, 18), "item size 4");
  checkRefused(with<int64_t>(good, 40, -8), "negative or absurd");
  checkRefused(with<int64_t>(good, 48, INT64_MAX), "negative or absurd");
  checkRefused(with<uint8_t>(good, 12, 0), "cannot be reduced");
  checkRefused(with<uint8_t>(good, 13, 0), "cannot be reduced");
}

TEST_CASE("step fields name the step and the field") {
  const Bytes good = meanBlob();
  const Columns at(good);
  const auto decoded = decode(good.data(), good.size());
  REQUIRE(decoded.isOk());
  const size_t reduce = stepOf(*decoded.value(), StepKind::kReduce);
  const size_t recv = stepOf(*decoded.value(), StepKind::kRecv);
  const std::string reduce_text = "step " + std::to_string(reduce) + " (reduce): ";
  checkRefused(with<uint8_t>(good, at.kind, 8), "step 0 (unknown): no kind 8");
  checkRefused(with<uint8_t>(good, at.kind, 5), "step 0 (native_reduce): no circle 0");
  checkRefused(with<uint8_t>(good, at.kind, 3), "step 0 (copy): peer or stream");
  checkRefused(with<uint8_t>(good, at.final, 1), "step 0 (send): final");
  checkRefused(with<uint8_t>(good, at.final + reduce, 2), "final is not 0 or 1");
  checkRefused(with<int32_t>(good, at.peer, 1), "step 0 (send): peer 1");
  checkRefused(with<int32_t>(good, at.peer, 3), "step 0 (send): peer 3");
  checkRefused(with<int32_t>(good, at.peer, -1), "step 0 (send): peer -1");
  checkRefused(with<uint16_t>(good, at.stream + 2 * reduce, 1), reduce_text + "peer or stream");
  checkRefused(with<int64_t>(good, at.length, -1), "step 0 (send): length -1");
  checkRefused(with<int64_t>(good, at.length, INT64_MAX), "step 0 (send): length");
  checkRefused(with<int64_t>(good, at.length + 8 * recv, INT64_MAX), "(recv): length");
  checkRefused(with<int64_t>(good, at.length, 281), "step 0 (send): source 0");
  checkRefused(with<int64_t>(good, at.length + 8 * reduce, 90), reduce_text + "length 90");
  checkRefused(with<uint8_t>(good, at.target_buffer, 1), "step 0 (send): target is set");
  checkRefused(with<uint8_t>(good, at.target_buffer + reduce, 0), reduce_text + "target is the input");
  checkRefused(with<uint8_t>(good, at.target_buffer + reduce, 3), reduce_text + "target");
  checkRefused(with<int64_t>(good, at.target_offset + 8 * reduce, 192), reduce_text + "target");
  checkRefused(with<int64_t>(good, at.target_offset + 8 * reduce, 98), reduce_text + "target");
  checkRefused(with<int64_t>(good, at.target_offset + 8 * reduce, INT64_MAX), reduce_text + "target");
  checkRefused(with<int64_t>(good, at.target_offset + 8 * reduce, INT64_MIN), reduce_text + "target");
  checkRefused(with<int32_t>(good, at.target_wrap + 4 * reduce, 2), reduce_text + "target");
  checkRefused(with<int32_t>(good, at.target_wrap + 4 * recv, -1), "(recv): target");
  checkRefused(with<int32_t>(good, at.target_wrap + 4 * (recv + 1), 0x7fffffff), "(recv): target");
}

TEST_CASE("tables of sources and dependencies") {
  const Bytes good = meanBlob();
  const Columns at(good);
  checkRefused(with<int32_t>(good, at.sources_end, 2), "");
  checkRefused(with<int32_t>(good, at.sources_end, -1), "sources_end descends");
  checkRefused(with<int32_t>(good, at.sources_end + 4 * (at.steps - 1), 0x7fffffff), "sources_end");
  checkRefused(with<int32_t>(good, at.dependencies_end, -1), "dependencies_end descends");
  checkRefused(with<int32_t>(good, at.dependencies_end + 4 * (at.steps - 1), 0x7fffffff), "dependencies_end");
  checkRefused(with<uint8_t>(good, at.source_buffer, 3), "step 0 (send): source 0");
  checkRefused(with<int64_t>(good, at.source_offset, 200), "step 0 (send): source 0");
  checkRefused(with<int64_t>(good, at.source_offset, -1), "step 0 (send): source 0");
  checkRefused(with<int32_t>(good, at.source_wrap, 1), "step 0 (send): source 0");
  checkRefused(with<int32_t>(good, at.dependency_step, -1), "names no step");
  checkRefused(with<int32_t>(good, at.dependency_step, static_cast<int32_t>(at.steps)), "names no step");
  checkRefused(with<int32_t>(good, at.dependency_distance, -2), "names no step");
  checkRefused(with<int32_t>(good, at.dependency_distance, 0), "must name an earlier step");
  checkRefused(with<int32_t>(good, at.dependency_distance, -1), "must name an earlier step");
}

TEST_CASE("a stream holds one step for each peer and direction") {
  const Bytes good = meanBlob();
  const Columns at(good);
  // Steps 0 and 1 send to ranks 2 and 0 in stream 0.
  checkRefused(with<int32_t>(good, at.peer + 4, 2), "stream 0 has step 0 with peer 2 already");
}

TEST_CASE("native steps and their circles") {
  const Bytes good = nativeBlob();
  const auto result = decode(good.data(), good.size());
  REQUIRE_MESSAGE(result.isOk(), result.status().message());
  const Schedule& s = *result.value();
  REQUIRE(s.circles.size() == 2);
  CHECK(s.circles[0].members == std::vector<int32_t>{0, 2});
  CHECK(s.circles[0].lag == 0);
  CHECK(s.circles[1].lag == 3);
  const size_t reduce = stepOf(s, StepKind::kNativeReduce);
  const size_t broadcast = stepOf(s, StepKind::kNativeBroadcast);
  CHECK(writes(s.steps[reduce], s.rank));
  CHECK_FALSE(writes(s.steps[reduce], 2));
  CHECK(s.steps[broadcast].stream == 1);

  const Columns at(good);
  const std::string reduce_text = "step " + std::to_string(reduce) + " (native_reduce): ";
  const std::string broadcast_text = "step " + std::to_string(broadcast) + " (native_broadcast): ";
  checkRefused(with<uint16_t>(good, at.stream + 2 * reduce, 2), reduce_text + "no circle 2");
  checkRefused(with<int32_t>(good, at.peer + 4 * reduce, 1), reduce_text + "peer 1 is no root");
  checkRefused(with<int32_t>(good, at.peer + 4 * reduce, -1), reduce_text + "peer -1 is no root");
  checkRefused(with<uint8_t>(good, at.kind + reduce, 7), "(native_all_reduce): peer 0 is no root");
  checkRefused(with<int32_t>(good, at.peer + 4 * reduce, 2),
               reduce_text + "target is set");  // it writes at the root only
  checkRefused(with<int32_t>(good, at.peer + 4 * broadcast, 2), broadcast_text + "sources are 1");
  checkRefused(with<uint8_t>(good, at.final + reduce, 1), reduce_text + "final");
  checkRefused(with<int64_t>(good, at.length + 8 * reduce, 90), reduce_text + "length 90");
  checkRefused(with<int64_t>(good, at.target_offset + 8 * reduce, 2), reduce_text + "target");

  const size_t lags = good.size() - 4 * 4 - 2 * 4 - 2 * 2, ends = lags + 2 * 2, members = ends + 2 * 4;
  REQUIRE(load<int32_t>(good, members + 4) == 2);
  checkRefused(with<int32_t>(good, ends, -1), "circle_end descends");
  checkRefused(with<int32_t>(good, ends, 5), "circle_end descends");
  checkRefused(with<int32_t>(good, ends + 4, 3), "circle_end is not their number");
  checkRefused(with<int32_t>(good, ends, 1), "circle 0 is not two or more");
  checkRefused(with<int32_t>(good, members + 4, 0), "circle 0 is not two or more");
  checkRefused(with<int32_t>(good, members + 4, 3), "circle 0 is not two or more");
  checkRefused(with<int32_t>(good, members, 1), "this rank is not in its circle");
}

TEST_CASE("any single changed byte decodes to a valid schedule or is refused, and never harms") {
  for (const Bytes& good : {meanBlob(), nativeBlob()}) {
    size_t refused = 0;
    for (size_t i = 0; i < good.size(); ++i) {
      for (const unsigned char value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
        const Bytes changed = with<unsigned char>(good, i, value);
        const auto result = decode(changed.data(), changed.size());
        if (!result.isOk()) {
          ++refused;
          CHECK(result.status().code() == "bad_schedule");
          continue;
        }
        for (const Step& step : result.value()->steps) {
          CHECK((!isNative(step.kind) || step.stream < result.value()->circles.size()));
          CHECK(static_cast<size_t>(step.sources_end) <= result.value()->sources.size());
          CHECK(static_cast<size_t>(step.dependencies_end) <= result.value()->dependencies.size());
        }
      }
    }
    CHECK(refused > good.size());
  }
}

TEST_CASE("the empty schedule and a message of no bytes") {
  Bytes empty(meanBlob());
  empty.resize(72);
  empty = with<int32_t>(with<int32_t>(with<int32_t>(empty, 16, 0), 20, 0), 24, 0);
  const auto result = decode(empty.data(), empty.size());
  REQUIRE(result.isOk());
  CHECK(result.value()->steps.empty());
  CHECK(iterations(0, 64) == 1);
  CHECK(iterations(64, 64) == 1);
  CHECK(iterations(65, 64) == 2);
}

}  // namespace
}  // namespace jhetcc::schedule
