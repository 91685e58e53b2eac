// SPDX-License-Identifier: Apache-2.0
#include "net/acceptor_loop.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "base/thread.h"
#include "net/crypto.h"
#include "net/socket.h"

namespace jhetcc::net {
namespace {

constexpr int64_t kAcceptRestNs = 100 * kNsPerMs;

bool wouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

Acceptor::Loop::Loop(AcceptorConfig config, Listener listener, Wakeup wakeup)
    : config_(std::move(config)),
      clock_(config_.clock ? *config_.clock : system_clock_),
      listener_(std::move(listener)),
      wakeup_(std::move(wakeup)),
      epoch_(config_.mine.epoch) {}

Status Acceptor::Loop::start() {
  Result<std::thread> thread = startThread("jhetcc-accept", [this] { run(); });
  if (!thread.isOk()) return thread.status();
  thread_ = std::move(thread).value();
  return Status::ok();
}

Acceptor::Loop::~Loop() {
  stop_.store(true);
  wakeup_.signal();
  if (thread_.joinable()) thread_.join();
}

void Acceptor::Loop::run() {
  try {
    runUntilStopped();
  } catch (const std::exception& error) {
    std::lock_guard lock(mutex_);
    failure_ = Status(Kind::kInternal, Scope::kProcess, "acceptor",
                      "the acceptor at " + address().text() + " ended: " + error.what());
    arrived_.notify_all();
  }
}

bool Acceptor::Loop::mayAccept(int64_t now_ns) const {
  if (now_ns < accept_again_ns_) return false;
  if (pending_.size() < config_.pending_max) return true;
  return std::any_of(pending_.begin(), pending_.end(), [](const Pending& p) { return !p.handshake.hasHello(); });
}

int64_t Acceptor::Loop::nextEventNs(int64_t now_ns) const {
  int64_t next_ns = now_ns < accept_again_ns_ ? accept_again_ns_ : INT64_MAX;
  for (const Pending& pending : pending_) next_ns = std::min(next_ns, pending.deadline_ns);
  for (const Lines* lines : {&strangers_, &perhaps_ours_}) {
    if (lines->untold > 0) next_ns = std::min(next_ns, lines->again_ns);
  }
  return next_ns;
}

void Acceptor::Loop::runUntilStopped() {
  std::vector<pollfd> entries;
  while (!stop_.load()) {
    int64_t now_ns = clock_.nowNs();
    entries.clear();
    entries.push_back({wakeup_.descriptor(), POLLIN, 0});
    entries.push_back({mayAccept(now_ns) ? listener_.descriptor() : -1, POLLIN, 0});
    for (const Pending& pending : pending_) {
      entries.push_back({pending.socket.fd.get(), static_cast<short>(pending.isSending() ? POLLOUT : POLLIN), 0});
    }
    ::poll(entries.data(), entries.size(), pollTimeoutMs(clock_, nextEventNs(now_ns)));
    now_ns = clock_.nowNs();
    if (entries[0].revents != 0) wakeup_.clear();
    size_t place = 2;
    for (auto pending = pending_.begin(); pending != pending_.end();) {
      Status why;
      Outcome outcome = Outcome::kWaiting;
      if (entries[place++].revents != 0) outcome = advance(*pending, &why);
      if (outcome == Outcome::kWaiting && now_ns >= pending->deadline_ns) {
        outcome = Outcome::kDropped;
        why = Status(Kind::kTimeout, Scope::kEndpoint, "handshake_timeout",
                     std::string("it did not finish the handshake in time (") +
                         (pending->handshake.hasHello() ? "it never proved the job secret" : "it stayed silent") + ")");
      }
      if (outcome == Outcome::kDropped) drop(pending->socket.remote, why, mayBeOurs(*pending, why));
      if (outcome == Outcome::kDone) finish(*pending);
      pending = outcome == Outcome::kWaiting ? std::next(pending) : pending_.erase(pending);
    }
    if (entries[1].revents != 0) acceptWaiting(now_ns);
    tell(now_ns);
  }
  strangers_.again_ns = perhaps_ours_.again_ns = INT64_MIN;
  tell(clock_.nowNs());
}

bool Acceptor::Loop::makeRoom() {
  if (pending_.size() < config_.pending_max) return true;
  const auto silent =
      std::find_if(pending_.begin(), pending_.end(), [](const Pending& p) { return !p.handshake.hasHello(); });
  if (silent == pending_.end()) return false;
  drop(silent->socket.remote,
       Status(Kind::kResource, Scope::kEndpoint, "handshake_crowded",
              "it stayed silent while " + std::to_string(config_.pending_max) + " connections were waiting"),
       false);
  pending_.erase(silent);
  return true;
}

void Acceptor::Loop::acceptWaiting(int64_t now_ns) {
  // A full house is served before more is let in, so that a flood of silent callers cannot push out one that just came.
  for (size_t i = 0; i < config_.pending_max / 2 + 1; ++i) {
    Result<std::optional<Accepted>> accepted = listener_.accept();
    if (!accepted.isOk()) {
      accept_again_ns_ = now_ns + kAcceptRestNs;
      JHETCC_LOG(kWarn, "net", accepted.status().message());
      keep(accepted.status().message());  // who waits for a caller in vain learns why
      return;
    }
    if (!accepted.value()) return;
    Accepted socket = std::move(*std::move(accepted).value());
    const Status insecure = checkInsecure(config_.secret, socket.local, socket.remote);
    const Result<TcpTuned> tuned = tuneTcp(socket.fd.get());
    const Result<Nonce> nonce = randomNonce();
    for (const Status& status : {insecure, tuned.status(), nonce.status()}) {
      if (!status.isOk() && socket.fd.isOpen()) {
        drop(socket.remote, status, status.kind() == Kind::kDisconnected);
        socket.fd.reset();
      }
    }
    if (!socket.fd.isOpen() || !makeRoom()) continue;
    Identity mine = config_.mine;
    std::vector<int32_t> left_behind;
    {
      std::lock_guard lock(mutex_);
      mine.epoch = epoch_;
      left_behind = left_behind_;
    }
    pending_.push_back({std::move(socket),
                        ServerHandshake(config_.secret, std::move(mine), nonce.value(), std::move(left_behind)),
                        now_ns + config_.handshake_ns,
                        {},
                        {},
                        0,
                        false,
                        {}});
    if (!mayAccept(now_ns)) return;
  }
}

Acceptor::Loop::Outcome Acceptor::Loop::advance(Pending& pending, Status* why) {
  if (pending.sent < pending.to_send.size()) return flush(pending, why);
  if (pending.stage == Pending::Stage::kFirstByte) {
    const Outcome outcome = hearFirstByte(pending, why);
    if (outcome != Outcome::kWaiting || pending.stage == Pending::Stage::kFirstByte) return outcome;
  }
  return pending.stage == Pending::Stage::kTls ? advanceTls(pending, why) : receiveSome(pending, why);
}

/// The caller speaks TLS and we do not, or the other way round: it learns that from one answer of its own kind.
Acceptor::Loop::Outcome Acceptor::Loop::answerOtherKind(Pending& pending, std::string answer, const Status& refusal,
                                                        Status* why) {
  char unread[kTlsUnprovenBytesMax];  // what is closed with bytes unread takes the answer with it
  (void)::recv(pending.socket.fd.get(), unread, sizeof(unread), 0);
  pending.to_send = std::move(answer);
  pending.sent = 0;
  pending.refusal = refusal;
  return flush(pending, why);
}

Acceptor::Loop::Outcome Acceptor::Loop::hearFirstByte(Pending& pending, Status* why) {
  char first = 0;
  const ssize_t got = ::recv(pending.socket.fd.get(), &first, 1, MSG_PEEK);
  if (got < 0 && wouldBlock(errno)) return Outcome::kWaiting;
  if (got <= 0) {
    *why = disconnected("it left before it said who it is", got == 0 ? 0 : errno);
    return Outcome::kDropped;
  }
  const bool is_tls = first >= kTlsFirstByteMin && first <= kTlsFirstByteMax;
  if (is_tls && !config_.tls) {
    return answerOtherKind(pending, answerToTls(config_.secret), tlsDiffers(config_.secret, false), why);
  }
  if (!is_tls && config_.tls) {
    if (first == 'J') return answerOtherKind(pending, answerToPlain(), tlsDiffers(config_.secret, true), why);
    *why = Status(Kind::kBadArgument, Scope::kEndpoint, "not_jhetcc", "the other end does not speak this protocol");
    return Outcome::kDropped;
  }
  pending.stage = is_tls ? Pending::Stage::kTls : Pending::Stage::kFrames;
  if (!is_tls) return Outcome::kWaiting;
  Result<std::unique_ptr<TlsSession>> session = config_.tls->open(pending.socket.fd.get(), Tls::Side::kServer);
  if (session.isOk()) {
    pending.tls = std::move(session).value();
    return Outcome::kWaiting;
  }
  *why = session.status();
  return Outcome::kDropped;
}

Acceptor::Loop::Outcome Acceptor::Loop::advanceTls(Pending& pending, Status* why) {
  const Result<TlsSession::Need> need = pending.tls->handshake();
  if (!need.isOk()) {
    *why = need.status();
    if (why->kind() == Kind::kDisconnected) *why = why->withContext("it left before it proved the job secret");
    if (why->code() == "secret_mismatch") {
      *why = Status(Kind::kBadArgument, Scope::kEndpoint, "secret_mismatch",
                    "the caller does not have the job secret (" + why->message() + "); " + kSecretHint);
    }
    return Outcome::kDropped;
  }
  pending.tls_wants_write = need.value() == TlsSession::Need::kWrite;
  if (need.value() != TlsSession::Need::kNothing) return Outcome::kWaiting;
  Result<std::string> binding = pending.tls->binding();
  if (!binding.isOk()) {
    *why = binding.status();
    return Outcome::kDropped;
  }
  pending.handshake.bindTo(std::move(binding).value());
  pending.stage = Pending::Stage::kFrames;
  return receiveSome(pending, why);
}

Acceptor::Loop::Outcome Acceptor::Loop::receiveSome(Pending& pending, Status* why) {
  char buffer[kHandshakeHeaderBytes + kHandshakeBodyMax];
  for (;;) {
    const Result<size_t> wanted = bytesWanted(pending.received);
    if (!wanted.isOk()) {
      *why = wanted.status();
      return Outcome::kDropped;
    }
    if (wanted.value() == 0) break;
    const ssize_t got = pending.stream().receive(buffer, wanted.value());
    if (got < 0 && wouldBlock(errno)) return Outcome::kWaiting;
    if (got <= 0) {
      *why = disconnected(pending.handshake.hasHello() ? "it left after our challenge (another secret or job?)"
                                                       : "it left before it said who it is",
                          got == 0 ? 0 : errno);
      return Outcome::kDropped;
    }
    pending.received.append(buffer, static_cast<size_t>(got));
  }
  HandshakeStep step = pending.handshake.onFrame(decodeFrame(pending.received));
  pending.received.clear();
  pending.to_send = std::move(step.reply);
  pending.sent = 0;
  pending.is_finished = step.is_finished;
  pending.refusal = step.status;
  const Outcome outcome = flush(pending, why);
  // A record may hold more than one frame, and the socket would not tell.
  if (outcome != Outcome::kWaiting || pending.isSending() || !pending.tls || !pending.tls->hasPending()) return outcome;
  return receiveSome(pending, why);
}

Acceptor::Loop::Outcome Acceptor::Loop::flush(Pending& pending, Status* why) {
  while (pending.sent < pending.to_send.size()) {
    const ssize_t sent =
        pending.stream().send(pending.to_send.data() + pending.sent, pending.to_send.size() - pending.sent);
    if (sent < 0 && wouldBlock(errno)) return Outcome::kWaiting;
    if (sent < 0) {
      *why = disconnected("it left during the handshake", errno);
      return Outcome::kDropped;
    }
    pending.sent += static_cast<size_t>(sent);
  }
  *why = pending.refusal;
  if (!pending.refusal.isOk()) return Outcome::kDropped;
  return pending.is_finished ? Outcome::kDone : Outcome::kWaiting;
}

}  // namespace jhetcc::net
