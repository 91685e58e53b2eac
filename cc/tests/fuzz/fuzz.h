// SPDX-License-Identifier: Apache-2.0
// Everything that reads bytes of somebody who may have proven nothing, as one function of bytes: for libFuzzer, and for
// the test that replays what it found.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace jhetcc::fuzz {

/// The first byte chooses who reads the rest. Returns; whatever goes wrong is found by the sanitizers or aborts.
void readHostile(const uint8_t* data, size_t size);

/// What honest peers say, as inputs of readHostile(): where mutations begin.
std::vector<std::string> honestInputs();

}  // namespace jhetcc::fuzz
