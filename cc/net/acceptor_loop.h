// SPDX-License-Identifier: Apache-2.0
// Private to the acceptor: its poll loop and what it shares with takers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <thread>

#include "net/acceptor.h"
#include "net/handshake.h"
#include "net/listener.h"
#include "net/wakeup.h"

namespace jhetcc::net {

class Acceptor::Loop {
 public:
  Loop(AcceptorConfig config, Listener listener, Wakeup wakeup);
  ~Loop();
  Status start();

  const Address& address() const { return listener_.address(); }
  void setEpoch(uint32_t epoch);
  Result<Connection> take(const PeerMatch& match, const Deadline& deadline);
  AcceptorCounts counts() const;
  std::vector<std::string> recentDrops() const;

 private:
  struct Pending {
    Accepted socket;
    ServerHandshake handshake;
    int64_t deadline_ns;
    std::string received, to_send;
    size_t sent = 0;
    bool is_finished = false;
    Status refusal;  ///< to_send says why; then it is dropped with this
  };
  enum class Outcome { kWaiting, kDone, kDropped };

  void run();
  void runUntilStopped();
  int64_t nextEventNs(int64_t now_ns) const;
  bool mayAccept(int64_t now_ns) const;
  void acceptWaiting(int64_t now_ns);
  bool makeRoom();
  Outcome advance(Pending& pending, Status* why);
  Outcome receiveSome(Pending& pending, Status* why);
  Outcome flush(Pending& pending, Status* why);
  void finish(Pending& pending);
  void drop(const Address& remote, const Status& why);

  AcceptorConfig config_;
  SystemClock system_clock_;
  const Clock& clock_;
  Listener listener_;
  Wakeup wakeup_;
  std::list<Pending> pending_;   ///< the loop's thread only; oldest first
  int64_t accept_again_ns_ = 0;  ///< out of descriptors: the listener rests until then
  std::atomic<bool> stop_{false};
  std::atomic<uint32_t> epoch_;

  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable arrived_;
  std::deque<Connection> unclaimed_;
  std::deque<std::string> drops_;
  AcceptorCounts counts_;
  Status failure_;  ///< the loop ended early

  std::thread thread_;  ///< last: starts after all else is there
};

}  // namespace jhetcc::net
