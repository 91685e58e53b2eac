// SPDX-License-Identifier: Apache-2.0
// A network inside one thread, on a clock that only events move: delays, faults by script, everything by one seed.
// Not thread-safe: the network, its clock and all its endpoints belong to the thread that steps it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "transport/transport.h"

namespace jhetcc::transport::sim {

/// Stands still between events.
class SimClock final : public Clock {
 public:
  int64_t nowNs() const override { return now_ns_; }
  void advanceTo(int64_t now_ns) { now_ns_ = now_ns > now_ns_ ? now_ns : now_ns_; }

 private:
  int64_t now_ns_ = 0;
};

struct Options {
  int64_t delay_ns_min = 2'000;    ///< one way, of every frame
  int64_t delay_ns_mean = 10'000;  ///< uniform between min and 2 * mean - min
  double late_probability = 0;     ///< a frame (and, for order, those behind it) comes this much later:
  int64_t late_ns = 5'000'000;
  double bandwidth_bytes_per_s = 10e9;
  double break_probability = 0;          ///< per frame: the link breaks with it
  int64_t break_notice_ns = 200'000;     ///< until an end learns that its link broke or its peer died
  uint64_t window_bytes = 256 * 1024;    ///< sent and not yet polled by the peer; more: send() returns false
  double instant_fetch_probability = 0;  ///< fetch() reads the peer at once and returns true, as shared memory does
  bool sees_devices = true;              ///< see Endpoint::seesDevices()
  bool reads_need_peer = true;  ///< a stopped rank does not serve fetches (sockets); false: it does (shared memory)
};

class Core;
constexpr int kAllLinks = -1;

class Network {
 public:
  explicit Network(uint64_t seed, const Options& options = {});
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  SimClock& clock();
  /// A new link. Several links between the same ranks are several connections. Endpoints may outlive the network.
  std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>> connect(int rank_a, int rank_b);

  /// Time of the next event; none when nothing is under way.
  std::optional<int64_t> nextEventNs() const;
  /// Advances to the next event and lets it happen. False: nothing is under way.
  bool step();
  /// All events up to `time_ns`, then the clock stands there.
  void runUntil(int64_t time_ns);
  /// Lets `action` happen at `time_ns`; a script.
  void at(int64_t time_ns, std::function<void()> action);

  /// The rank's process stops: its endpoints report nothing, what is sent to it queues. Its owner stops calling them.
  void stop(int rank);
  void resume(int rank);
  /// The rank's process dies: what it sent still arrives, then its peers' endpoints break.
  void kill(int rank);
  /// The links between two ranks break; what is under way is lost. `link`: the k-th that was made only.
  void cut(int rank_a, int rank_b, int link = kAllLinks);
  /// Nothing passes between two ranks, and nobody is told; release() lets everything through, in order.
  void hold(int rank_a, int rank_b, int link = kAllLinks);
  /// The same of one direction: an asymmetric cut.
  void holdOneWay(int from, int to, int link = kAllLinks);
  void release(int rank_a, int rank_b, int link = kAllLinks);
  /// From now on, both ways.
  void setBandwidth(int rank_a, int rank_b, int link, double bytes_per_s);
  int links(int rank_a, int rank_b) const;

  /// Hash of everything that was delivered and when: equal seeds and calls give equal digests.
  uint64_t digest() const;
  /// Fetched payloads that came after their fetch was cancelled, and were dropped.
  uint64_t lateDropped() const;

 private:
  std::shared_ptr<Core> core_;
};

}  // namespace jhetcc::transport::sim
