// SPDX-License-Identifier: Apache-2.0
// What the kernel says of links, and what follows for paths. The thread's.
#include <algorithm>

#include "base/log.h"
#include "runtime/paths_loop.h"

namespace jhetcc::runtime {

/// Under the lock.
void Paths::Loop::tryAtOnce(size_t number) {
  routes_[number].back_off_ns = routes_[number].next_ns = 0;
  for (Attempt& attempt : attempts_) {
    if (at(attempt.place).route == number) attempt.is_outdated.store(true);
  }
}

/// A NIC that the system took away takes its paths along at once; one that is back is tried at once.
void Paths::Loop::lookAtLinks() {
  const Result<std::vector<net::Interface>> interfaces = net::listInterfaces();
  if (!interfaces.isOk()) return;
  for (size_t nic = 0; nic < options_.nics.size(); ++nic) {
    const Status state = net::nicState(options_.nics[nic], interfaces.value());
    bool was_ok = true;
    {
      std::lock_guard lock(mutex_);
      was_ok = nics_[nic].isOk();
      nics_[nic] = state;
      for (size_t route = 0; route < routes_.size(); ++route) {
        if (routes_[route].nic != nic || was_ok || !state.isOk()) continue;
        routes_[route].asks_for_call = true;
        tryAtOnce(route);
      }
    }
    if (state.isOk() == was_ok) continue;
    JHETCC_LOG(
        kWarn, "rail",
        "NIC " + net::describe({options_.nics[nic]}) + (state.isOk() ? " can be used again" : ": " + state.message()));
    tellBundles(nic, state);
  }
}

/// Each decides what follows for its paths: where no other joins two ranks, TCP may outlive a moment without a link.
void Paths::Loop::tellBundles(size_t nic, const Status& state) {
  std::vector<const Pair*> ready;
  {
    std::lock_guard lock(mutex_);
    for (const Pair& pair : pairs_) {
      if (pair.bundle) ready.push_back(&pair);
    }
  }
  for (const Pair* each : ready) {
    const Pair& pair = *each;
    process_->runner(pair.plan.slot).withEngine([&](engine::Engine&) {
      for (size_t k = 0; k < pair.paths.size(); ++k) {
        if (pair.plan.paths[k].nic != nic) continue;
        if (state.isOk()) pair.bundle->restorePath(static_cast<uint16_t>(k));
        if (!state.isOk()) pair.bundle->failPath(static_cast<uint16_t>(k), state);
      }
    });
  }
}

}  // namespace jhetcc::runtime
