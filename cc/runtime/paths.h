// SPDX-License-Identifier: Apache-2.0
// The tcp and verbs paths between this process's ranks and those of other processes: connected at the start, and again
// whenever one is lost, for as long as the job lives. Any thread; its own thread is described in docs/threads.md.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/deadline.h"
#include "net/identity.h"
#include "net/nics.h"
#include "net/secret.h"
#include "net/tls.h"
#include "runtime/endpoints.h"

namespace jhetcc::runtime {

/// One path of a pair of ranks; its number, equal in both processes, is its place among them.
struct PathPlan {
  int tier = 0;           ///< 0: aligned NICs, used together; 1: crossed ones, used where no path of tier 0 is left
  size_t nic = 0;         ///< of this process
  net::Address remote;    ///< where the other process listens for it
  bool is_verbs = false;  ///< both NICs are RDMA devices', too; the connection then only joins them
};

/// All paths between a local rank and a rank of another process. One process of the two calls, whatever is lost later.
struct PairPlan {
  size_t slot = 0;
  int32_t peer = -1;  ///< world rank
  int32_t peer_process = -1;
  uint64_t peer_incarnation = 0;
  size_t peer_slot = 0;
  bool is_caller = false;
  std::vector<PathPlan> paths;  ///< at least one
};

struct PathsOptions {
  net::Secret secret = net::Secret::none();
  net::Identity mine;
  std::shared_ptr<const net::Tls> tls = nullptr;  ///< set: all paths are encrypted
  std::vector<net::Nic> nics;                     ///< one listening socket each
  int64_t patience_ns = 3'000 * kNsPerMs;         ///< at the start, for paths of tier 0 beyond the first of a pair
  int64_t spare_patience_ns = 500 * kNsPerMs;     ///< then, for those of tier 1
};

class Paths {
 public:
  static Result<std::shared_ptr<Paths>> create(PathsOptions options);
  ~Paths();
  Paths(const Paths&) = delete;
  Paths& operator=(const Paths&) = delete;

  /// Where each NIC's socket listens.
  std::vector<net::Address> addresses() const;
  /// Connects the pairs, before the process's threads start. A pair with one path gets its bare endpoint, one with
  /// several a rail::Bundle, as soon as one of them is there; a path that is missing then is lost and tried again. The
  /// error of a pair without any path names its process (ranks: its number). Called once.
  Status connect(Process& process, std::vector<PairPlan> pairs, const EndpointOptions& endpoint,
                 const net::Deadline& deadline);
  /// Whether any pair has several paths: then this must live as long as the process runs.
  bool hasSeveral() const;
  /// This process has moved on to that epoch (one before its own changes nothing) without these processes: they get no
  /// connection any more, by either side's call. Those that are there stay, for what is still to be said.
  void leaveBehind(uint32_t epoch, const std::vector<int32_t>& processes);
  /// Ends the listening sockets and all threads. The endpoints stay.
  void stop();

 private:
  class Loop;
  explicit Paths(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace jhetcc::runtime
