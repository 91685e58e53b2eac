// SPDX-License-Identifier: Apache-2.0
#include "net/connect.h"

#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/random.h"
#include "base/system_text.h"
#include "net/crypto.h"
#include "net/handshake.h"
#include "net/socket.h"

namespace jhetcc::net {
namespace {

constexpr int64_t kBackOffMinNs = 5 * kNsPerMs;
constexpr int64_t kBackOffMaxNs = 500 * kNsPerMs;

/// Code "refused" where the peer's host says that nobody listens.
Status notConnected(int error) {
  const Status status = disconnected("connect", error);
  return Status(status.kind(), status.scope(), error == ECONNREFUSED ? "refused" : status.code(), status.message());
}

/// kDisconnected and kTimeout are worth another try; other kinds are final.
Result<Fd> openSocket(const Address& address, const Deadline& deadline, const std::optional<Address>& from,
                      const std::string& device) {
  Result<Fd> created = createSocket(address, device);
  if (!created.isOk()) return created.status();
  Fd fd = std::move(created).value();
  const int on = 1;  // the port is chosen when the peer is known, so that one can serve towards several
  if (from && from->isIp()) ::setsockopt(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
  if (from && ::bind(fd.get(), from->withPort(0).native(), from->nativeSize()) != 0) {
    return Status(Kind::kUnavailable, Scope::kCall, "bind",
                  "cannot bind to the local address " + from->host() + ": " + systemText(errno));
  }
  if (::connect(fd.get(), address.native(), address.nativeSize()) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return notConnected(errno);
    JHETCC_RETURN_IF_ERROR(waitFor(fd.get(), POLLOUT, deadline, "connect"));
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return notConnected(error);
  }
  return fd;
}

/// A server without TLS answers in our own frames.
Status whyNoTls(int fd, const Secret& secret) {
  char begin[kHandshakeHeaderBytes + 3];
  const ssize_t got = ::recv(fd, begin, sizeof(begin), 0);
  const std::string_view bytes(begin, got > 0 ? static_cast<size_t>(got) : 0);
  if (!bytes.starts_with("JHN1")) {
    return Status(Kind::kBadArgument, Scope::kEndpoint, "not_jhetcc", "the other end does not speak this protocol");
  }
  if (isAnswerOfKeyed(bytes)) return tlsDiffers(secret, true);
  return Status(Kind::kBadArgument, Scope::kEndpoint, "secret_missing",
                std::string("the other end has no job secret, so it is not trusted; ") + kSecretHint);
}

Status beginTls(TlsSession& session, int fd, const Secret& secret, const Deadline& deadline) {
  for (;;) {
    const Result<TlsSession::Need> need = session.handshake();
    if (need.status().code() == "not_tls") return whyNoTls(fd, secret);
    if (!need.isOk() && need.status().kind() == Kind::kBadArgument) {
      return Status(Kind::kBadArgument, Scope::kEndpoint, "secret_mismatch",
                    "the other end has a different job secret (" + need.status().message() + "); " + kSecretHint);
    }
    if (!need.isOk()) return need.status();
    if (need.value() == TlsSession::Need::kNothing) return Status::ok();
    const short events = need.value() == TlsSession::Need::kRead ? POLLIN : POLLOUT;
    JHETCC_RETURN_IF_ERROR(waitFor(fd, events, deadline, "handshake"));
  }
}

Status exchange(const Stream& stream, ClientHandshake& handshake, const Deadline& deadline) {
  JHETCC_RETURN_IF_ERROR(sendAll(stream, handshake.hello().data(), handshake.hello().size(), deadline, "handshake"));
  std::string received;
  for (;;) {
    const Result<size_t> wanted = bytesWanted(received);
    if (!wanted.isOk()) return wanted.status();
    if (wanted.value() > 0) {
      const size_t before = received.size();
      received.resize(before + wanted.value());
      JHETCC_RETURN_IF_ERROR(receiveAll(stream, received.data() + before, wanted.value(), deadline, "handshake"));
      continue;
    }
    HandshakeStep step = handshake.onFrame(decodeFrame(received));
    received.clear();
    if (!step.status.isOk()) return step.status;
    JHETCC_RETURN_IF_ERROR(sendAll(stream, step.reply.data(), step.reply.size(), deadline, "handshake"));
    if (step.is_finished) return Status::ok();
  }
}

std::string seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", static_cast<double>(ns) * 1e-9);
  return text;
}

Status giveUp(const Status& why, const std::string& target, const Address& address, int attempts, int64_t elapsed_ns,
              const Status& last) {
  std::string message = target + ": ";
  if (why.kind() != Kind::kAborted)
    message += "gave up after " + seconds(elapsed_ns);
  else
    message += "cancelled after " + seconds(elapsed_ns);
  message += " and " + std::to_string(attempts) + (attempts == 1 ? " attempt" : " attempts");
  if (!last.isOk()) message += "; the last one: " + last.message();
  message += "; is that process running, and can this machine reach the address?";
  if (address.isLoopback() && address.isIp())
    message += " It is a loopback address: only processes on this machine listen there";
  return Status(why.kind(), Scope::kEndpoint, why.kind() == Kind::kAborted ? "cancelled" : "connect_timeout", message);
}

Status pause(int64_t ns, const Deadline& deadline) {
  const Deadline nap = deadline.within(ns);
  const Status status = waitFor(-1, 0, nap, "waiting");  // poll() ignores a negative descriptor: this only sleeps
  return status.kind() == Kind::kTimeout ? checkDeadline(deadline, "waiting") : status;
}

}  // namespace

Result<Connection> connectOnce(const Address& address, const Secret& secret, const Identity& mine, int32_t wanted_rank,
                               const Deadline& deadline, const std::optional<Address>& from, const std::string& device,
                               const std::shared_ptr<const Tls>& tls) {
  Result<Fd> opened = openSocket(address, deadline, from, device);
  if (!opened.isOk()) return opened.status();
  Connection connection;
  connection.fd = std::move(opened).value();
  Result<Address> local = localAddress(connection.fd.get());
  if (!local.isOk()) return local.status();
  connection.local = local.value();
  connection.remote = address;
  // On loopback a socket may be given the very port it calls, and then meets itself.
  if (connection.local.isIp() && connection.local == address) return disconnected("connect", ECONNREFUSED);
  JHETCC_RETURN_IF_ERROR(checkInsecure(secret, connection.local, connection.remote));
  const Result<TcpTuned> tuned = tuneTcp(connection.fd.get());
  if (!tuned.isOk()) return tuned.status();
  const Result<Nonce> nonce = randomNonce();
  if (!nonce.isOk()) return nonce.status();
  ClientHandshake handshake(secret, mine, wanted_rank, nonce.value());
  const Deadline limit = deadline.within(kHandshakeNs);
  if (tls) {
    Result<std::unique_ptr<TlsSession>> session = tls->open(connection.fd.get(), Tls::Side::kClient);
    if (!session.isOk()) return session.status();
    JHETCC_RETURN_IF_ERROR(beginTls(*session.value(), connection.fd.get(), secret, limit));
    Result<std::string> binding = session.value()->binding();
    if (!binding.isOk()) return binding.status();
    handshake.bindTo(std::move(binding).value());
    connection.tls = std::move(session).value();
  }
  const Status exchanged = exchange(connection, handshake, limit);
  if (exchanged.code() == "tls_mismatch") return tlsDiffers(secret, false);
  JHETCC_RETURN_IF_ERROR(exchanged);
  connection.peer = handshake.peer();
  connection.description = describe(connection.peer) + " at " + address.text() + " from " + connection.local.text();
  return connection;
}

Result<Connection> connect(const Address& address, const Secret& secret, const Identity& mine, int32_t wanted_rank,
                           const Deadline& deadline, const std::optional<Address>& from,
                           const std::shared_ptr<const Tls>& tls) {
  const std::string target = std::string("connecting (") + roleName(mine.role) + ") to " +
                             (wanted_rank == kAnyRank ? "" : "rank " + std::to_string(wanted_rank) + " at ") +
                             address.text();
  if (mine.job.empty() || mine.job.size() > kJobBytesMax || address.family() == Address::Family::kNone) {
    return Status(Kind::kBadArgument, Scope::kCall, "identity",
                  target + ": the job name must have 1 to " + std::to_string(kJobBytesMax) +
                      " bytes, and the address must be one");
  }
  const int64_t begin_ns = deadline.clock.nowNs();
  SeededRandom jitter(mine.incarnation ^ static_cast<uint64_t>(begin_ns));
  int64_t back_off_ns = kBackOffMinNs;
  Status last;
  for (int attempts = 1;; ++attempts) {
    Result<Connection> connection = connectOnce(address, secret, mine, wanted_rank, deadline, from, {}, tls);
    if (connection.isOk()) return connection;
    const Kind kind = connection.status().kind();
    const bool is_final = kind != Kind::kDisconnected && kind != Kind::kTimeout && kind != Kind::kAborted;
    if (is_final) return connection.status().withContext(target);
    if (kind != Kind::kAborted && (last.isOk() || kind == Kind::kDisconnected)) last = connection.status();
    Status time = checkDeadline(deadline, target);
    // Half fixed, half drawn: the ranks of a job do not come back all at once.
    if (time.isOk())
      time =
          pause(back_off_ns / 2 + static_cast<int64_t>(jitter.below(static_cast<uint64_t>(back_off_ns / 2))), deadline);
    if (!time.isOk()) return giveUp(time, target, address, attempts, deadline.clock.nowNs() - begin_ns, last);
    back_off_ns = std::min(back_off_ns * 2, kBackOffMaxNs);
  }
}

}  // namespace jhetcc::net
