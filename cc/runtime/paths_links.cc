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
    if (!state.isOk() && was_ok) failAll(nic, state);
    if (state.isOk() && !was_ok) {
      JHETCC_LOG(kWarn, "rail", "NIC " + net::describe({options_.nics[nic]}) + " can be used again");
    }
  }
}

/// Where no other NIC joins two ranks, their connections are left to TCP: it may outlive a moment without a link. But
/// where a third rank can pass on what they say, it is asked by the one with the lower number, as relays are.
void Paths::Loop::failAll(size_t nic, const Status& why) {
  std::vector<Place> lost;
  {
    std::lock_guard lock(mutex_);
    const auto isUp = [this](const Path& path) {
      return path.state == Path::State::kUp && nics_[path.plan.nic].isOk();
    };
    const auto isReached = [&](const Pair& pair) {
      return pair.bundle && std::any_of(pair.paths.begin(), pair.paths.end(), isUp);
    };
    for (size_t i = 0; i < pairs_.size(); ++i) {
      const PairPlan& plan = pairs_[i].plan;
      const auto passesOn = [&](const Pair& other) {
        return other.plan.slot == plan.slot && other.plan.peer_process != plan.peer_process && isReached(other);
      };
      const bool may_relay =
          plan.peer > process_->runner(plan.slot).worldRank() && std::any_of(pairs_.begin(), pairs_.end(), passesOn);
      if (!pairs_[i].bundle || !(isReached(pairs_[i]) || may_relay)) continue;
      for (size_t k = 0; k < pairs_[i].paths.size(); ++k) {
        if (pairs_[i].paths[k].plan.nic == nic) lost.push_back({i, k});
      }
    }
  }
  for (const Place& place : lost) {
    process_->runner(pairs_[place.pair].plan.slot).withEngine([&](engine::Engine&) {
      pairs_[place.pair].bundle->failPath(static_cast<uint16_t>(place.path), why);
    });
  }
}

}  // namespace jhetcc::runtime
