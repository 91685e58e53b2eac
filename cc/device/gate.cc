// SPDX-License-Identifier: Apache-2.0
#include "device/gate.h"

#include <string>

#include "base/log.h"

namespace jhetcc::device {

Result<std::unique_ptr<Gate>> Gate::create(Device& device) {
  Result<void*> memory = device.allocate(sizeof(uint64_t), MemoryKind::kPinned);
  if (!memory.isOk()) return memory.status().withContext("a gate's word");
  auto* word = static_cast<uint64_t*>(memory.value());
  std::atomic_ref<uint64_t>(*word).store(0);
  return std::unique_ptr<Gate>(new Gate(device, word));
}

Gate::~Gate() {
  const Status freed = device_.free(memory_);
  if (!freed.isOk()) JHETCC_LOG(kWarn, "device", "a gate's word stays allocated: " + freed.message());
}

Status Gate::signal(uint64_t value, Stream stream) {
  if (device_.capabilities().stream_values) return device_.writeValue(memory_, value, stream);
  for (Note& note : notes_) {
    if (note.busy.exchange(true, std::memory_order_acquire)) continue;
    note.gate = this;
    note.value = value;
    const auto store = [](void* context) {
      auto* kept = static_cast<Note*>(context);
      const std::atomic_ref<uint64_t> word = kept->gate->word();
      const uint64_t reached = kept->value;
      // Before the word is seen: whoever sees it may destroy the gate.
      kept->busy.store(false, std::memory_order_release);
      raise(word, reached);
    };
    Status queued = device_.callback(store, &note, stream);
    if (!queued.isOk()) note.busy.store(false, std::memory_order_release);
    return queued;
  }
  return Status(Kind::kResource, Scope::kCall, "resource",
                "a gate has " + std::to_string(kNotes) +
                    " signals under way by callbacks, its limit; wait until some were reached");
}

Status Gate::hold(uint64_t value, Stream stream) {
  if (device_.capabilities().stream_values) return device_.waitValue(memory_, value, stream);
  return Status(Kind::kUnavailable, Scope::kCall, "unavailable",
                "streams of the device \"" + device_.capabilities().name +
                    "\" cannot wait for a value; wait on the host and queue what follows afterwards");
}

void Gate::raise(std::atomic_ref<uint64_t> word, uint64_t value) {
  uint64_t seen = word.load(std::memory_order_relaxed);
  while (seen < value && !word.compare_exchange_weak(seen, value, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

}  // namespace jhetcc::device
