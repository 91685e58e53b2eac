// SPDX-License-Identifier: Apache-2.0
#include "rail/relay.h"

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rail/bundle.h"

namespace jhetcc::rail {

using transport::FrameHeader;
using transport::FrameType;

namespace {

// In a message's `flags`; `source` and `tag` are the world ranks at the stream's ends, `sequence` is the stream that
// the lower of them opened.
constexpr uint8_t kOpenStream = 1;
constexpr uint8_t kBytes = 2;
constexpr uint8_t kConfirmed = 3;  ///< `cookie`: bytes that went into the socket so far
constexpr uint8_t kClosed = 4;

constexpr uint64_t kPieceBytes = transport::kInlineBytesMax;
constexpr uint64_t kUnderWayMax = 1024 * 1024;  ///< of a stream, unconfirmed
constexpr uint64_t kConfirmEach = kUnderWayMax / 4;
/// One third rank gets this long to bring a stream about; then the next is asked.
constexpr int64_t kAttemptNs = 250 * kNsPerMs;

}  // namespace

Rail* Relays::railTo(int32_t peer) const {
  for (const auto& rail : rails_) {
    if (rail->peer() == peer) return rail.get();
  }
  return nullptr;
}

Relays::Link* Relays::find(int32_t peer, uint64_t id) {
  for (Link& link : links_) {
    if (link.peer == peer && link.id == id && !link.is_closed) return &link;
  }
  return nullptr;
}

/// A third one whose host does not answer passes nothing on; it is not waited for where there is another.
void Relays::leaveSilent() {
  for (Link& link : links_) {
    const Rail* via = railTo(link.via);
    if (link.is_closed || link.peer < self_ || !via || via->isDirect()) continue;
    link.is_closed = std::any_of(rails_.begin(), rails_.end(),
                                 [&](const auto& rail) { return rail->peer() != link.peer && rail->isDirect(); });
    if (link.is_closed) link.socket = Fd();
  }
}

/// The lower rank of two without a path asks the others in turn.
void Relays::look() {
  const int64_t now = clock_.nowNs();
  leaveSilent();
  for (const auto& rail : rails_) {
    Bundle* bundle = rail->bundle();
    if (!bundle || rail->isBroken() || rail->peer() < self_ || !bundle->needsRelay()) continue;
    auto attempt =
        std::find_if(attempts_.begin(), attempts_.end(), [&](const Attempt& one) { return one.peer == rail->peer(); });
    if (attempt == attempts_.end()) attempt = attempts_.insert(attempt, Attempt{rail->peer()});
    const bool is_asked = std::any_of(links_.begin(), links_.end(),
                                      [&](const Link& link) { return link.peer == rail->peer() && !link.is_closed; });
    if (is_asked && now < attempt->not_before_ns) continue;  // refused ones are closed: the next at once
    attempt->not_before_ns = now + kAttemptNs;
    for (size_t k = 0; k < rails_.size(); ++k) {
      Rail& via = *rails_[attempt->next_via++ % rails_.size()];
      if (&via == rail.get() || via.isBroken() || !via.isDirect()) continue;
      const uint64_t id = next_id_++;
      if (open(*rail, via.peer(), id, true)) break;
    }
  }
}

bool Relays::open(Rail& to, int32_t via, uint64_t id, bool opened_here) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return false;
  Fd mine(ends[0]);
  auto endpoint = make_(Fd(ends[1]), "rank " + std::to_string(self_) + " -> rank " + std::to_string(to.peer()) +
                                         " by rank " + std::to_string(via));
  if (!endpoint.isOk()) return false;
  links_.push_back(Link{to.peer(), via, id, std::move(mine)});
  if (opened_here && !tell(links_.back(), kOpenStream, 0)) {
    links_.pop_back();
    return false;
  }
  to.bundle()->reopenPath(kRelayPath, std::move(endpoint).value(), opened_here, "rank " + std::to_string(via));
  return true;
}

bool Relays::tell(Link& link, uint8_t what, uint64_t number) {
  Rail* via = railTo(link.via);
  if (!via) return false;
  FrameHeader header;
  header.type = FrameType::kRelay;
  header.flags = what;
  header.sequence = link.id;
  header.cookie = number;
  header.source = static_cast<uint32_t>(self_);
  header.tag = static_cast<uint32_t>(link.peer);
  return via->trySend(header, nullptr);
}

void Relays::answerClosed(Rail& from, const FrameHeader& header) {
  FrameHeader answer;
  answer.type = FrameType::kRelay;
  answer.flags = kClosed;
  answer.sequence = header.sequence;
  answer.source = header.tag;
  answer.tag = header.source;
  from.sendControl(answer, nullptr);
}

/// In the middle: from one to the other, in order. What comes from an end says truly which end that is.
void Relays::pass(Rail& from, const FrameHeader& header, const void* payload) {
  Rail* to = railTo(static_cast<int32_t>(header.tag));
  const bool is_first_hop = static_cast<int32_t>(header.source) == from.peer();
  if (!is_first_hop || header.length > kPieceBytes) return;
  if (!to || to->isBroken() || !to->isDirect()) {
    if (header.flags != kClosed) answerClosed(from, header);
    return;
  }
  const auto source = static_cast<int32_t>(header.source), target = static_cast<int32_t>(header.tag);
  if (header.flags == kOpenStream) passed_.push_back({source, target, header.sequence});
  if (header.flags == kClosed) {
    std::erase_if(passed_, [&](const Passed& one) {
      return one.id == header.sequence && std::minmax(one.opener, one.other) == std::minmax(source, target);
    });
  }
  Passing passing{header, {}};
  const auto* bytes = static_cast<const uint8_t*>(payload);
  if (header.length > 0) passing.payload.assign(bytes, bytes + header.length);
  passing_.push_back(std::move(passing));
}

void Relays::onFrame(Rail& from, const FrameHeader& header, const void* payload) {
  if (static_cast<int32_t>(header.tag) != self_) return pass(from, header, payload);
  const auto peer = static_cast<int32_t>(header.source);
  Rail* rail = railTo(peer);
  if (!rail || !rail->bundle() || rail->isBroken()) return;
  if (header.flags == kOpenStream) {
    if (peer > self_ || find(peer, header.sequence) || !open(*rail, from.peer(), header.sequence, false)) {
      answerClosed(from, header);
    }
    return;
  }
  Link* link = find(peer, header.sequence);
  if (!link) {
    if (header.flags == kBytes) answerClosed(from, header);
    return;
  }
  if (header.flags == kBytes) {
    const auto* bytes = static_cast<const uint8_t*>(payload);
    link->in.emplace_back(bytes, bytes + header.length);
  } else if (header.flags == kConfirmed) {
    link->confirmed = std::min(header.cookie, link->sent);
  } else if (header.flags == kClosed) {
    link->is_closed = true;  // its bundle sees the socket's end
  }
}

void Relays::onRailBroken(int32_t peer, bool left) {
  std::erase_if(passed_, [peer](const Passed& one) { return one.opener == peer || one.other == peer; });
  for (Link& link : links_) {
    if (link.via != peer && (link.peer != peer || left)) continue;
    pumpIn(link);  // what came before comes first
    link.is_closed = true;
  }
}

bool Relays::hasOutput() const {
  return std::any_of(links_.begin(), links_.end(), [](const Link& link) {
    int waiting = 0;
    if (link.is_closed) return false;
    return !link.out.empty() || (::ioctl(link.socket.get(), FIONREAD, &waiting) == 0 && waiting > 0);
  });
}

bool Relays::pump() {
  bool moved = false;
  while (!passing_.empty()) {
    Passing& first = passing_.front();
    Rail* to = railTo(static_cast<int32_t>(first.header.tag));
    if (to && !to->isBroken() && !to->trySend(first.header, first.payload.data()) && !to->isBroken()) break;
    passing_.pop_front();
    moved = true;
  }
  for (auto link = links_.begin(); link != links_.end();) {
    if (!link->is_closed) moved |= pumpIn(*link);
    if (!link->is_closed) moved |= pumpOut(*link);
    link = link->is_closed ? links_.erase(link) : std::next(link);
  }
  return moved;
}

/// From the socket to the peer.
bool Relays::pumpOut(Link& link) {
  Rail* via = railTo(link.via);
  bool moved = false;
  while (via && link.sent - link.confirmed < kUnderWayMax) {
    if (link.out.empty()) {
      link.out.resize(kPieceBytes);
      const ssize_t got = ::read(link.socket.get(), link.out.data(), link.out.size());
      link.out.resize(got > 0 ? static_cast<size_t>(got) : 0);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {  // the bundle has left this path
        tell(link, kClosed, 0);
        link.is_closed = true;
      }
      if (got <= 0) return moved;
    }
    FrameHeader header;
    header.type = FrameType::kRelay;
    header.flags = kBytes;
    header.sequence = link.id;
    header.source = static_cast<uint32_t>(self_);
    header.tag = static_cast<uint32_t>(link.peer);
    header.length = link.out.size();
    if (!via->trySend(header, link.out.data())) return moved;
    link.sent += link.out.size();
    link.out.clear();
    moved = true;
  }
  return moved;
}

/// From the peer to the socket.
bool Relays::pumpIn(Link& link) {
  bool moved = false;
  while (!link.in.empty()) {
    const std::vector<uint8_t>& first = link.in.front();
    const ssize_t put = ::send(link.socket.get(), first.data() + link.in_offset, first.size() - link.in_offset,
                               MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (put < 0) {
      tell(link, kClosed, 0);
      link.is_closed = true;
      return moved;
    }
    link.written += static_cast<uint64_t>(put);
    link.in_offset += static_cast<size_t>(put);
    if (link.in_offset == first.size()) {
      link.in.pop_front();
      link.in_offset = 0;
    }
    moved = true;
  }
  if (link.written - link.told >= kConfirmEach && tell(link, kConfirmed, link.written)) link.told = link.written;
  return moved;
}

}  // namespace jhetcc::rail
