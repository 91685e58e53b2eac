// SPDX-License-Identifier: Apache-2.0
// The value table in long form: one element at a time, from the definition of the formats, sharing nothing with the
// kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "engine/reduce.h"

namespace jhetcc::engine::oracle {

using schedule::DataType;
using schedule::ReduceOp;
using Bytes = std::vector<uint8_t>;

constexpr DataType kTypes[] = {DataType::kBool,    DataType::kInt8,      DataType::kInt16,     DataType::kInt32,
                               DataType::kInt64,   DataType::kUint8,     DataType::kUint16,    DataType::kUint32,
                               DataType::kUint64,  DataType::kFloat16,   DataType::kBfloat16,  DataType::kFloat32,
                               DataType::kFloat64, DataType::kComplex64, DataType::kComplex128};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kMean};

inline bool isComplex(DataType type) { return type == DataType::kComplex64 || type == DataType::kComplex128; }
inline bool isFloat(DataType type) { return type >= DataType::kFloat16 && type <= DataType::kFloat64; }
inline bool isSigned(DataType type) { return type >= DataType::kInt8 && type <= DataType::kInt64; }
inline size_t sizeOf(DataType type) {
  switch (type) {
    case DataType::kBool:
    case DataType::kInt8:
    case DataType::kUint8:
      return 1;
    case DataType::kInt16:
    case DataType::kUint16:
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kFloat32:
      return 4;
    case DataType::kComplex128:
      return 16;
    default:
      return 8;
  }
}

/// A binary float format: bits of the fraction and the largest exponent.
struct Format {
  int size, fraction, exponent_max;
  int exponentMin() const { return 1 - exponent_max; }
};
inline Format formatOf(DataType type) {
  switch (type) {
    case DataType::kFloat16:
      return {2, 10, 15};
    case DataType::kBfloat16:
      return {2, 7, 127};
    case DataType::kFloat32:
    case DataType::kComplex64:
      return {4, 23, 127};
    default:
      return {8, 52, 1023};
  }
}

inline double decode(Format format, const uint8_t* at) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, format.size);
  const int sign_bit = format.size * 8 - 1;
  const uint64_t fraction = bits & ((uint64_t{1} << format.fraction) - 1);
  const int exponent =
      static_cast<int>((bits >> format.fraction) & ((uint64_t{1} << (sign_bit - format.fraction)) - 1));
  double value;
  if (exponent == 2 * format.exponent_max + 1) {
    value = fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<double>(fraction), format.exponentMin() - format.fraction);
  } else {
    value = std::ldexp(static_cast<double>(fraction | uint64_t{1} << format.fraction),
                       exponent - format.exponent_max - format.fraction);
  }
  return (bits >> sign_bit) & 1 ? -value : value;
}

/// To nearest, ties to even; a NaN becomes the positive quiet one without payload.
inline void encode(Format format, double value, uint8_t* at) {
  const int sign_bit = format.size * 8 - 1;
  const uint64_t infinity = static_cast<uint64_t>(2 * format.exponent_max + 1) << format.fraction;
  uint64_t bits;
  if (std::isnan(value)) {
    bits = infinity | uint64_t{1} << (format.fraction - 1);
  } else {
    double magnitude = std::fabs(value);
    bits = 0;
    if (std::isinf(magnitude)) {
      bits = infinity;
    } else if (magnitude != 0) {
      int exponent = std::max(std::ilogb(magnitude), format.exponentMin());
      double units = std::nearbyint(std::ldexp(magnitude, format.fraction - exponent));
      if (units == std::ldexp(1.0, format.fraction + 1)) units /= 2, ++exponent;
      const auto whole = static_cast<uint64_t>(units);
      const uint64_t hidden = uint64_t{1} << format.fraction;
      if (exponent > format.exponent_max)
        bits = infinity;
      else if (whole < hidden)
        bits = whole;
      else
        bits = (static_cast<uint64_t>(exponent + format.exponent_max) << format.fraction) | (whole - hidden);
    }
    if (std::signbit(value)) bits |= uint64_t{1} << sign_bit;
  }
  std::memcpy(at, &bits, format.size);
}

/// f16, bf16 and f32 calculate in f32, f64 in f64. A double holds sum, product and quotient of f32 well enough that
/// rounding again to f32 gives the rounded exact result.
inline double roundTo(bool wide, double value) { return wide ? value : static_cast<double>(static_cast<float>(value)); }

inline double combine(ReduceOp op, bool wide, double a, double b) {
  switch (op) {
    case ReduceOp::kProd:
      return roundTo(wide, a * b);
    case ReduceOp::kMax:
    case ReduceOp::kMin: {
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
      const bool a_first = a != b ? a < b : std::signbit(a);
      return (op == ReduceOp::kMin) == a_first ? a : b;
    }
    default:
      return roundTo(wide, a + b);
  }
}

inline void floatElement(DataType type, ReduceOp op, int divisor, const std::vector<const uint8_t*>& at, uint8_t* out) {
  const Format format = formatOf(type);
  const bool wide = format.size == 8;
  double value = decode(format, at[0]);
  for (size_t k = 1; k < at.size(); ++k) value = combine(op, wide, value, decode(format, at[k]));
  if (divisor != 0) value = roundTo(wide, value / divisor);
  encode(format, value, out);
}

inline void complexProduct(DataType type, const std::vector<const uint8_t*>& at, uint8_t* out) {
  const Format format = formatOf(type);
  const bool wide = format.size == 8;
  double re = decode(format, at[0]), im = decode(format, at[0] + format.size);
  const auto r = [wide](double value) { return roundTo(wide, value); };
  for (size_t k = 1; k < at.size(); ++k) {
    const double c = decode(format, at[k]), d = decode(format, at[k] + format.size);
    const double next = r(r(re * c) - r(im * d));
    im = r(r(re * d) + r(im * c));
    re = next;
  }
  encode(format, re, out);
  encode(format, im, out + format.size);
}

inline __int128 integerAt(DataType type, const uint8_t* at) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, sizeOf(type));
  const int width = static_cast<int>(sizeOf(type)) * 8;
  __int128 value = bits;
  if (isSigned(type) && (bits >> (width - 1)) & 1) value -= static_cast<__int128>(1) << width;
  return value;
}

inline void integerElement(DataType type, ReduceOp op, const std::vector<const uint8_t*>& at, uint8_t* out) {
  __int128 value = integerAt(type, at[0]);
  for (size_t k = 1; k < at.size(); ++k) {
    const __int128 next = integerAt(type, at[k]);
    const auto left = static_cast<uint64_t>(value), right = static_cast<uint64_t>(next);
    if (op == ReduceOp::kMax) value = std::max(value, next);
    if (op == ReduceOp::kMin) value = std::min(value, next);
    if (op == ReduceOp::kSum) value = left + right;  // the low bits are all that is kept
    if (op == ReduceOp::kProd) value = left * right;
  }
  const auto low = static_cast<uint64_t>(value);
  std::memcpy(out, &low, sizeOf(type));
}

inline void boolElement(ReduceOp op, const std::vector<const uint8_t*>& at, uint8_t* out) {
  int trues = 0;
  for (const uint8_t* source : at) trues += *source != 0;
  const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax;
  *out = any ? trues > 0 : trues == static_cast<int>(at.size());
}

inline Bytes expected(DataType type, ReduceOp op, int divisor, const std::vector<Bytes>& sources) {
  Bytes result(sources[0].size());
  const size_t step = isComplex(type) && op != ReduceOp::kProd ? sizeOf(type) / 2 : sizeOf(type);
  std::vector<const uint8_t*> at(sources.size());
  for (size_t i = 0; i < result.size(); i += step) {
    for (size_t k = 0; k < at.size(); ++k) at[k] = sources[k].data() + i;
    if (type == DataType::kBool)
      boolElement(op, at, &result[i]);
    else if (isComplex(type) && op == ReduceOp::kProd)
      complexProduct(type, at, &result[i]);
    else if (isComplex(type) || isFloat(type))
      floatElement(type, op, divisor, at, &result[i]);
    else
      integerElement(type, op, at, &result[i]);
  }
  return result;
}

/// Bits of every sort for `type`: special values, values near each other (so that sums cancel and tie), and noise.
inline Bytes draw(DataType type, size_t bytes, std::mt19937_64& random) {
  Bytes result(bytes);
  for (uint8_t& byte : result) byte = static_cast<uint8_t>(random());
  if (type == DataType::kBool)
    for (uint8_t& byte : result) byte &= 3;  // 2 and 3 count as true
  if (!isFloat(type) && !isComplex(type)) return result;
  const Format format = formatOf(type);
  const double tiny = std::ldexp(1.0, format.exponentMin() - format.fraction);
  const double big = std::ldexp(2.0 - std::ldexp(1.0, -format.fraction), format.exponent_max);
  const double specials[] = {0.0,
                             -0.0,
                             INFINITY,
                             -INFINITY,
                             NAN,
                             1.0,
                             -1.0,
                             tiny,
                             -tiny,
                             3 * tiny,
                             big,
                             -big,
                             std::ldexp(1.0, format.exponentMin()),
                             1 + std::ldexp(1.0, -format.fraction)};
  for (size_t i = 0; i + format.size <= bytes; i += format.size) {
    const uint64_t sort = random() % 8;
    if (sort == 0) continue;  // noise, with NaNs of any payload among it
    double value = static_cast<double>(static_cast<int64_t>(random() % 4096) - 2048) / 256;
    if (sort == 1) value = specials[random() % std::size(specials)];
    if (sort == 2) value = tiny * static_cast<double>(static_cast<int64_t>(random() % 64) - 32);
    encode(format, value, &result[i]);
  }
  return result;
}

}  // namespace jhetcc::engine::oracle
