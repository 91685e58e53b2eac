// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 by a key that comes from the job's secret, on sockets that are connected already. No certificates, no
// tickets, no early data: every connection proves the key anew.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "net/secret.h"

namespace jhetcc::net {

namespace openssl {
struct BioMethod;
struct Context;
struct Ssl;
}  // namespace openssl

/// A connection's first byte, where it is TLS.
constexpr uint8_t kTlsFirstByteMin = 0x14, kTlsFirstByteMax = 0x17;

/// What a stranger may say before he has proven the key.
constexpr size_t kTlsUnprovenBytesMax = 4096;

class Tls;

/// TLS over one socket, which must outlive it. Any threads; calls do not block.
class TlsSession {
 public:
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  enum class Need { kNothing, kRead, kWrite };
  /// Goes on as far as the socket allows; kNothing: both ends have proven the key. An error is final, and kDisconnected
  /// only where the other end left; "not_tls" leaves what was said unread.
  Result<Need> handshake();
  /// The same on both ends of this session and nowhere else: what later proofs are bound to.
  Result<std::string> binding();

  /// As recv(2) and send(2) on a non-blocking socket: bytes, 0 at the end, or -1 and errno; EBADMSG where the stream
  /// was tampered with. A send that did not go (EAGAIN) must be tried again with the same bytes, or more behind them.
  ssize_t receive(void* data, size_t size);
  ssize_t send(const void* data, size_t size);
  /// Whether receive() has something to tell without the socket's being readable.
  bool hasPending() const;

 private:
  friend class Tls;
  struct Socket;
  TlsSession(std::shared_ptr<const Tls> tls, int fd);
  Status failed(int error);
  ssize_t ended(int error);

  std::shared_ptr<const Tls> tls_;
  std::unique_ptr<Socket> socket_;
  mutable std::mutex mutex_;  ///< guards what follows
  openssl::Ssl* ssl_ = nullptr;
  bool is_broken_ = false;  ///< by what came; met again at every call
};

/// A job's key. Immutable, any thread.
class Tls : public std::enable_shared_from_this<Tls> {
 public:
  /// kUnavailable where libssl (`libssl_path`, or the usual names) is missing or refuses. `hint`, the job's name, is
  /// told to whoever listens, and proves nothing. `secret` must be one.
  static Result<std::shared_ptr<const Tls>> create(const Secret& secret, std::string hint,
                                                   const std::string& libssl_path = {});
  ~Tls();
  enum class Side { kClient, kServer };
  Result<std::unique_ptr<TlsSession>> open(int fd, Side side) const;

 private:
  friend class TlsSession;
  struct Callbacks;
  Tls() = default;
  Status configure();

  Mac key_{};
  std::string hint_;
  openssl::BioMethod* method_ = nullptr;
  openssl::Context* context_ = nullptr;
};

}  // namespace jhetcc::net
