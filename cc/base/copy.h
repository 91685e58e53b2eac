// SPDX-License-Identifier: Apache-2.0
// Copies that leave the caches alone. Any thread.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace jhetcc {

/// Copies with non-temporal stores: the target's lines are not taken into this core's caches. Visible when it returns.
/// Where the processor has no such stores (or this code none for it), a plain copy.
inline void copyPastCaches(uint8_t* to, const uint8_t* from, uint64_t bytes) {
  uint64_t done = 0;
#if defined(__SSE2__)
  const uint64_t to_line = -reinterpret_cast<uintptr_t>(to) % 64;
  if (bytes >= to_line + 64) {
    std::memcpy(to, from, to_line);
    for (done = to_line; done + 64 <= bytes; done += 64) {
      __m128i lanes[4];
      std::memcpy(lanes, from + done, sizeof lanes);
      for (int k = 0; k < 4; ++k) _mm_stream_si128(reinterpret_cast<__m128i*>(to + done) + k, lanes[k]);
    }
    _mm_sfence();
  }
#endif
  if (done < bytes) std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace jhetcc
