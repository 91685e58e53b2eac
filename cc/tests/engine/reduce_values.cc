// SPDX-License-Identifier: Apache-2.0
// Every type, operation and instruction set against the long-form oracle, at every short length and odd places.
#include <doctest/doctest.h>

#include "reduce_oracle.h"

namespace jhetcc::engine {
namespace {

using namespace oracle;

constexpr uint8_t kGuard = 0xa5;

/// The first address in `room` that is `offset` behind a 64-byte boundary.
uint8_t* placeIn(Bytes& room, size_t offset) {
  return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64) + offset;
}

/// Sources and target at offsets from a 64-byte boundary made from `shift`, with guard bytes round the target.
Bytes reduceAt(DataType type, ReduceOp op, int divisor, const std::vector<Bytes>& sources, size_t shift) {
  const size_t bytes = sources[0].size();
  std::vector<Bytes> rooms(sources.size(), Bytes(bytes + 2 * 64));
  std::vector<const void*> at;
  for (size_t k = 0; k < sources.size(); ++k) {
    uint8_t* place = placeIn(rooms[k], shift * (k + 3) % 64);
    std::copy(sources[k].begin(), sources[k].end(), place);
    at.push_back(place);
  }
  Bytes room(bytes + 4 * 64, kGuard);
  uint8_t* target = placeIn(room, shift % 64 + 64);
  reduce({target, at.data(), static_cast<int>(at.size()), bytes, type, op, divisor});
  for (const uint8_t& byte : room)
    if (&byte < target || &byte >= target + bytes) REQUIRE(byte == kGuard);
  return Bytes(target, target + bytes);
}

template <typename Body>
void forEverySimd(Body body) {
  int seen = 0;
  for (const char* name : {"base", "avx2", "avx512"}) {
    if (!setSimd(name)) continue;
    CAPTURE(name);
    ++seen;
    body();
  }
  CHECK(seen >= 1);
  CHECK(setSimd("auto"));
}

template <typename Body>
void forEveryPair(Body body) {
  for (const DataType type : kTypes)
    for (const ReduceOp op : kOps) {
      if (!canReduce(type, op)) continue;
      CAPTURE(static_cast<int>(type));
      CAPTURE(static_cast<int>(op));
      body(type, op);
    }
}

std::vector<Bytes> drawSources(DataType type, size_t count, size_t bytes, std::mt19937_64& random) {
  std::vector<Bytes> sources;
  for (size_t k = 0; k < count; ++k) sources.push_back(draw(type, bytes, random));
  return sources;
}

TEST_CASE("every pair gives the oracle's bits at every short length, place and number of sources") {
  std::mt19937_64 random(20240607);
  forEveryPair([&](DataType type, ReduceOp op) {
    const size_t item = sizeOf(type);
    for (size_t bytes = 0; bytes <= 300; bytes += bytes < 80 * item ? item : 7 * item) {
      const size_t count = 1 + random() % 5;
      const int divisor = op == ReduceOp::kMean && random() % 4 != 0 ? static_cast<int>(1 + random() % 7) : 0;
      const auto sources = drawSources(type, count, bytes, random);
      const Bytes want = expected(type, op, divisor, sources);
      const size_t shift = random() % 64;
      CAPTURE(bytes);
      CAPTURE(count);
      CAPTURE(divisor);
      CAPTURE(shift);
      forEverySimd([&] { REQUIRE(reduceAt(type, op, divisor, sources, shift) == want); });
    }
  });
}

TEST_CASE("blocks give the oracle's bits at every number of sources") {
  std::mt19937_64 random(7);
  forEveryPair([&](DataType type, ReduceOp op) {
    const size_t item = sizeOf(type);
    for (size_t count = 1; count <= 5; ++count) {
      const size_t bytes = (16 * 1024 / item + 1 + random() % 1500) * item;
      const int divisor = op == ReduceOp::kMean ? static_cast<int>(count) : 0;
      const auto sources = drawSources(type, count, bytes, random);
      const Bytes want = expected(type, op, divisor, sources);
      CAPTURE(bytes);
      CAPTURE(count);
      forEverySimd([&] {
        REQUIRE(reduceAt(type, op, divisor, sources, item * (random() % 8)) == want);  // aligned to items
        REQUIRE(reduceAt(type, op, divisor, sources, 1 + random() % 63) == want);      // any place
      });
    }
  });
}

TEST_CASE("a NaN is the canonical one wherever it stands and whatever its payload") {
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
    const Format format = formatOf(type);
    Bytes one(format.size), canonical(format.size);
    encode(format, 1.0, one.data());
    encode(format, NAN, canonical.data());
    for (const uint8_t sign : {0x00, 0x80})
      for (const bool quiet : {false, true}) {
        uint64_t bits = static_cast<uint64_t>(2 * format.exponent_max + 1) << format.fraction | 3;
        if (quiet) bits |= uint64_t{1} << (format.fraction - 1);
        Bytes nan(format.size);
        std::memcpy(nan.data(), &bits, nan.size());
        nan.back() |= sign;
        for (const ReduceOp op : kOps)
          for (size_t count = 1; count <= 4; ++count)
            for (size_t who = 0; who < count; ++who) {
              std::vector<Bytes> sources(count);
              for (size_t k = 0; k < count; ++k)
                for (int i = 0; i < 37; ++i) {
                  const Bytes& element = k == who && i % 3 == 0 ? nan : one;
                  sources[k].insert(sources[k].end(), element.begin(), element.end());
                }
              forEverySimd([&] {
                const Bytes got = reduceAt(type, op, 0, sources, 0);
                for (size_t i = 0; i < 37; i += 3)
                  REQUIRE(std::memcmp(&got[i * canonical.size()], canonical.data(), canonical.size()) == 0);
                double next = decode(format, &got[canonical.size()]);
                REQUIRE(next == (op == ReduceOp::kSum || op == ReduceOp::kMean ? static_cast<double>(count) : 1.0));
              });
            }
      }
  }
}

TEST_CASE("every f16 and bf16 survives, and every pair of neighbours in f32 rounds as the oracle rounds") {
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    Bytes all(2 * 65536), zeros(2 * 65536), ulps(2 * 65536);
    for (uint32_t i = 0; i < 65536; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      std::memcpy(&all[2 * i], &bits, 2);
      const auto small = static_cast<uint16_t>(i * 40503u >> 3 & (type == DataType::kFloat16 ? 0x3fff : 0x3f8f));
      std::memcpy(&ulps[2 * i], &small, 2);
      zeros[2 * i + 1] = 0x80;  // -0.0 is the neutral element of a sum
    }
    const std::vector<std::vector<Bytes>> cases = {std::vector<Bytes>(1, all), {all, zeros}, {all, ulps}};
    for (const std::vector<Bytes>& sources : cases) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
        const int divisor = op == ReduceOp::kMean ? 3 : 0;
        const Bytes want = expected(type, op, divisor, sources);
        forEverySimd([&] { REQUIRE(reduceAt(type, op, divisor, sources, 2) == want); });
      }
    }
  }
}

TEST_CASE("f16 and bf16 round once, after all sources") {
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    const Format format = formatOf(type);
    const double one_ulp_above_256 = std::ldexp(1.0, 8 - format.fraction);
    std::vector<Bytes> sources(5, Bytes(2));
    encode(format, 256, sources[0].data());
    for (size_t k = 1; k < 5; ++k) encode(format, one_ulp_above_256 / 4, sources[k].data());
    forEverySimd([&] {
      const Bytes sum = reduceAt(type, ReduceOp::kSum, 0, sources, 0);
      CHECK(decode(format, sum.data()) == 256 + one_ulp_above_256);
    });
  }
}

}  // namespace
}  // namespace jhetcc::engine
