// SPDX-License-Identifier: Apache-2.0
// The program that libFuzzer runs. With JHETCC_FUZZ_SEEDS it first writes what honest peers say into that folder.
#include <cstdlib>
#include <fstream>

#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* folder = std::getenv("JHETCC_FUZZ_SEEDS");
  int number = 0;
  for (const std::string& input : folder ? jhetcc::fuzz::honestInputs() : std::vector<std::string>()) {
    std::ofstream(std::string(folder) + "/honest-" + std::to_string(number++), std::ios::binary) << input;
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  jhetcc::fuzz::readHostile(data, size);
  return 0;
}
