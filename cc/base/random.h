// SPDX-License-Identifier: Apache-2.0
// Randomness is handed in, so that a seed reproduces a run. Not for secrets. One thread per instance.
#pragma once

#include <array>
#include <cstdint>

namespace jhetcc {

class Random {
 public:
  virtual ~Random() = default;
  virtual uint64_t next() = 0;

  /// Uniform in [0, bound), bound > 0, without modulo bias.
  uint64_t below(uint64_t bound) {
    const uint64_t reject_below = (0 - bound) % bound;
    uint64_t drawn = next();
    while (drawn < reject_below) drawn = next();
    return drawn % bound;
  }
  /// Uniform in [0, 1), 53 bits.
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
};

/// splitmix64 (Steele, Lea, Flood 2014): a well mixed stream from any seed.
inline uint64_t splitmix64(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

/// xoshiro256** (Blackman, Vigna 2018), seeded by splitmix64.
class SeededRandom final : public Random {
 public:
  explicit SeededRandom(uint64_t seed) {
    for (uint64_t& word : state_) word = splitmix64(seed);
  }
  uint64_t next() override {
    const auto rotate = [](uint64_t x, int k) { return (x << k) | (x >> (64 - k)); };
    const uint64_t result = rotate(state_[1] * 5, 7) * 9;
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotate(state_[3], 45);
    return result;
  }

 private:
  std::array<uint64_t, 4> state_;
};

}  // namespace jhetcc
