// SPDX-License-Identifier: Apache-2.0
// What reduce() promises besides values: in place, the caller's floating-point mode, the choice of kernels, checked
// misuse.
#include <doctest/doctest.h>

#include <cfenv>

#include "base/status.h"
#include "engine/floating_point_mode.h"
#include "reduce_oracle.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace jhetcc::engine {
namespace {

using namespace oracle;

TEST_CASE("the target may be any one of the sources") {
  std::mt19937_64 random(11);
  for (const char* simd : {"base", "avx2", "avx512"}) {
    if (!setSimd(simd)) continue;
    for (const DataType type : kTypes)
      for (const ReduceOp op : kOps) {
        if (!canReduce(type, op)) continue;
        for (const size_t items : {size_t{37}, size_t{20011}}) {
          const size_t count = 1 + random() % 4, which = random() % count, bytes = items * sizeOf(type);
          if (bytes > 100'000) continue;
          std::vector<Bytes> sources;
          for (size_t k = 0; k < count; ++k) sources.push_back(draw(type, bytes, random));
          const Bytes want = expected(type, op, 0, sources);
          std::vector<Bytes> before = sources;
          std::vector<const void*> at;
          for (const Bytes& source : sources) at.push_back(source.data());
          CAPTURE(static_cast<int>(type));
          CAPTURE(static_cast<int>(op));
          reduce({sources[which].data(), at.data(), static_cast<int>(count), bytes, type, op, 0});
          REQUIRE(sources[which] == want);
          for (size_t k = 0; k < count; ++k) {
            if (k != which) REQUIRE(sources[k] == before[k]);
          }
        }
      }
  }
  CHECK(setSimd("auto"));
}

TEST_CASE("the same source may be given twice") {
  const uint32_t x[3] = {1, 0x80000001u, 7};
  uint32_t y[3];
  const void* at[] = {x, x, x};
  reduce({y, at, 3, sizeof x, DataType::kUint32, ReduceOp::kSum, 0});
  CHECK(y[0] == 3);
  CHECK(y[1] == 0x80000003u);
  CHECK(y[2] == 21);
}

#if defined(__x86_64__)
TEST_CASE("a caller that flushes denormals and rounds down gets the same bits, and its mode back with its flags") {
  std::mt19937_64 random(5);
  const uint32_t entry = _mm_getcsr();
  for (const char* simd : {"base", "avx2", "avx512"}) {
    if (!setSimd(simd)) continue;
    for (const DataType type : kTypes)
      for (const ReduceOp op : kOps) {
        if (!canReduce(type, op)) continue;
        std::vector<Bytes> sources = {draw(type, 2048, random), draw(type, 2048, random), draw(type, 2048, random)};
        const int divisor = op == ReduceOp::kMean ? 3 : 0;
        const Bytes want = expected(type, op, divisor, sources);
        const void* at[] = {sources[0].data(), sources[1].data(), sources[2].data()};
        Bytes got(2048);
        const uint32_t flushed = 0x8000u | 0x0040u | 0x2000u | 0x1f80u | 0x0004u;  // FTZ, DAZ, down, masked, one flag
        _mm_setcsr(flushed);
        reduce({got.data(), at, 3, 2048, type, op, divisor});
        const uint32_t after = _mm_getcsr();
        _mm_setcsr(entry);
        CAPTURE(simd);
        CAPTURE(static_cast<int>(type));
        CAPTURE(static_cast<int>(op));
        REQUIRE(after == flushed);
        REQUIRE(got == want);
      }
  }
  CHECK(setSimd("auto"));
}
#endif

/// 1.0 + 1e-10 in the mode of the moment: volatile, so the sum is made here and nowhere else.
float onePlusLittle() {
  volatile float one = 1.0f, little = 1e-10f, sum;
  sum = one + little;
  return sum;
}

TEST_CASE("the mode is set inside and restored after, on every architecture") {
  REQUIRE(std::fesetround(FE_UPWARD) == 0);
  float inside;
  {
    const FloatingPointMode mode;
    inside = onePlusLittle();
  }
  const float after = onePlusLittle();
  std::fesetround(FE_TONEAREST);
  CHECK(inside == 1.0f);
  CHECK(after > 1.0f);
}

TEST_CASE("which pairs exist") {
  for (const DataType type : kTypes)
    for (const ReduceOp op : kOps) {
      const bool number = isFloat(type) || isComplex(type);
      const bool want =
          op == ReduceOp::kMean ? number : !(isComplex(type) && (op == ReduceOp::kMax || op == ReduceOp::kMin));
      CAPTURE(static_cast<int>(type));
      CAPTURE(static_cast<int>(op));
      CHECK(canReduce(type, op) == want);
    }
  CHECK_FALSE(canReduce(DataType::kBytes, ReduceOp::kSum));
  CHECK_FALSE(canReduce(DataType::kFloat32, ReduceOp::kNone));
}

TEST_CASE("the instruction set is chosen by name") {
  CHECK_FALSE(setSimd("avx1024"));
  CHECK_FALSE(setSimd(""));
  REQUIRE(setSimd("base"));
  CHECK(std::strcmp(simdName(), "base") == 0);
  CHECK_FALSE(setSimd("sse"));  // a refused name changes nothing
  CHECK(std::strcmp(simdName(), "base") == 0);
  REQUIRE(setSimd("auto"));
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) CHECK(std::strcmp(simdName(), "base") != 0);
#endif
}

TEST_CASE("misuse is caught before memory is touched") {
  float x[2] = {1, 2};
  const void* at[] = {x};
  CHECK_THROWS_AS(reduce({x, at, 1, 8, DataType::kComplex64, ReduceOp::kMax, 0}), CheckFailure);
  CHECK_THROWS_AS(reduce({x, at, 1, 8, DataType::kBytes, ReduceOp::kSum, 0}), CheckFailure);
  CHECK_THROWS_AS(reduce({x, at, 0, 8, DataType::kFloat32, ReduceOp::kSum, 0}), CheckFailure);
  CHECK_THROWS_AS(reduce({x, at, 1, 7, DataType::kFloat32, ReduceOp::kSum, 0}), CheckFailure);
  CHECK_THROWS_AS(reduce({x, at, 1, 8, DataType::kFloat32, ReduceOp::kSum, 2}), CheckFailure);
  CHECK_THROWS_AS(reduce({x, at, 1, 8, DataType::kFloat32, ReduceOp::kMean, -1}), CheckFailure);
  reduce({nullptr, at, 1, 0, DataType::kFloat32, ReduceOp::kSum, 0});  // nothing to do is no misuse
  CHECK(x[0] == 1);
}

}  // namespace
}  // namespace jhetcc::engine
