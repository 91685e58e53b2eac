// SPDX-License-Identifier: Apache-2.0
// The reduction kernels for AVX2 and F16C; called only where the processor has it. Empty on other architectures.
#include "engine/kernels.h"

#if defined(__x86_64__)

#include "engine/kernels.inc"

namespace jhetcc::engine {

Kernel avx2Kernel(schedule::DataType type, schedule::ReduceOp op, bool divide) { return findKernel(type, op, divide); }

}  // namespace jhetcc::engine

#endif
