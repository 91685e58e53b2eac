// SPDX-License-Identifier: Apache-2.0
// Round to nearest, denormals kept, exceptions masked, for the life of one object; then the caller's mode again.
// Any thread: the mode belongs to the calling thread. The arithmetic must stand in a function that is called, not
// inlined, while the object lives: a compiler may move arithmetic over a change of the mode, but not over an opaque
// call.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

namespace jhetcc::engine {

#if defined(__x86_64__)

class FloatingPointMode {
 public:
  FloatingPointMode() : saved_(_mm_getcsr()) { _mm_setcsr(kMode); }
  ~FloatingPointMode() { _mm_setcsr(saved_); }  // the caller's sticky flags too
  FloatingPointMode(const FloatingPointMode&) = delete;
  FloatingPointMode& operator=(const FloatingPointMode&) = delete;

 private:
  static constexpr uint32_t kMode = 0x1f80;  // all exceptions masked, nearest, neither FTZ nor DAZ
  uint32_t saved_;
};

#elif defined(__aarch64__)

class FloatingPointMode {
 public:
  FloatingPointMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_)::"memory");
    asm volatile("msr fpcr, %0" ::"r"(uint64_t{0}) : "memory");  // nearest, no FZ, no default NaN, no traps
  }
  ~FloatingPointMode() { asm volatile("msr fpcr, %0" ::"r"(saved_) : "memory"); }
  FloatingPointMode(const FloatingPointMode&) = delete;
  FloatingPointMode& operator=(const FloatingPointMode&) = delete;

 private:
  uint64_t saved_;
};

#else

class FloatingPointMode {
 public:
  FloatingPointMode() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatingPointMode() { std::fesetenv(&saved_); }
  FloatingPointMode(const FloatingPointMode&) = delete;
  FloatingPointMode& operator=(const FloatingPointMode&) = delete;

 private:
  std::fenv_t saved_;
};

#endif

}  // namespace jhetcc::engine
