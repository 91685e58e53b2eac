// SPDX-License-Identifier: Apache-2.0
// Private to the reductions: the same kernels compiled once per instruction set. Values only, any thread.
#pragma once

#include "engine/reduce.h"

namespace jhetcc::engine {

/// Runs one reduction in the floating-point mode that FloatingPointMode sets; bytes > 0.
using Kernel = void (*)(const Reduction&);

/// The kernel of a pair, or nullptr where canReduce is false. `divide`: a mean whose divisor is not 0.
Kernel baseKernel(schedule::DataType type, schedule::ReduceOp op, bool divide);
#if defined(__x86_64__)
Kernel avx2Kernel(schedule::DataType type, schedule::ReduceOp op, bool divide);
Kernel avx512Kernel(schedule::DataType type, schedule::ReduceOp op, bool divide);
#endif

}  // namespace jhetcc::engine
