// SPDX-License-Identifier: Apache-2.0
#include "trace/recorder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <string>

namespace jhetcc::trace {

const char* eventName(EventKind kind) {
  static constexpr const char* kNames[] = {"none",
                                           "operation started",
                                           "operation finished",
                                           "operation failed",
                                           "step started",
                                           "step finished",
                                           "frame sent",
                                           "frame received",
                                           "fetch started",
                                           "fetch finished",
                                           "released",
                                           "wait started",
                                           "wait finished",
                                           "sleep",
                                           "wake",
                                           "connected",
                                           "disconnected",
                                           "suspected",
                                           "verdict",
                                           "shrunk",
                                           "mark",
                                           "resent"};
  static_assert(std::size(kNames) == static_cast<size_t>(EventKind::kKinds));
  const auto number = static_cast<size_t>(kind);
  return number < std::size(kNames) ? kNames[number] : "unknown";
}

Result<std::unique_ptr<Recorder>> Recorder::create(size_t capacity) {
  if (!std::has_single_bit(capacity) || capacity < 2 || capacity > (size_t{1} << 24)) {
    return Status(
        Kind::kBadArgument, Scope::kProcess, "recorder_capacity",
        "the flight recorder's capacity must be a power of two from 2 to 16777216, not " + std::to_string(capacity));
  }
  try {
    return std::unique_ptr<Recorder>(new Recorder(capacity));
  } catch (const std::bad_alloc&) {
    return Status(Kind::kResource, Scope::kProcess, "recorder_memory",
                  "no memory for a flight recorder of " + std::to_string(capacity * sizeof(Slot)) + " bytes");
  }
}

// A sequence lock per slot. Words are stored with release and read with acquire, so a reader that sees a word of a
// later record also sees that record's state and discards what it read; no fences are needed.
void Recorder::write(const Record& record) {
  const uint64_t ticket = next_.fetch_add(1, std::memory_order_relaxed);
  Slot& slot = slots_[ticket & mask_];
  uint64_t before = slot.state.load(std::memory_order_relaxed);
  // Odd: another writer is in this slot. Larger: this writer slept for a whole round and is too late.
  while (
      (before & 1) != 0 || before > 2 * ticket ||
      !slot.state.compare_exchange_weak(before, 2 * ticket + 1, std::memory_order_acq_rel, std::memory_order_relaxed)) {
    if ((before & 1) != 0 || before > 2 * ticket) {
      lost_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
  }
  uint64_t words[kWords];
  std::memcpy(words, &record, sizeof(record));
  for (size_t i = 0; i < kWords; ++i) slot.words[i].store(words[i], std::memory_order_release);
  slot.state.store(2 * ticket + 2, std::memory_order_release);
}

std::vector<Record> Recorder::snapshot() const {
  struct Found {
    uint64_t ticket;
    Record record;
  };
  std::vector<Found> found;
  found.reserve(capacity());
  for (size_t i = 0; i < capacity(); ++i) {
    const Slot& slot = slots_[i];
    const uint64_t before = slot.state.load(std::memory_order_acquire);
    if (before == 0 || (before & 1) != 0) continue;
    uint64_t words[kWords];
    for (size_t w = 0; w < kWords; ++w) words[w] = slot.words[w].load(std::memory_order_acquire);
    if (slot.state.load(std::memory_order_relaxed) != before) continue;
    Found entry{before / 2 - 1, {}};
    std::memcpy(&entry.record, words, sizeof(words));
    found.push_back(entry);
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.ticket < b.ticket; });
  std::vector<Record> records;
  records.reserve(found.size());
  for (const Found& entry : found) records.push_back(entry.record);
  return records;
}

}  // namespace jhetcc::trace
