// SPDX-License-Identifier: Apache-2.0
// Reductions as kernels of virtual accelerators: what an engine's lane is given in tests. Any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/fake/api.h"
#include "engine/lane.h"

namespace jhetcc::engine::testing {

/// Computes on the stream, at the aliases of the memory, in the engine's own order of sources.
inline Status reduceOnFake(const Reduction& reduction, device::Stream stream) {
  struct Kernel {
    Reduction reduction;
    std::vector<const void*> sources;
  };
  const device::fake::Api& api = device::fake::api();
  auto kernel = std::make_unique<Kernel>(Kernel{reduction, {}});
  std::vector<const void*> used = {reduction.target};
  kernel->reduction.target = api.alias(reduction.target, reduction.bytes);
  for (int k = 0; k < reduction.count; ++k) {
    used.push_back(reduction.sources[k]);
    kernel->sources.push_back(api.alias(reduction.sources[k], reduction.bytes));
    if (kernel->sources.back() == nullptr) kernel->reduction.target = nullptr;
  }
  if (kernel->reduction.target == nullptr) {
    return Status(Kind::kBadArgument, Scope::kCall, "bad_argument", "a reduction of memory that is no device's");
  }
  kernel->reduction.sources = kernel->sources.data();
  const auto step = [](void* context) {
    reduce(static_cast<Kernel*>(context)->reduction);
    return 1;
  };
  const auto drop = [](void* context) { delete static_cast<Kernel*>(context); };
  if (api.enqueue(stream, step, drop, kernel.get(), used.data(), used.size()) != 0) {
    return Status(Kind::kBadArgument, Scope::kCall, "bad_argument",
                  "a kernel found no stream of a virtual accelerator");
  }
  (void)kernel.release();
  return Status::ok();
}

}  // namespace jhetcc::engine::testing
