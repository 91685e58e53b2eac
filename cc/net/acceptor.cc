// SPDX-License-Identifier: Apache-2.0
#include "net/acceptor.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "net/acceptor_loop.h"

namespace jhetcc::net {
namespace {

constexpr size_t kDropsMax = 8;

bool matches(const Identity& peer, const PeerMatch& match) {
  return peer.role == match.role && peer.rank == match.rank && peer.path == match.path && peer.epoch == match.epoch &&
         peer.caller_slot == match.caller_slot && peer.called_slot == match.called_slot;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : " | ") + line;
  return text;
}

}  // namespace

Result<std::unique_ptr<Acceptor>> Acceptor::create(AcceptorConfig config) {
  if (config.mine.job.empty() || config.mine.job.size() > kJobBytesMax || config.pending_max == 0) {
    return Status(Kind::kBadArgument, Scope::kCall, "identity",
                  "the job name must have 1 to " + std::to_string(kJobBytesMax) + " bytes");
  }
  JHETCC_RETURN_IF_ERROR(checkInsecure(config.secret, config.address, config.address).withContext("listening"));
  Result<Listener> listener = Listener::create(config.address, config.device);
  if (!listener.isOk()) return listener.status();
  Result<Wakeup> wakeup = Wakeup::create();
  if (!wakeup.isOk()) return wakeup.status();
  auto loop = std::make_unique<Loop>(std::move(config), std::move(listener).value(), std::move(wakeup).value());
  JHETCC_RETURN_IF_ERROR(loop->start());
  return std::unique_ptr<Acceptor>(new Acceptor(std::move(loop)));
}

Acceptor::Acceptor(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Acceptor::~Acceptor() = default;
const Address& Acceptor::address() const { return loop_->address(); }
void Acceptor::leaveBehind(uint32_t epoch, const std::vector<int32_t>& ranks) { loop_->leaveBehind(epoch, ranks); }
Result<Connection> Acceptor::take(const PeerMatch& match, const Deadline& deadline) {
  return loop_->take(match, deadline);
}
AcceptorCounts Acceptor::counts() const { return loop_->counts(); }
std::vector<std::string> Acceptor::recentDrops() const { return loop_->recentDrops(); }

void Acceptor::Loop::leaveBehind(uint32_t epoch, const std::vector<int32_t>& ranks) {
  std::lock_guard lock(mutex_);
  epoch_ = epoch;
  left_behind_ = ranks;
  std::erase_if(unclaimed_, [&](const Connection& connection) { return isLeftBehind(connection.peer); });
}

/// Under the lock.
bool Acceptor::Loop::isLeftBehind(const Identity& peer) const {
  return std::find(left_behind_.begin(), left_behind_.end(), peer.rank) != left_behind_.end();
}

AcceptorCounts Acceptor::Loop::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

std::vector<std::string> Acceptor::Loop::recentDrops() const {
  std::lock_guard lock(mutex_);
  return {drops_.begin(), drops_.end()};
}

/// A connection that just ends proves nothing, either way: a link that fails cuts handshakes of our own, too, before
/// the first byte or after. Nor is one a stranger's who has proven to be of this job.
bool Acceptor::Loop::mayBeOurs(const Pending& pending, const Status& why) const {
  if (why.code() == "stale_epoch" || why.code() == "wrong_rank" || why.code() == "role_mismatch") return true;
  if (why.kind() != Kind::kDisconnected && why.kind() != Kind::kTimeout) return false;
  return !pending.handshake.hasHello() || (config_.is_known && config_.is_known(pending.handshake.peer()));
}

void Acceptor::Loop::drop(const Address& remote, const Status& why, bool may_be_ours) {
  std::string line = remote.text() + ": " + why.message();
  JHETCC_LOG(kDebug, "net", "dropped a connection from " + line);
  Lines& lines = may_be_ours ? perhaps_ours_ : strangers_;
  ++lines.untold;
  lines.last = line;
  tell(clock_.nowNs());
  keep(std::move(line));
  std::lock_guard lock(mutex_);
  ++counts_.dropped;
}

void Acceptor::Loop::keep(std::string line) {
  std::lock_guard lock(mutex_);
  if (!drops_.empty() && drops_.back() == line) return;
  drops_.push_back(std::move(line));
  if (drops_.size() > kDropsMax) drops_.pop_front();
}

void Acceptor::Loop::tell(int64_t now_ns) {
  const std::string strange = lineOf(strangers_, now_ns, "turned a stranger away", "turned % strangers away");
  if (!strange.empty()) JHETCC_LOG(kWarn, "net", strange);
  const std::string broken = lineOf(perhaps_ours_, now_ns, "a connection that may have been our own came to nothing",
                                    "% connections that may have been our own came to nothing");
  if (!broken.empty()) JHETCC_LOG(kInfo, "net", broken);
}

/// The line that is due, or nothing.
std::string Acceptor::Loop::lineOf(Lines& lines, int64_t now_ns, const char* one, const char* several) const {
  if (lines.untold == 0 || now_ns < lines.again_ns) return "";
  std::string text = one;
  if (lines.untold > 1) {
    text = several;
    text.replace(text.find('%'), 1, std::to_string(lines.untold));
    text += " since the last such line,";
  }
  text += " at " + address().text() + (lines.untold == 1 ? ": " : ", the last one: ") + lines.last;
  lines.untold = 0;
  lines.again_ns = now_ns + kTellNs;
  return text;
}

void Acceptor::Loop::finish(Pending& pending) {
  Connection connection;
  connection.fd = std::move(pending.socket.fd);
  connection.tls = std::move(pending.tls);
  connection.peer = pending.handshake.peer();
  connection.local = pending.socket.local;
  connection.remote = pending.socket.remote;
  connection.description =
      describe(connection.peer) + " at " + connection.remote.text() + " from " + connection.local.text();
  std::unique_lock lock(mutex_);
  ++counts_.accepted;
  if (isLeftBehind(connection.peer)) return;  // since its handshake began
  if (config_.on_connection) {
    lock.unlock();
    config_.on_connection(std::move(connection));
    return;
  }
  // A process that calls again has given its earlier connection up.
  std::erase_if(unclaimed_, [&](const Connection& other) { return other.peer == connection.peer; });
  if (unclaimed_.size() >= config_.unclaimed_max) {
    JHETCC_LOG(kWarn, "net", "too many connections nobody took; closed the oldest: " + unclaimed_.front().description);
    unclaimed_.pop_front();
  }
  unclaimed_.push_back(std::move(connection));
  arrived_.notify_all();
}

Result<Connection> Acceptor::Loop::take(const PeerMatch& match, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto found = std::find_if(unclaimed_.rbegin(), unclaimed_.rend(),
                                    [&](const Connection& connection) { return matches(connection.peer, match); });
    if (found != unclaimed_.rend()) {
      Connection taken = std::move(*found);
      unclaimed_.erase(std::next(found).base());
      return taken;
    }
    if (!failure_.isOk()) return failure_;
    lock.unlock();  // cancelled() is the caller's code
    const Status time =
        checkDeadline(deadline, "waiting at " + address().text() + " for rank " + std::to_string(match.rank) + " (" +
                                    roleName(match.role) + ", path " + std::to_string(match.path) + ", epoch " +
                                    std::to_string(match.epoch) + ") to connect");
    if (!time.isOk()) {
      const std::string drops = joined(recentDrops());
      return Status(time.kind(), Scope::kEndpoint, time.kind() == Kind::kTimeout ? "accept_timeout" : time.code(),
                    time.message() + (drops.empty() ? "; nobody was turned away" : "; turned away of late: " + drops),
                    match.rank >= 0 ? std::vector<int32_t>{match.rank} : std::vector<int32_t>{});
    }
    lock.lock();
    const auto slice = std::chrono::nanoseconds(std::min(kSliceNs, std::max<int64_t>(deadline.remainingNs(), 0)));
    const auto is_here = [&] {
      return !failure_.isOk() || std::any_of(unclaimed_.begin(), unclaimed_.end(), [&](const Connection& connection) {
        return matches(connection.peer, match);
      });
    };
    arrived_.wait_for(lock, slice, is_here);
  }
}

}  // namespace jhetcc::net
