// SPDX-License-Identifier: Apache-2.0
#include "device/fake/api.h"

#include <memory>
#include <utility>

#include "device/fake/machine.h"
#include "device/fake/memory.h"

namespace jhetcc::device::fake {

namespace {

void* aliasOf(const void* memory, size_t bytes) {
  Result<Range> range = findRange(memory, bytes, "alias");
  return range.isOk() ? range.value().alias : nullptr;
}

int enqueue(void* stream, int (*step)(void*), void (*drop)(void*), void* context, const void* const* used,
            size_t used_count) {
  if (CallbackThread::isInside()) return -1;
  Result<std::shared_ptr<Track>> track = findTrack(stream);
  if (!track.isOk()) return -1;
  Work work;
  for (size_t k = 0; k < used_count; ++k) {
    Result<Range> range = findRange(used[k], 0, "memory of a kernel");
    if (!range.isOk()) return -1;
    work.pins.push_back(range.value().allocation->pin());
  }
  const std::shared_ptr<void> kept(context, drop);
  work.step = [step, kept] { return step(kept.get()) != 0; };
  track.value()->machine->enqueue(track.value(), std::move(work));
  return 0;
}

}  // namespace

const Api& api() {
  static const Api table{1, aliasOf, enqueue};
  return table;
}

}  // namespace jhetcc::device::fake
