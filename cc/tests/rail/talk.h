// SPDX-License-Identifier: Apache-2.0
// Two bundles on the simulated network that send each other messages and offers while their paths are lost and come
// back; it checks that each of them sees one lossless, ordered connection. Everything follows from the seed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "rail/bundle.h"
#include "transport/sim/sim.h"

namespace jhetcc::rail::testing {

constexpr int64_t kMs = 1'000'000;

inline BundleOptions quick() {
  BundleOptions options;
  options.stall_ns = 10 * kMs;
  options.no_path_ns = 400 * kMs;
  options.settle_ns = 2 * kMs;
  options.stripe_bytes_max = 32 * 1024;
  return options;
}

inline transport::sim::Options slowLinks() {
  transport::sim::Options options;
  options.bandwidth_bytes_per_s = 25e6;
  return options;
}

class Talk {
 public:
  struct Source {
    std::vector<uint8_t> bytes;
    uint64_t cookie;
    bool is_open = true, is_revoked = false;
  };
  struct Target {
    std::vector<uint8_t> bytes;
    uint32_t index = 0;  ///< of the peer's message
    bool is_done = false, is_cancelled = false, is_refused = false;
  };
  struct Side : transport::EventSink {
    Talk* talk = nullptr;
    int number = 0;
    std::unique_ptr<Bundle> bundle;
    Status status;
    uint32_t sent = 0, received = 0, wanted = 0;
    std::map<uint64_t, Source> sources;  ///< by cookie
    std::vector<transport::FrameHeader> to_fetch;
    std::map<uint64_t, Target> targets;  ///< by token
    uint64_t next_token = 1;
    void onFrame(const transport::FrameHeader& header, const void* payload) override;
    void onFetched(uint64_t token, Status status) override;
    void onReleased(uint64_t cookie) override;
    bool isDone() const;
  };

  Talk(uint64_t seed, int paths, const transport::sim::Options& network = {}, const BundleOptions& options = quick());
  /// Both sides will send so many more messages.
  void say(uint32_t messages);
  /// Until all that was said is there (true), an end is broken, or the time is over.
  bool run(int64_t limit_ns);
  void at(int64_t time_ns, std::function<void()> action) { network.at(time_ns, std::move(action)); }
  void cut(int path) { network.cut(0, 1, link_[static_cast<size_t>(path)]); }
  void hold(int path) { network.hold(0, 1, link_[static_cast<size_t>(path)]); }
  void release(int path) { network.release(0, 1, link_[static_cast<size_t>(path)]); }
  void setBandwidth(int path, double rate) { network.setBandwidth(0, 1, link_[static_cast<size_t>(path)], rate); }
  /// One side leaves a path, and the other hears of it later.
  void leave(int path, int side) {
    const Status why(Kind::kDisconnected, Scope::kEndpoint, "left", "the test leaves it");
    sides[side].bundle->failPath(static_cast<uint16_t>(path), why);
  }
  void reopen(int path);
  bool isLost(int path, int side) {
    return sides[side].bundle->paths()[static_cast<size_t>(path)].state == PathState::kLost;
  }
  void fail(const std::string& what);
  std::string story() const;  ///< why it is not done
  int64_t now() { return network.clock().nowNs(); }
  uint64_t draw(uint64_t below) { return random.below(below); }

  transport::sim::Network network;
  SeededRandom random;
  Side sides[2];
  std::string failures;
  bool may_revoke = false;
  uint64_t payload_bytes_max = 200'000;

 private:
  void step(Side& side);
  void sendOne(Side& side);
  void fetchOne(Side& side);
  const uint64_t seed_;
  std::vector<int> link_;  ///< of each path, as the network counts them
};

/// Hears nothing.
struct Quiet : transport::EventSink {
  void onFrame(const transport::FrameHeader&, const void*) override {}
  void onFetched(uint64_t, Status) override {}
  void onReleased(uint64_t) override {}
};

}  // namespace jhetcc::rail::testing
