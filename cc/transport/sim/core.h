// SPDX-License-Identifier: Apache-2.0
// Inside of the simulated network: sides of links, events in order of time. One thread.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "transport/sim/sim.h"

namespace jhetcc::transport::sim {

struct Link;

/// What arrives at one side of a link.
struct Item {
  enum class What : uint8_t { kFrame, kRequest, kFetched, kReleased, kBroken };
  What what{};
  FrameHeader header{};        ///< kFrame
  std::vector<uint8_t> bytes;  ///< kFrame: payload; kFetched: the snapshot
  uint64_t id = 0;             ///< kRequest, kFetched: number of the fetch; kReleased: cookie
  uint64_t cookie = 0;         ///< kRequest: the offer; kFetched: the offer that it came from
  Status status;               ///< kFetched, kBroken
  uint64_t wire_bytes = 0;
};

struct OpenOffer {
  uint64_t cookie;
  const uint8_t* data;
  uint64_t length;
};

struct PendingFetch {
  uint64_t id;
  uint64_t token;
  void* destination;
  uint64_t length;
};

/// One end of a link: everything its endpoint knows.
struct Side {
  int rank = 0;
  Link* link = nullptr;
  Side* peer = nullptr;
  bool closed = false;   ///< its endpoint is destroyed, or its process killed: reads no memory any more
  bool goodbye = false;  ///< the peer said it closes
  Status broken;
  std::deque<Item> inbox;  ///< arrived, not polled
  bool is_held = false;    ///< nothing comes to this side, and nobody is told
  std::deque<Item> held;   ///< arrived at a held side or, for requests, a stopped rank
  std::vector<OpenOffer> offers;
  std::vector<PendingFetch> fetches;
  uint64_t next_fetch = 1;
  uint64_t unpolled_bytes = 0;     ///< sent towards this side, not polled by it
  int64_t last_arrival_ns = 0;     ///< frames towards this side keep their order
  int64_t busy_until_ns = 0;       ///< the wire towards this side
  uint64_t under_way = 0;          ///< items towards this side that have not come to its host
  int64_t under_way_since_ns = 0;  ///< there were some all the time since, or one came then
  uint64_t arrived_bytes = 0;
  int64_t busy_ns = 0;  ///< how long there were some, until under_way_since_ns
};

struct Link {
  Side sides[2];
  bool cut = false;
  double bandwidth_bytes_per_s = 0;
  std::string description[2];
};

class Core {
 public:
  Core(uint64_t seed, const Options& options) : options(options), random_(seed) {}

  Link* connect(int rank_a, int rank_b);
  /// Sends `item` on its way to `to`; `bytes` load the wire. Frames keep their order, snapshots do not wait for them.
  void post(Side* to, Item item, uint64_t bytes);
  bool step();
  void runUntil(int64_t time_ns);
  void at(int64_t time_ns, std::function<void()> action);
  std::optional<int64_t> nextEventNs() const;

  void stop(int rank) { stopped_.insert(rank); }
  void resume(int rank);
  void kill(int rank);
  void cut(Link* link, const std::string& why);
  void close(Side* side);
  void hold(Link* link) { link->sides[0].is_held = link->sides[1].is_held = true; }
  void release(Link* link);
  std::vector<Link*> between(int rank_a, int rank_b, int link = kAllLinks);
  bool isStopped(int rank) const { return stopped_.contains(rank); }
  bool roll(double probability);

  const Options options;
  SimClock clock;
  uint64_t digest = 1469598103934665603ULL;
  uint64_t late_dropped = 0;

 private:
  struct Event {
    int64_t time_ns;
    uint64_t order;
    Side* to;  ///< null: a script
    Item item;
    std::function<void()> action;
    bool operator<(const Event& other) const {  // a heap keeps the largest in front
      return time_ns != other.time_ns ? time_ns > other.time_ns : order > other.order;
    }
  };
  uint64_t random();
  int64_t delayNs();
  void push(Event event);
  void arrive(Side* to, Item item);
  void confirm(Side* to, Item& item);
  void serve(Side* side, const Item& request);
  void breakSide(Side* side, Status why);
  void mix(uint64_t value) { digest = (digest ^ value) * 1099511628211ULL; }

  uint64_t random_;
  uint64_t next_order_ = 0;
  std::vector<Event> events_;
  std::vector<std::unique_ptr<Link>> links_;
  std::unordered_map<int, std::vector<Side*>> of_rank_;
  std::unordered_set<int> stopped_;
};

std::unique_ptr<Endpoint> makeEndpoint(std::shared_ptr<Core> core, Side* side);

}  // namespace jhetcc::transport::sim
