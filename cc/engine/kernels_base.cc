// SPDX-License-Identifier: Apache-2.0
// The reduction kernels for the architecture's base instruction set (SSE2 on x86-64, NEON on aarch64).
#include "engine/kernels.h"
#include "engine/kernels.inc"

namespace jhetcc::engine {

Kernel baseKernel(schedule::DataType type, schedule::ReduceOp op, bool divide) { return findKernel(type, op, divide); }

}  // namespace jhetcc::engine
