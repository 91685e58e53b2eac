// SPDX-License-Identifier: Apache-2.0
// What comes in: small frames through a buffer, fetched payloads straight into their place; and the stream's end.
// One thread.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "net/tls.h"
#include "transport/tcp/endpoint.h"

namespace jhetcc::transport::tcp {

namespace {

constexpr uint64_t kFramesPerPoll = 64;
constexpr uint64_t kBytesPerPoll = 1024 * 1024;
constexpr uint32_t kBufferBytesMin = 64 * 1024;
/// While payloads are on their way, no more is read behind a data frame: the next one's bytes would be copied twice.
constexpr uint64_t kReadAheadBytes =
    5 * sizeof(FrameHeader);  // one is done, a push, its offer, perhaps one taken, data

uint64_t inlineBytes(const FrameHeader& header) { return isInline(header.type) ? header.length : 0; }

bool isKnown(FrameType type) {
  return (type >= FrameType::kData && type <= FrameType::kRelay) || (type >= kFetchRequest && type <= kTaken);
}

}  // namespace

TcpEndpoint::TcpEndpoint(Fd socket, const Options& options, std::string description,
                         std::shared_ptr<net::TlsSession> tls)
    : socket_(std::move(socket)), tls_(std::move(tls)), options_(options), description_(std::move(description)) {
  out_.resize(options.send_buffer_bytes);
  in_.resize(options.receive_buffer_bytes);
  internal_.reserve(64);
  requests_.reserve(64);
  released_.reserve(64);
  fetches_.reserve(64);
}

Result<std::unique_ptr<Endpoint>> create(Fd socket, const Options& options, const std::string& description,
                                         std::shared_ptr<net::TlsSession> tls) {
  if (options.send_buffer_bytes < kBufferBytesMin || options.receive_buffer_bytes < kBufferBytesMin ||
      options.data_frame_bytes == 0) {
    return Status(Kind::kBadArgument, Scope::kCall, "bad_option",
                  "tcp " + description + ": buffers need at least 65536 bytes, data frames at least 1");
  }
  const int flags = fcntl(socket.get(), F_GETFL);
  if (flags < 0 || fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return Status(Kind::kInternal, Scope::kEndpoint, "bad_socket",
                  "tcp " + description + ": fcntl(O_NONBLOCK): " + strerror(errno));
  }
  const int on = 1;
  // A unix socket, as tests use, has no such option and no such delay.
  if (setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 && errno != EOPNOTSUPP) {
    return Status(Kind::kInternal, Scope::kEndpoint, "bad_socket",
                  "tcp " + description + ": setsockopt(TCP_NODELAY): " + strerror(errno));
  }
  const int unsent = static_cast<int>(options.unsent_bytes);
  if (unsent > 0 && setsockopt(socket.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent) != 0 &&
      errno != EOPNOTSUPP) {
    return Status(Kind::kInternal, Scope::kEndpoint, "bad_socket",
                  "tcp " + description + ": setsockopt(TCP_NOTSENT_LOWAT): " + strerror(errno));
  }
  return std::unique_ptr<Endpoint>(
      std::make_unique<TcpEndpoint>(std::move(socket), options, "tcp " + description, std::move(tls)));
}

void TcpEndpoint::fail(const std::string& what) {
  broken_ = Status(Kind::kInternal, Scope::kEndpoint, "bad_frame",
                   description_ + ": " + what + "; the peer is damaged or runs another version");
}

/// `error` 0: the stream has ended.
Status TcpEndpoint::lost(const std::string& what, int error) const {
  const bool closed = error == 0 || error == ECONNRESET || error == EPIPE;
  return Status(Kind::kDisconnected, Scope::kEndpoint, closed ? "peer_closed" : "peer_lost",
                description_ + ": " + what + (error == 0 ? "" : std::string(": ") + strerror(error)));
}

Result<bool> TcpEndpoint::fetch(const FrameHeader& offer, void* destination, uint64_t token) {
  if (!broken_.isOk()) return broken_;
  for (Fetch& push : fetches_) {
    if (push.place == Fetch::Place::kMissing && push.cookie == offer.cookie && push.length == offer.length) {
      return takeEarly(push, destination, token);
    }
  }
  Fetch fetch{next_fetch_++};
  fetch.token = token;
  fetch.destination = static_cast<uint8_t*>(destination);
  fetch.length = offer.length;
  queueInternal(kFetchRequest, offer.cookie, fetch.id);
  fetches_.push_back(std::move(fetch));
  return false;
}

/// Gives a push its place. True: all of it is there.
bool TcpEndpoint::takeEarly(Fetch& push, void* destination, uint64_t token) {
  push.place = Fetch::Place::kGiven;
  push.token = token;
  push.destination = static_cast<uint8_t*>(destination);
  uint64_t there = push.received;
  if (incoming_.fetch == push.id && incoming_.left > 0) {  // the current frame counts as received from its beginning
    there -= incoming_.left;
    incoming_.place = push.destination + there;
  }
  if (there > 0) std::memcpy(push.destination, push.early.get(), there);
  push.early.reset();
  if (!push.is_whole) return false;
  queueInternal(kTaken, push.id, 0);
  fetches_.erase(fetches_.begin() + (&push - fetches_.data()));
  return true;
}

TcpEndpoint::Fetch* TcpEndpoint::findFetch(uint64_t id) {
  for (Fetch& fetch : fetches_) {
    if (fetch.id == id) return &fetch;
  }
  return nullptr;
}

void TcpEndpoint::cancel(uint64_t token) {
  const auto found = std::find_if(fetches_.begin(), fetches_.end(), [token](const Fetch& fetch) {
    return fetch.token == token && fetch.place == Fetch::Place::kGiven;
  });
  if (found == fetches_.end()) return;
  if (incoming_.fetch == found->id) incoming_.place = nullptr;  // what still comes is read and dropped
  if (found->id & kPushBit) {
    found->place = Fetch::Place::kRefused;  // its sender waits to hear that it is over
  } else {
    fetches_.erase(found);
  }
}

Status TcpEndpoint::poll(EventSink& sink) {
  if (!broken_.isOk() || has_ended_) return broken_;
  if (wantsWrite()) flush();
  receive(sink);
  if (wantsWrite()) flush();
  while (!released_.empty() && broken_.isOk()) {
    const uint64_t cookie = released_.front();
    released_.erase(released_.begin());
    sink.onReleased(cookie);
  }
  if (!broken_.isOk() || end_.isOk() || hasWholeFrame()) return broken_;
  if (said_goodbye_) {
    has_ended_ = true;
  } else {
    broken_ = end_;
  }
  return broken_;
}

bool TcpEndpoint::prepareSleep(bool /*in_operation: the socket wakes for everything*/) {
  if (has_ended_) return true;
  if (!broken_.isOk() || !end_.isOk() || !released_.empty() || hasWholeFrame()) return false;
  if (tls_ && tls_->hasPending()) return false;
  if (wantsWrite()) flush();
  if (!write_error_.isOk() || !released_.empty()) return false;
  // That may have made the room for which someone waits, and an empty queue wakes nobody. Told once.
  const bool has_room = room_refused_ > 0 && internal_.empty() && out_.size() - queued() >= room_refused_;
  if (has_room) room_refused_ = 0;
  return !has_room;
}

bool TcpEndpoint::hasWholeFrame() const {
  if (incoming_.left > 0) return buffered() > 0;
  if (buffered() < sizeof(FrameHeader)) return false;
  FrameHeader header;
  std::memcpy(&header, in_.data() + in_begin_, sizeof header);
  return buffered() - sizeof header >= inlineBytes(header) || inlineBytes(header) > inlineLimit(header.type);
}

void TcpEndpoint::receive(EventSink& sink) {
  uint64_t frames = 0;
  uint64_t bytes = 0;
  bool is_drained = false;
  for (;;) {
    if (!parse(sink, &frames, &bytes)) return;
    const bool used_up = frames >= kFramesPerPoll || bytes >= kBytesPerPoll;
    if (!broken_.isOk() || used_up || is_drained || !end_.isOk()) return;
    if (!readSome(&is_drained, &bytes)) return;
  }
}

/// False: what comes next had better wait for the next poll.
bool TcpEndpoint::parse(EventSink& sink, uint64_t* frames, uint64_t* bytes) {
  while (broken_.isOk() && *frames < kFramesPerPoll) {
    if (incoming_.left > 0) {
      in_begin_ += takeIncoming(in_.data() + in_begin_, buffered());
      if (incoming_.left > 0) break;
    }
    if (buffered() < sizeof(FrameHeader)) break;
    FrameHeader header;
    std::memcpy(&header, in_.data() + in_begin_, sizeof header);
    const uint64_t payload_bytes = inlineBytes(header);
    if (!isKnown(header.type) || payload_bytes > inlineLimit(header.type)) {
      fail("frame of type " + std::to_string(static_cast<int>(header.type)) + " and " + std::to_string(header.length) +
           " bytes");
      break;
    }
    if (buffered() - sizeof header < payload_bytes) break;
    if (header.type == kFetchData && waited_for_ != header.cookie) {
      const Fetch* fetch = findFetch(header.cookie);
      if (fetch != nullptr && fetch->place == Fetch::Place::kMissing) {
        waited_for_ = header.cookie;  // once: what was reported may lead to its place, which saves a copy
        return false;
      }
    }
    const uint8_t* payload = in_.data() + in_begin_ + sizeof header;
    in_begin_ += sizeof header + payload_bytes;
    ++*frames;
    *bytes += payload_bytes;
    handle(header, payload, sink);
  }
  if (in_begin_ == in_end_) in_begin_ = in_end_ = 0;
  return true;
}

/// Bytes of the current data frame that lie in the receive buffer go to their place.
uint64_t TcpEndpoint::takeIncoming(const uint8_t* data, uint64_t bytes) {
  const uint64_t taken = std::min(bytes, incoming_.left);
  if (incoming_.place != nullptr && taken > 0) {
    std::memcpy(incoming_.place, data, taken);
    incoming_.place += taken;
  }
  incoming_.left -= taken;
  return taken;
}

void TcpEndpoint::handle(const FrameHeader& header, const uint8_t* payload, EventSink& sink) {
  if (header.type == kFetchData) {
    beginIncoming(header);
  } else if (header.type == kFetchDone || header.type == kFetchRefused) {
    endFetch(header.cookie, header.type == kFetchRefused, sink);
  } else if (header.type == kFetchRequest) {
    if (requests_.size() + sent_.size() >= 3 * kOfferSlots) return fail("more fetch requests than offers");
    if (header.address & kPushBit) return fail("a fetch with the number of a push");
    requests_.push_back({header.cookie, header.address, 0});
  } else if (header.type == kPush) {
    beginPush(header);
  } else if (header.type == kTaken) {
    onTaken(header.cookie);
  } else {
    if (header.type == FrameType::kGoodbye) said_goodbye_ = true;
    sink.onFrame(header, payload);
  }
}

void TcpEndpoint::beginPush(const FrameHeader& header) {
  uint64_t bytes = 0, count = 0;
  for (const Fetch& fetch : fetches_) {
    if (!(fetch.id & kPushBit)) continue;
    bytes += fetch.length;
    ++count;
  }
  if (!(header.address & kPushBit) || findFetch(header.address) != nullptr || count >= kOfferSlots ||
      header.length == 0 || header.length > kPushBytes - bytes) {
    return fail("a push of " + std::to_string(header.length) + " bytes that cannot be");
  }
  Fetch push{header.address};
  push.length = header.length;
  push.cookie = header.cookie;
  push.place = Fetch::Place::kMissing;
  fetches_.push_back(std::move(push));
}

void TcpEndpoint::beginIncoming(const FrameHeader& header) {
  incoming_ = {header.cookie, nullptr, header.length};
  Fetch* found = findFetch(header.cookie);
  if (found == nullptr) return;  // cancelled
  if (header.address != found->received || header.length > found->length - found->received) {
    return fail("piece of a payload out of place");
  }
  uint8_t* place = found->destination;
  if (found->place == Fetch::Place::kMissing) {
    if (!found->early) found->early.reset(new uint8_t[found->length]);
    place = found->early.get();
  }
  if (found->place != Fetch::Place::kRefused) incoming_.place = place + found->received;
  found->received += header.length;
}

void TcpEndpoint::endFetch(uint64_t id, bool is_refused, EventSink& sink) {
  Fetch* found = findFetch(id);
  if (found == nullptr) {  // cancelled
    if (!is_refused) queueInternal(kTaken, id, 0);
    return;
  }
  if (!is_refused && found->received != found->length) return fail("payload shorter than its offer");
  if (!is_refused && found->place == Fetch::Place::kMissing) {
    found->is_whole = true;
    return;
  }
  const Fetch fetch = std::move(*found);
  fetches_.erase(fetches_.begin() + (found - fetches_.data()));
  if (!is_refused) queueInternal(kTaken, id, 0);
  if (fetch.place != Fetch::Place::kGiven) return;
  Status status;
  if (is_refused) {
    status = Status(Kind::kAborted, Scope::kCall, "offer_revoked",
                    description_ + ": the peer withdrew the offer before it was fetched");
  }
  sink.onFetched(fetch.token, std::move(status));
}

/// One read: first into the place of the current payload, then into the buffer. False: nothing came.
bool TcpEndpoint::readSome(bool* is_drained, uint64_t* bytes) {
  if (in_.size() - in_end_ < kRailBytesMax + sizeof(FrameHeader)) {
    std::memmove(in_.data(), in_.data() + in_begin_, buffered());
    in_end_ = buffered();
    in_begin_ = 0;
  }
  iovec pieces[2];
  size_t count = 0;
  uint64_t wanted = 0;
  uint64_t room = in_.size() - in_end_;
  const uint64_t direct = incoming_.place != nullptr ? incoming_.left : 0;
  if (direct > 0) {
    pieces[count++] = {incoming_.place, direct};
    room = kReadAheadBytes;
  } else if (incoming_.left == 0) {
    room = std::min<uint64_t>(room, kInlineBytesMax);  // what follows may be a payload, better read into its place
  }
  pieces[count++] = {in_.data() + in_end_, room};
  wanted = direct + room;
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = count;
  ssize_t got = -1;
  do {
    got = tls_ ? receiveTls(pieces, count) : recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) {
    if (got == 0) {
      end_ = lost("connection closed by the peer", 0);
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
      end_ = lost("recvmsg", errno);
    } else if (!write_error_.isOk()) {
      end_ = write_error_;
    }
    return false;
  }
  const uint64_t received = static_cast<uint64_t>(got);
  const uint64_t placed = std::min(received, direct);
  if (placed > 0) {
    incoming_.place += placed;
    incoming_.left -= placed;
  }
  in_end_ += received - placed;
  *bytes += received;
  *is_drained = received < wanted;
  return true;
}

}  // namespace jhetcc::transport::tcp
