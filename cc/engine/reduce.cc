// SPDX-License-Identifier: Apache-2.0
// Chooses the instruction set and the kernel, and sets the floating-point mode round it. Any thread.
#include "engine/reduce.h"

#include <atomic>
#include <cstring>
#include <string>

#include "base/status.h"
#include "engine/floating_point_mode.h"
#include "engine/kernels.h"

namespace jhetcc::engine {
namespace {

using FindKernel = Kernel (*)(schedule::DataType, schedule::ReduceOp, bool);

struct Simd {
  const char* name;
  FindKernel find;
  bool (*present)();
};

// Best first; the last one is always there.
constexpr Simd kSimds[] = {
#if defined(__x86_64__)
    {"avx512", avx512Kernel,
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("f16c");
     }},
    {"avx2", avx2Kernel, [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }},
#endif
    {"base", baseKernel, [] { return true; }},
};

const Simd* best() {
  for (const Simd& simd : kSimds)
    if (simd.present()) return &simd;
  return nullptr;  // not reached: base is always present
}

std::atomic<const Simd*>& chosen() {
  static std::atomic<const Simd*> simd{best()};
  return simd;
}

std::string pairText(const Reduction& reduction) {
  return "type " + std::to_string(static_cast<int>(reduction.type)) + ", operation " +
         std::to_string(static_cast<int>(reduction.op));
}

}  // namespace

bool canReduce(schedule::DataType type, schedule::ReduceOp op) { return baseKernel(type, op, false) != nullptr; }

void reduce(const Reduction& reduction) {
  JHETCC_CHECK(canReduce(reduction.type, reduction.op), pairText(reduction));
  JHETCC_CHECK(reduction.count >= 1, std::to_string(reduction.count));
  JHETCC_CHECK(reduction.divisor >= 0 && (reduction.divisor == 0 || reduction.op == schedule::ReduceOp::kMean),
               std::to_string(reduction.divisor) + ", " + pairText(reduction));
  JHETCC_CHECK(reduction.bytes % schedule::itemSize(reduction.type) == 0,
               std::to_string(reduction.bytes) + ", " + pairText(reduction));
  if (reduction.bytes == 0) return;
  const Kernel kernel =
      chosen().load(std::memory_order_relaxed)->find(reduction.type, reduction.op, reduction.divisor != 0);
  const FloatingPointMode mode;
  kernel(reduction);
}

const char* simdName() { return chosen().load(std::memory_order_relaxed)->name; }

bool setSimd(const char* name) {
  if (std::strcmp(name, "auto") == 0) {
    chosen().store(best(), std::memory_order_relaxed);
    return true;
  }
  for (const Simd& simd : kSimds) {
    if (std::strcmp(name, simd.name) != 0) continue;
    if (!simd.present()) return false;
    chosen().store(&simd, std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace jhetcc::engine
