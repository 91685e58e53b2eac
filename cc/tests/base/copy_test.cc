// SPDX-License-Identifier: Apache-2.0
// Copies past the caches: the same bytes, and none beside them, at every alignment and length around a line.
#include "base/copy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace jhetcc {

TEST_CASE("a copy past the caches copies exactly its bytes") {
  std::vector<uint8_t> from(600), to(600);
  for (size_t k = 0; k < from.size(); ++k) from[k] = static_cast<uint8_t>(k * 7 + 1);
  for (size_t at = 0; at < 70; ++at) {
    for (size_t bytes = 0; bytes < 300; ++bytes) {
      std::fill(to.begin(), to.end(), uint8_t{0xA5});
      copyPastCaches(to.data() + at, from.data() + (at * 3) % 64, bytes);
      bool right = true;
      for (size_t k = 0; k < to.size(); ++k) {
        right &= to[k] == (k >= at && k < at + bytes ? from[(at * 3) % 64 + k - at] : 0xA5);
      }
      CAPTURE(at);
      CAPTURE(bytes);
      REQUIRE(right);
    }
  }
}

}  // namespace jhetcc
