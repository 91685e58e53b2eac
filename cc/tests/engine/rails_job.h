// SPDX-License-Identifier: Apache-2.0
// A simulated job whose ranks have several paths between each two of them, and what its paths may suffer. One thread.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rail/bundle.h"
#include "simulation.h"
#include "transport/tcp/tcp.h"

namespace jhetcc::engine::testing {

inline rail::BundleOptions bundleOptions() {
  rail::BundleOptions options;
  options.stall_ns = 5 * kMs;
  options.no_path_ns = 100 * kMs;
  options.settle_ns = kMs;
  options.stripe_bytes_max = 32 * 1024;
  return options;
}

/// A job whose ranks have `paths` between each two of them; lost ones are connected anew, as processes do.
class RailsJob {
  struct Pair {
    rail::Bundle* ends[2];  ///< the engines own them
    std::vector<int> link;
  };
  std::map<std::pair<int, int>, Pair> pairs_;  // the simulation's constructor fills it
  const double bandwidth_;

 public:
  bool may_reopen = true;
  int64_t reopen_after_ns = kMs;
  RailsJob(uint64_t seed, int ranks, int paths, const transport::sim::Options& options = {})
      : bandwidth_(options.bandwidth_bytes_per_s),
        simulation(ranks, seed, options, {}, [this, paths](transport::sim::Network& network, int a, int b) {
          return join(network, a, b, paths);
        }) {}

  void useRelays() {
    for (int rank = 0; rank < simulation.size(); ++rank) {
      simulation.rank(rank).engine->useRelays(
          [](Fd socket, const std::string& text) { return transport::tcp::create(std::move(socket), {}, text); });
    }
  }
  void cutAll(int a, int b) {
    for (int path = 0; path < static_cast<int>(pair(a, b).link.size()); ++path) cut(a, b, path);
  }
  void holdAll(int a, int b, int64_t for_ns) {
    for (int path = 0; path < static_cast<int>(pair(a, b).link.size()); ++path) hold(a, b, path, for_ns);
  }
  /// How the lower of two ranks reaches the other when no path does.
  std::optional<rail::PathStatus> relayed(int a, int b) {
    for (const rail::PathStatus& path : pair(a, b).ends[0]->paths()) {
      if (path.info.path == rail::kRelayPath) return path;
    }
    return std::nullopt;
  }
  void cut(int a, int b, int path) { simulation.network.cut(a, b, pair(a, b).link[static_cast<size_t>(path)]); }
  void hold(int a, int b, int path, int64_t for_ns) { suffer(a, b, path, Suffers::kHold, for_ns); }
  /// Anything beyond these is a cut.
  enum class Suffers { kHold, kHoldOneWay, kSlow };
  void suffer(int a, int b, int path, Suffers what, int64_t for_ns) {
    transport::sim::Network& network = simulation.network;
    const int link = pair(a, b).link[static_cast<size_t>(path)];
    if (what == Suffers::kHold) network.hold(a, b, link);
    if (what == Suffers::kHoldOneWay) network.holdOneWay(a, b, link);
    if (what == Suffers::kSlow) network.setBandwidth(a, b, link, bandwidth_ / 10);
    if (what > Suffers::kSlow) return network.cut(a, b, link);
    network.at(simulation.now() + for_ns, [&network, a, b, link, bandwidth = bandwidth_] {
      network.release(a, b, link);
      network.setBandwidth(a, b, link, bandwidth);
    });
  }
  void loseSome(int64_t length_ns, int count, int stays = -1) {
    for (int k = 0; k < count; ++k) {
      const int a = static_cast<int>(simulation.draw(simulation.size()));
      const int b = (a + 1 + static_cast<int>(simulation.draw(simulation.size() - 1))) % simulation.size();
      const int path = static_cast<int>(simulation.draw(static_cast<int64_t>(pair(a, b).link.size())));
      if (path == stays) continue;
      const auto what = static_cast<Suffers>(simulation.draw(8));
      const int64_t for_ns = simulation.draw(40 * kMs);
      simulation.network.at(simulation.draw(length_ns),
                            [this, a, b, path, what, for_ns] { suffer(a, b, path, what, for_ns); });
    }
  }
  uint64_t losses() {
    uint64_t count = 0;
    for (auto& [ranks, pair] : pairs_) {
      for (const rail::PathStatus& path : pair.ends[0]->paths()) count += path.losses;
    }
    return count;
  }
  uint64_t resentBytes() {
    uint64_t bytes = 0;
    for (auto& [ranks, pair] : pairs_) {
      for (rail::Bundle* end : pair.ends) {
        for (const rail::PathStatus& path : end->paths()) bytes += path.resent_bytes;
      }
    }
    return bytes;
  }

  Simulation simulation;

 private:
  Pair& pair(int a, int b) { return pairs_.at(std::minmax(a, b)); }

  std::pair<std::unique_ptr<transport::Endpoint>, std::unique_ptr<transport::Endpoint>> join(
      transport::sim::Network& network, int a, int b, int paths) {
    const std::string there = std::to_string(a) + " -> " + std::to_string(b);
    const std::string back = std::to_string(b) + " -> " + std::to_string(a);
    auto left = std::make_unique<rail::Bundle>(there, network.clock(), bundleOptions());
    auto right = std::make_unique<rail::Bundle>(back, network.clock(), bundleOptions());
    Pair& made = pairs_[{a, b}];
    made = {{left.get(), right.get()}, {}};
    for (int path = 0; path < paths; ++path) {
      made.link.push_back(network.links(a, b));
      auto ends = network.connect(a, b);
      left->addPath({static_cast<uint16_t>(path), 0, "", ""}, std::move(ends.first));
      right->addPath({static_cast<uint16_t>(path), 0, "", ""}, std::move(ends.second));
    }
    left->watch([this, &network, a, b](const rail::PathStatus& path) {
      if (path.state != rail::PathState::kLost || !may_reopen) return;
      const int number = path.info.path;
      network.at(network.clock().nowNs() + reopen_after_ns, [this, a, b, number] { reopen(a, b, number); });
    });
    return {std::move(left), std::move(right)};
  }
  void reopen(int a, int b, int path) {
    Pair& mine = pair(a, b);
    if (simulation.rank(a).dead) return;
    if (simulation.rank(b).dead) {
      mine.ends[0]->failPath(static_cast<uint16_t>(path),
                             Status(Kind::kDisconnected, Scope::kEndpoint, "refused", "nobody listens"));
      return;
    }
    if (mine.ends[0]->paths()[static_cast<size_t>(path)].state != rail::PathState::kLost) return;
    if (!simulation.isUp(a) || !simulation.isUp(b)) {  // stopped: nobody takes the connection
      simulation.network.at(simulation.now() + 5 * kMs, [this, a, b, path] { reopen(a, b, path); });
      return;
    }
    mine.link[static_cast<size_t>(path)] = simulation.network.links(a, b);
    auto ends = simulation.network.connect(a, b);
    mine.ends[0]->reopenPath(static_cast<uint16_t>(path), std::move(ends.first), true);
    mine.ends[1]->reopenPath(static_cast<uint16_t>(path), std::move(ends.second), false);
  }
};

inline void askSome(RailsJob& job, int group, int calls) {
  const int size = static_cast<int>(job.simulation.group(group).spec.world_ranks.size());
  for (int k = 0; k < calls; ++k) {
    const auto choice = plannedFor(size, k % 4 != 0);
    job.simulation.ask(group, choice[static_cast<size_t>(job.simulation.draw(static_cast<int64_t>(choice.size())))]);
  }
}

inline transport::sim::Options slowEnough(uint64_t seed) {
  transport::sim::Options options;
  options.bandwidth_bytes_per_s = seed % 2 ? 1e9 : 0.1e9;  // so that losses come in the middle of payloads
  options.late_probability = seed % 3 == 0 ? 0.01 : 0;
  options.late_ns = 400'000;
  return options;
}

}  // namespace jhetcc::engine::testing
