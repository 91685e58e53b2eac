// SPDX-License-Identifier: Apache-2.0
// Memory of offers, registered while an offer of it is open. Nothing is kept beyond that: who frees memory does not
// tell us, and a registration that outlives its pages sends what lay there before. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/verbs/library.h"

namespace jhetcc::transport::verbs {

class OfferedMemory {
 public:
  OfferedMemory(const Library& library, abi::Pd* pd) : library_(library), pd_(pd) {}
  ~OfferedMemory();
  OfferedMemory(const OfferedMemory&) = delete;
  OfferedMemory& operator=(const OfferedMemory&) = delete;

  /// Registers it, or shares what covers it. Null: the system does not register this memory (errno says why).
  const abi::Mr* acquire(uint64_t address, uint64_t length);
  /// Once for each acquire(), and not before the last work request that names it has completed.
  void release(const abi::Mr* mr);

 private:
  struct Entry {
    abi::Mr* mr;
    uint64_t address;
    uint64_t length;
    int users;
  };
  const Library& library_;
  abi::Pd* pd_;
  std::vector<Entry> entries_;
};

}  // namespace jhetcc::transport::verbs
