// SPDX-License-Identifier: Apache-2.0
#include "device/gate.h"

#include <string>

#include "base/log.h"

namespace jhetcc::device {

Result<std::unique_ptr<Gate>> Gate::create(Device& device) {
  Result<void*> memory = device.allocate(kWords * sizeof(uint64_t), MemoryKind::kPinned);
  if (!memory.isOk()) return memory.status().withContext("a gate's words");
  std::unique_ptr<Gate> made(new Gate(device, static_cast<uint64_t*>(memory.value())));
  for (const size_t which : {kToHost, kToStream}) made->word(which).store(0);
  return made;
}

Gate::~Gate() {
  const Status freed = device_.free(memory_);
  if (!freed.isOk()) JHETCC_LOG(kWarn, "device", "a gate's words stay allocated: " + freed.message());
}

Status Gate::signal(uint64_t value, Stream stream) {
  if (device_.capabilities().stream_values) return device_.writeValue(memory_ + kToHost, value, stream);
  for (Note& note : notes_) {
    if (note.busy.exchange(true, std::memory_order_acquire)) continue;
    note.gate = this;
    note.value = value;
    const auto store = [](void* context) {
      auto* kept = static_cast<Note*>(context);
      const std::atomic_ref<uint64_t> word = kept->gate->word(kToHost);
      const uint64_t reached = kept->value;
      // Before the word is seen: whoever sees it may destroy the gate.
      kept->busy.store(false, std::memory_order_release);
      word.store(reached, std::memory_order_release);
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
  if (device_.capabilities().stream_values) return device_.waitValue(memory_ + kToStream, value, stream);
  return Status(Kind::kUnavailable, Scope::kCall, "unavailable",
                "streams of the device \"" + device_.capabilities().name +
                    "\" cannot wait for a value; wait on the host and queue what follows afterwards");
}

void Gate::open(uint64_t value) {
  const std::atomic_ref<uint64_t> opened = word(kToStream);
  uint64_t seen = opened.load(std::memory_order_relaxed);
  while (seen < value &&
         !opened.compare_exchange_weak(seen, value, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

}  // namespace jhetcc::device
