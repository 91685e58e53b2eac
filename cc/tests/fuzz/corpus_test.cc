// SPDX-License-Identifier: Apache-2.0
// What the fuzzer's target reads, without the fuzzer: its corpus, honest words, and many seeded damages of both. The
// sanitizers' builds of this test see what it does to memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/random.h"
#include "fuzz/fuzz.h"

namespace jhetcc::fuzz {
namespace {

void read(const std::string& input) {
  // Just as long as it is, so that a byte too far is seen.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  readHostile(bytes.data(), bytes.size());
}

std::vector<std::string> corpus() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(JHETCC_FUZZ_CORPUS)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> inputs;
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  return inputs;
}

/// A few bytes changed, cut off, doubled, or taken from another input.
std::string damaged(const std::string& input, const std::vector<std::string>& all, SeededRandom& random) {
  std::string bytes = input;
  for (uint64_t changes = 1 + random.below(3); changes > 0 && bytes.size() > 1; --changes) {
    const size_t at = 1 + random.below(bytes.size() - 1);
    switch (random.below(5)) {
      case 0:
        bytes[at] = static_cast<char>(random.below(256));
        break;
      case 1:
        bytes[at] = static_cast<char>(random.below(2) == 0 ? 0xff : 0x7f);
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, random.below(70)));
        break;
      default:
        const std::string& other = all[random.below(all.size())];
        bytes.replace(at, random.below(20), other.substr(std::min<size_t>(other.size(), 1 + random.below(100)), 64));
    }
  }
  return bytes;
}

TEST_CASE("what honest peers say is read, and every damage of it is survived") {
  const std::vector<std::string> honest = honestInputs();
  CHECK(honest.size() > 10);
  for (const std::string& input : honest) read(input);
  SeededRandom random(2026);
  for (int round = 0; round < 400; ++round) {
    for (const std::string& input : honest) read(damaged(input, honest, random));
  }
}

TEST_CASE("the fuzzer's corpus is survived, and so are its neighbours") {
  const std::vector<std::string> inputs = corpus();
  REQUIRE(inputs.size() > 20);
  SeededRandom random(7);
  for (const std::string& input : inputs) {
    read(input);
    for (int round = 0; round < 20; ++round) read(damaged(input, inputs, random));
  }
}

}  // namespace
}  // namespace jhetcc::fuzz
