// SPDX-License-Identifier: Apache-2.0
// Private to the paths: their table, the thread that keeps them connected, and its helpers that wait for peers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <thread>

#include "base/random.h"
#include "net/acceptor.h"
#include "net/link_watch.h"
#include "net/wakeup.h"
#include "rail/bundle.h"
#include "runtime/paths.h"

namespace jhetcc::runtime {

class Paths::Loop {
 public:
  Loop(PathsOptions options, net::Wakeup wakeup);
  ~Loop();
  Status listen();

  std::vector<net::Address> addresses() const;
  Status connect(Process& process, std::vector<PairPlan> pairs, const EndpointOptions& endpoint,
                 const net::Deadline& deadline);
  bool hasSeveral() const;
  void leaveBehind(uint32_t epoch, const std::vector<int32_t>& processes);
  void stop();

 private:
  struct Path {
    PathPlan plan;
    enum class State { kLost, kConnecting, kUp } state = State::kLost;
    size_t route = 0;
    uint32_t generation = 0;  ///< of the newest connection here or tried; 0 at the start only
    int64_t up_since_ns = 0;
    Status why;                                     ///< why the last attempt failed, or the path was lost
    bool is_refused_for_good = false;               ///< another attempt would end alike
    std::unique_ptr<transport::Endpoint> endpoint;  ///< at the start, until its pair is made
  };
  struct Pair {
    PairPlan plan;
    std::vector<Path> paths;
    rail::Bundle* bundle = nullptr;  ///< of several paths, once made; the process's rail owns it
    bool is_over = false;            ///< the peer is lost, has left, or was left behind: nobody needs its paths
  };
  /// All paths of one NIC to one NIC of a process: while nothing came through, one attempt speaks for all of them.
  struct Route {
    size_t nic;
    net::Address remote;
    int32_t peer_process;
    bool is_proven = false;
    bool asks_for_call = false;  ///< the NIC is back here, and the other process is the one that calls
    int under_way = 0;
    int attempts = 0;
    int64_t next_ns = 0;
    int64_t back_off_ns = 0;
  };
  struct Place {
    size_t pair, path;
  };
  struct Attempt {
    Place place;
    net::Identity identity;
    std::atomic<bool> is_outdated{false};  ///< the link came back since: another one will be faster
    std::optional<Result<net::Connection>> result;
    std::thread thread;
  };

  // paths.cc: the start
  void plan(std::vector<PairPlan> pairs);
  size_t routeOf(const PairPlan& pair, const PathPlan& path);
  std::optional<Status> startEnded(int64_t now_ns);
  bool isUp(int tier) const;
  Status noPath(const Status& time, const net::Deadline& deadline, int64_t begun_ns) const;
  void warnOfMissing() const;
  void warnOfLone() const;
  void makeEndpoints();
  std::unique_ptr<transport::Endpoint> bundleOf(size_t pair);

  // paths_loop.cc: the thread
  void run();
  void runUntilStopped();
  bool isRunning() const;
  int64_t launchDue();
  void launch(Place place);
  void takeResults();
  void takeFailure(const Attempt& attempt, const Status& why);
  void takeArrivals();
  std::optional<Place> placeOf(const net::Identity& caller, bool is_caller_here) const;
  bool takeWish(const net::Identity& other);
  void adopt(Place place, net::Connection connection, uint32_t generation);
  bool isOver(size_t pair);
  void backOff(Route& route);

  // paths_links.cc
  void tryAtOnce(size_t route);
  void lookAtLinks();
  void tellBundles(size_t nic, const Status& state);

  Path& at(Place place) { return pairs_[place.pair].paths[place.path]; }

  // Any thread
  void arrived(net::Connection connection);
  bool isKnown(const net::Identity& peer) const;
  void onChange(Place place, const rail::PathStatus& status);
  void note(trace::EventKind kind, size_t pair, const rail::PathStatus& status, uint64_t bytes);

  const PathsOptions options_;
  SystemClock clock_;
  net::Wakeup wakeup_;
  net::LinkWatch watch_;
  Process* process_ = nullptr;
  EndpointOptions endpoint_;
  std::vector<std::unique_ptr<net::Acceptor>> acceptors_;
  SeededRandom jitter_;  ///< the thread's
  std::atomic<bool> stop_{false};

  /// Guards what follows. Taken under a runner's lock (a path is lost), so nobody who holds it enters an engine. Plans
  /// do not change once made.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  enum class Phase { kBefore, kStarting, kMaking, kRunning } phase_ = Phase::kBefore;
  std::vector<Pair> pairs_;
  std::vector<Route> routes_;
  uint32_t epoch_ = 0;        ///< the newest that this process is in
  std::vector<Status> nics_;  ///< the state of each
  std::deque<net::Connection> arrivals_;
  std::list<Attempt> attempts_;
  int64_t all_have_one_ns_ = 0;  ///< since when; 0: not yet
  int64_t tier_is_up_ns_ = 0;

  std::thread thread_;
};

}  // namespace jhetcc::runtime
