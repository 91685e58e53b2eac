// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/memory.h"

#include <algorithm>

namespace jhetcc::transport::verbs {

OfferedMemory::~OfferedMemory() {
  for (const Entry& entry : entries_) library_.dereg_mr(entry.mr);
}

const abi::Mr* OfferedMemory::acquire(uint64_t address, uint64_t length) {
  for (Entry& entry : entries_) {
    if (address < entry.address || address + length > entry.address + entry.length) continue;
    ++entry.users;
    return entry.mr;
  }
  // The offered address is this process's own; it is a number only because it travelled.
  abi::Mr* mr = library_.reg_mr(pd_, reinterpret_cast<void*>(address), length, 0);
  if (mr != nullptr) entries_.push_back({mr, address, length, 1});
  return mr;
}

void OfferedMemory::release(const abi::Mr* mr) {
  const auto entry = std::find_if(entries_.begin(), entries_.end(), [mr](const Entry& one) { return one.mr == mr; });
  if (entry == entries_.end() || --entry->users > 0) return;
  library_.dereg_mr(entry->mr);
  entries_.erase(entry);
}

}  // namespace jhetcc::transport::verbs
