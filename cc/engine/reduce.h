// SPDX-License-Identifier: Apache-2.0
// Reductions on the host: k sources into one target, left to right, bit for bit the same on every machine.
// Any thread. The floating-point mode is set (round to nearest, no flushing of denormals) and restored inside.
#pragma once

#include <cstddef>

#include "schedule/schedule.h"

namespace jhetcc::engine {

struct Reduction {
  void* target;                ///< may be one of the sources
  const void* const* sources;  ///< `count` of them, each `bytes` long, any alignment
  int count;                   ///< >= 1
  size_t bytes;                ///< multiple of the item size
  schedule::DataType type;
  schedule::ReduceOp op;
  int divisor;  ///< kMean and the result is complete: divide by this, else 0
};

/// Whether (type, op) exists: complex has no max and min; kBytes has nothing.
bool canReduce(schedule::DataType type, schedule::ReduceOp op);

void reduce(const Reduction& reduction);

/// Name of the instruction set chosen at run time: "avx512", "avx2", "base". JHETCC_SIMD (read once by the runtime)
/// caps it.
const char* simdName();
/// Caps the instruction set ("base", "avx2", "avx512", "auto"); false if unknown or not present on this machine.
bool setSimd(const char* name);

}  // namespace jhetcc::engine
