// SPDX-License-Identifier: Apache-2.0
// A schedule as one rank holds it: columnar steps over three buffers. Values only; decides nothing, runs nothing.
// The same value lives in Python (jhetcc/schedule), which plans, proves and encodes it; this room decodes and checks.
//
// Iterations. A step covers `length` bytes in ceil(length / chunk_bytes) iterations, at least one (a zero-byte message
// is a message). Iteration i covers the bytes [i*chunk_bytes, min(length, (i+1)*chunk_bytes)). Place. Iteration i of a
// linear operand (wrap 0) lies at offset + i*chunk_bytes; with wrap W > 0 it lies at offset + (i mod W)*chunk_bytes (a
// ring of W slots in scratch). Dependency (step, distance d >= 0): iteration i waits for iteration min(i - d, last) of
// that step when i - d >= 0. Distance kWhole (-1): every iteration waits for all iterations of that step. Matching: the
// k-th message (iteration order) from a to b in a stream meets b's k-th receive of that stream; a stream carries at
// most one send step per (a, b), so message index = iteration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace jhetcc::schedule {

enum class StepKind : uint8_t {
  kSend = 0,
  kRecv,
  kReduce,
  kCopy,
  kFill,
  kNativeReduce,
  kNativeBroadcast,
  kNativeAllReduce,
};
enum class Buffer : uint8_t { kInput = 0, kOutput = 1, kScratch = 2 };
constexpr int32_t kWhole = -1;

/// Element types of reductions; the numbers are part of the binary form.
enum class DataType : uint8_t {
  kBytes = 0,  ///< moved only
  kBool,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kComplex64,
  kComplex128,
};
enum class ReduceOp : uint8_t { kNone = 0, kSum, kProd, kMax, kMin, kMean };

size_t itemSize(DataType type);

struct Operand {
  Buffer buffer;
  int64_t offset;
  int32_t wrap;  ///< 0 linear, else slots of the ring
};
struct Dependency {
  int32_t step;
  int32_t distance;
};

/// The ranks of one vendor's communicator, in its order. Circles of the same ranks are one communicator.
struct Circle {
  uint16_t lag;  ///< iterations that its calls come late in the order of native calls
  std::vector<int32_t> members;
};

/// One step, a row of the columns. Sources: send and copy have one, reduce one or more (reduced left to right), recv
/// and fill none. send has no target. Native steps: a reduction has one source on every member and a target at the root
/// (all_reduce: on every member); a broadcast has a source at the root and a target on every member, at the root
/// perhaps the source itself, which is then left alone.
struct Step {
  StepKind kind;
  bool final;       ///< reduce: the result is complete, apply the mean's division
  uint16_t stream;  ///< send, recv; native: number of its circle
  int32_t peer;     ///< send, recv: index within the communicator; native: the root, -1 for all_reduce; else -1
  int64_t length;   ///< bytes
  Operand target;
  int32_t sources_begin, sources_end;            ///< into Schedule::sources
  int32_t dependencies_begin, dependencies_end;  ///< into Schedule::dependencies
};

struct Schedule {
  int32_t size = 0;  ///< ranks of the communicator
  int32_t rank = 0;  ///< whose projection this is
  DataType type = DataType::kBytes;
  ReduceOp op = ReduceOp::kNone;
  int64_t chunk_bytes = 0;
  int64_t input_bytes = 0, output_bytes = 0, scratch_bytes = 0;
  uint64_t plan_hash = 0;  ///< equal on all ranks that planned alike; goes into the fingerprint
  std::vector<Step> steps;
  std::vector<Operand> sources;
  std::vector<Dependency> dependencies;
  std::vector<Circle> circles;
};

inline bool isNative(StepKind kind) { return kind >= StepKind::kNativeReduce; }
/// Whether a rank writes a target in this step.
inline bool writes(const Step& step, int32_t rank) {
  return step.kind != StepKind::kSend && (step.kind != StepKind::kNativeReduce || step.peer == rank);
}

inline int64_t iterations(int64_t length, int64_t chunk_bytes) {
  return length <= chunk_bytes ? 1 : (length + chunk_bytes - 1) / chunk_bytes;
}

/// Decodes and validates (ranges inside buffers, dependencies on existing steps, kinds, wraps, matching rule).
/// Nothing is allocated before the lengths are checked against `size`.
Result<std::shared_ptr<const Schedule>> decode(const void* data, size_t size);

}  // namespace jhetcc::schedule
