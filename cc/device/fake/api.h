// SPDX-License-Identifier: Apache-2.0
// What a library that computes on virtual accelerators needs of them, as a table of C functions that is handed to it:
// it is loaded late and links with nothing. Any thread; errors are in the results, no exception comes out.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jhetcc::device::fake {

struct Api {
  uint32_t version;  ///< 1
  /// Where a kernel sees these bytes; null: not within living memory of a virtual accelerator.
  void* (*alias)(const void* memory, size_t bytes);
  /// Queues a kernel on a stream of any virtual accelerator. `step` is asked until it returns not 0: done; it must not
  /// wait. `drop(context)` comes once after, or when the device goes. `used` memory cannot be freed before. 0: queued;
  /// else nothing was queued or dropped.
  int (*enqueue)(void* stream, int (*step)(void* context), void (*drop)(void* context), void* context,
                 const void* const* used, size_t used_count);
};

const Api& api();

}  // namespace jhetcc::device::fake
