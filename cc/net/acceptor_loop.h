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
#include "net/socket.h"
#include "net/tls.h"
#include "net/wakeup.h"

namespace jhetcc::net {

class Acceptor::Loop {
 public:
  Loop(AcceptorConfig config, Listener listener, Wakeup wakeup);
  ~Loop();
  Status start();

  const Address& address() const { return listener_.address(); }
  void leaveBehind(uint32_t epoch, const std::vector<int32_t>& ranks);
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
    enum class Stage { kFirstByte, kTls, kFrames } stage = Stage::kFirstByte;
    std::unique_ptr<TlsSession> tls = nullptr;
    bool tls_wants_write = false;

    bool isSending() const { return sent < to_send.size() || (stage == Stage::kTls && tls_wants_write); }
    Stream stream() const { return {socket.fd.get(), stage == Stage::kFrames ? tls.get() : nullptr}; }
  };
  /// The log's lines about drops of one sort; strangers cannot fill it.
  struct Lines {
    int64_t again_ns = INT64_MIN;
    uint64_t untold = 0;
    std::string last;
  };
  enum class Outcome { kWaiting, kDone, kDropped };

  void run();
  void runUntilStopped();
  int64_t nextEventNs(int64_t now_ns) const;
  bool mayAccept(int64_t now_ns) const;
  void acceptWaiting(int64_t now_ns);
  bool makeRoom();
  Outcome advance(Pending& pending, Status* why);
  Outcome answerOtherKind(Pending& pending, std::string answer, const Status& refusal, Status* why);
  Outcome hearFirstByte(Pending& pending, Status* why);
  Outcome advanceTls(Pending& pending, Status* why);
  Outcome receiveSome(Pending& pending, Status* why);
  Outcome flush(Pending& pending, Status* why);
  bool isLeftBehind(const Identity& peer) const;
  void finish(Pending& pending);
  bool mayBeOurs(const Pending& pending, const Status& why) const;
  void drop(const Address& remote, const Status& why, bool may_be_ours);
  void keep(std::string line);
  void tell(int64_t now_ns);
  std::string lineOf(Lines& lines, int64_t now_ns, const char* one, const char* several) const;

  AcceptorConfig config_;
  SystemClock system_clock_;
  const Clock& clock_;
  Listener listener_;
  Wakeup wakeup_;
  std::list<Pending> pending_;   ///< the loop's thread only; oldest first
  int64_t accept_again_ns_ = 0;  ///< out of descriptors: the listener rests until then
  static constexpr int64_t kTellNs = 10'000 * kNsPerMs;
  Lines strangers_, perhaps_ours_;
  std::atomic<bool> stop_{false};

  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable arrived_;
  uint32_t epoch_;
  std::vector<int32_t> left_behind_;
  std::deque<Connection> unclaimed_;
  std::deque<std::string> drops_;
  AcceptorCounts counts_;
  Status failure_;  ///< the loop ended early

  std::thread thread_;  ///< last: starts after all else is there
};

}  // namespace jhetcc::net
