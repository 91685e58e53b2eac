// SPDX-License-Identifier: Apache-2.0
// Sockets and whole-buffer transfers with deadlines. All sockets of this room are non-blocking and close on exec.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "net/address.h"
#include "net/deadline.h"
#include "net/identity.h"

namespace jhetcc::net {

/// `device`: its packets come and go by this interface only; empty: as the system routes them.
Result<Fd> createSocket(const Address& address, const std::string& device = {});

struct TcpTuning {
  std::string congestion =
      "cubic";  ///< empty: the system's choice stays. BBR, where it is the default, halves loopback.
  int64_t user_timeout_ms = 30'000;  ///< unacknowledged data ends the connection after this; 0: the system's choice
  int keepalive_idle_s = 15;         ///< 0: no keepalive
  int retry_max_ms = 1'000;          ///< unanswered data goes again this often at least, where the kernel can (6.15)
};
/// What the socket really has now; a congestion control this kernel does not offer is not an error.
struct TcpTuned {
  std::string congestion;
};
/// No delay, congestion control, keepalive, user timeout. On a unix socket nothing, and an empty result.
Result<TcpTuned> tuneTcp(int fd, const TcpTuning& tuning = {});

/// Where bytes go: a socket, through TLS where the connection has it. Both must outlive it.
struct Stream {
  Stream(int socket, TlsSession* session = nullptr) : fd(socket), tls(session) {}
  Stream(const Connection& connection) : fd(connection.fd.get()), tls(connection.tls.get()) {}
  /// As recv(2) and send(2), without SIGPIPE.
  ssize_t receive(void* data, size_t size) const;
  ssize_t send(const void* data, size_t size) const;
  int fd;
  TlsSession* tls;
};

/// `what` begins the message of an error: "sending to the store at 127.0.0.1:4711".
Status sendAll(const Stream& stream, const void* data, size_t size, const Deadline& deadline, const std::string& what);
Status receiveAll(const Stream& stream, void* data, size_t size, const Deadline& deadline, const std::string& what);

/// kDisconnected with the system's words; errno 0 stands for an orderly close by the peer.
Status disconnected(const std::string& what, int error_number);

}  // namespace jhetcc::net
