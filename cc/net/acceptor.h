// SPDX-License-Identifier: Apache-2.0
// The server side: one thread accepts, runs many handshakes at once, and keeps what is proven until somebody takes it.
// Any thread may call. Strangers cost one slot for a while and learn nothing; the log names one of them now and then.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/connect.h"
#include "net/deadline.h"
#include "net/identity.h"
#include "net/secret.h"

namespace jhetcc::net {

/// Which connection is meant: all of it must be equal.
struct PeerMatch {
  Role role = Role::kControl;
  int32_t rank = kAnyRank;
  uint16_t path = 0;
  uint32_t epoch = 0;
  uint16_t caller_slot = 0;
  uint16_t called_slot = 0;
};

struct AcceptorConfig {
  Address address;          ///< one interface's; port 0 for any
  std::string device = {};  ///< as for createSocket()
  Secret secret = Secret::none();
  Identity mine;
  std::shared_ptr<const Tls> tls = nullptr;  ///< set: every connection begins with it
  size_t pending_max = 64;                   ///< handshakes at once; a silent stranger makes room for the next caller
  int64_t handshake_ns = kHandshakeNs;
  size_t unclaimed_max = 1024;   ///< proven connections nobody took; the oldest goes
  const Clock* clock = nullptr;  ///< null: the system's
  /// If set, proven connections go there, on the acceptor's thread, and take() finds none.
  std::function<void(Connection)> on_connection = {};
  /// Whether one of the job's own would say this of itself, so that a handshake of its that breaks off, as at a link
  /// that fails, is not told as a stranger's. On the acceptor's thread.
  std::function<bool(const Identity&)> is_known = {};
};

struct AcceptorCounts {
  uint64_t accepted = 0;  ///< proven
  uint64_t dropped = 0;   ///< refused, garbage, silent, vanished
};

class Acceptor {
 public:
  static Result<std::unique_ptr<Acceptor>> create(AcceptorConfig config);
  /// Ends the thread and closes everything not taken.
  ~Acceptor();

  /// With the real port.
  const Address& address() const;
  /// This process has moved on to that epoch without these ranks: from now on they are refused, and what is unclaimed
  /// of theirs is closed. Others are welcome in any epoch, for not all move at once.
  void leaveBehind(uint32_t epoch, const std::vector<int32_t>& ranks);
  /// The newest connection that matches. An error tells what was dropped of late, for that is often the cause.
  Result<Connection> take(const PeerMatch& match, const Deadline& deadline);
  AcceptorCounts counts() const;
  /// Why connections were dropped, oldest first, at most the last 8.
  std::vector<std::string> recentDrops() const;

 private:
  class Loop;
  explicit Acceptor(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace jhetcc::net
