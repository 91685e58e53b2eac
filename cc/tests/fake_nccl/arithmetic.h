// SPDX-License-Identifier: Apache-2.0
// Reductions of the tests' NCCL: contributions in rank order; 16-bit floats in f32, rounded once. Values only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace jhetcc::tests::fake_nccl {

// ncclDataType_t and ncclRedOp_t.
enum Type { kInt8, kUint8, kInt32, kUint32, kInt64, kUint64, kFloat16, kFloat32, kFloat64, kBfloat16, kTypes };
enum Op { kSum, kProd, kMax, kMin, kOps };

inline size_t sizeOf(int type) {
  constexpr size_t kSizes[kTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kSizes[type];
}

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

inline float floatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint32_t bitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float widen(Brain value) { return floatOf(static_cast<uint32_t>(value.bits) << 16); }
inline Brain narrowBrain(float value) {
  const uint32_t bits = bitsOf(value);
  if (value != value) return {0x7fc0};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

inline float widen(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t exponent = (value.bits >> 10) & 31, fraction = value.bits & 0x3ff;
  if (exponent == 31) return floatOf(sign | 0x7f800000 | fraction << 13);
  if (exponent != 0) return floatOf(sign | (exponent + 112) << 23 | fraction << 13);
  const float tiny = static_cast<float>(fraction) * 0x1p-24f;
  return sign != 0 ? -tiny : tiny;
}
inline Half narrowHalf(float value) {
  const uint32_t bits = bitsOf(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  const auto with = [&](uint32_t low) { return Half{static_cast<uint16_t>(sign | low)}; };
  if (magnitude > 0x7f800000) return {0x7e00};
  if (magnitude >= 0x477ff000) return with(0x7c00);  // from 65520 on
  if (magnitude < 0x38800000) {                      // denormal: the sum rounds at the right place
    return with(bitsOf(floatOf(magnitude) + 0.5f) - bitsOf(0.5f));
  }
  return with((magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13);
}

template <typename T>
T combine(T a, T b, int op) {
  if constexpr (std::is_integral_v<T>) {  // wraps
    using U = std::conditional_t<(sizeof(T) < sizeof(unsigned)), unsigned, std::make_unsigned_t<T>>;
    if (op == kSum) return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    if (op == kProd) return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  } else {
    if (op == kSum) return a + b;
    if (op == kProd) return a * b;
  }
  return (op == kMax) == (a < b) ? b : a;
}

template <typename T>
void reduceAs(const std::vector<const uint8_t*>& sources, uint8_t* target, size_t count, int op) {
  const auto load = [&](size_t rank, size_t k) {
    T value;
    std::memcpy(&value, sources[rank] + k * sizeof(T), sizeof(T));
    return value;
  };
  for (size_t k = 0; k < count; ++k) {
    T result = load(0, k);
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Brain>) {
      float sum = widen(result);
      for (size_t rank = 1; rank < sources.size(); ++rank) sum = combine(sum, widen(load(rank, k)), op);
      if constexpr (std::is_same_v<T, Half>) {
        result = narrowHalf(sum);
      } else {
        result = narrowBrain(sum);
      }
    } else {
      for (size_t rank = 1; rank < sources.size(); ++rank) result = combine(result, load(rank, k), op);
    }
    std::memcpy(target + k * sizeof(T), &result, sizeof(T));
  }
}

/// `target` is none of the sources.
inline void reduce(const std::vector<const uint8_t*>& sources, uint8_t* target, size_t count, int type, int op) {
  switch (type) {
    case kInt8:
      return reduceAs<int8_t>(sources, target, count, op);
    case kUint8:
      return reduceAs<uint8_t>(sources, target, count, op);
    case kInt32:
      return reduceAs<int32_t>(sources, target, count, op);
    case kUint32:
      return reduceAs<uint32_t>(sources, target, count, op);
    case kInt64:
      return reduceAs<int64_t>(sources, target, count, op);
    case kUint64:
      return reduceAs<uint64_t>(sources, target, count, op);
    case kFloat16:
      return reduceAs<Half>(sources, target, count, op);
    case kFloat32:
      return reduceAs<float>(sources, target, count, op);
    case kFloat64:
      return reduceAs<double>(sources, target, count, op);
    case kBfloat16:
      return reduceAs<Brain>(sources, target, count, op);
    default:
      return;
  }
}

}  // namespace jhetcc::tests::fake_nccl
