// SPDX-License-Identifier: Apache-2.0
// What goes out: small frames through a buffer, payloads under fetch straight from the offered memory. One thread.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/tcp/endpoint.h"

namespace jhetcc::transport::tcp {

namespace {

constexpr uint64_t kFlushAtBytes = 64 * 1024;
constexpr uint64_t kBytesPerFlush = 1024 * 1024;
constexpr uint64_t kZeroBytes = 64 * 1024;
const uint8_t kZeros[kZeroBytes] = {};

}  // namespace

Result<bool> TcpEndpoint::send(const FrameHeader& header, const void* payload) {
  if (!broken_.isOk()) return broken_;
  if (has_ended_) {
    return Status(Kind::kDisconnected, Scope::kEndpoint, "peer_closed", description_ + ": the peer has closed");
  }
  const bool is_offer = header.type == FrameType::kOffer;
  const uint64_t payload_bytes = is_offer ? 0 : header.length;
  if (payload_bytes > inlineLimit(header.type)) return inlineTooLong(description_, payload_bytes);
  if (is_offer && offers_.isFull()) return false;
  const bool is_push = is_offer && mayPush(header.length);
  const bool is_copied = is_push && header.length <= kInlineBytesMax;
  const uint64_t room = is_copied ? 4 * sizeof header + header.length : 2 * sizeof header + payload_bytes;
  if (!flushInternal() || out_.size() - queued() < room) {
    flush();
    if (!flushInternal() || out_.size() - queued() < room) {
      room_refused_ = std::max(room_refused_, room);
      return false;
    }
  }
  if (room >= room_refused_) room_refused_ = 0;
  if (is_offer) offers_.insert(header.cookie, header.address, header.length);
  if (is_push) {
    push(header, is_copied);
  } else {
    append(header, payload, payload_bytes);
  }
  // The next poll writes; what must not wait for it goes at once.
  const bool is_urgent = header.type == FrameType::kControl || header.type == FrameType::kGoodbye;
  if (is_urgent || queued() >= kFlushAtBytes) flush();
  return true;
}

bool TcpEndpoint::mayPush(uint64_t length) const {
  return length > 0 && length <= kPushBytes - pushed_bytes_ && requests_.size() < kOfferSlots;
}

/// Announces that a payload comes unasked, and offers it; its bytes follow.
void TcpEndpoint::push(const FrameHeader& offer, bool is_copied) {
  FrameHeader own;
  own.type = kPush;
  own.cookie = offer.cookie;
  own.address = next_push_++;
  own.length = offer.length;
  append(own, nullptr, 0);
  append(offer, nullptr, 0);
  sent_.push_back({own.address, offer.cookie, offer.length, is_copied});
  pushed_bytes_ += offer.length;
  if (!is_copied) {
    requests_.push_back({offer.cookie, own.address, 0});
    return;
  }
  own.type = kFetchData;
  own.cookie = own.address;
  own.address = 0;
  append(own, reinterpret_cast<const void*>(offer.address), offer.length);
  own.type = kFetchDone;
  own.length = 0;
  append(own, nullptr, 0);
}

void TcpEndpoint::forgetSent(uint64_t id) {
  const auto found = std::find_if(sent_.begin(), sent_.end(), [id](const Sent& one) { return one.id == id; });
  if (found == sent_.end()) return;
  pushed_bytes_ -= found->pushed;
  sent_.erase(found);
}

void TcpEndpoint::onTaken(uint64_t id) {
  const auto found = std::find_if(sent_.begin(), sent_.end(), [id](const Sent& one) { return one.id == id; });
  if (found == sent_.end()) return;  // withdrawn meanwhile
  if (!found->is_whole) return fail("a payload taken that was not sent");
  const uint64_t cookie = found->cookie;
  forgetSent(id);
  closeOffer(offers_.find(cookie));  // open: with an offer ends all that is sent of it
  released_.push_back(cookie);
}

/// Says that a payload comes no more, and forgets it.
void TcpEndpoint::refuse(uint64_t fetch) {
  queueInternal(kFetchRefused, fetch, 0);
  forgetSent(fetch);
}

/// Its memory is not read any more. What was still to be sent of it is refused at once: behind the data frame under way
/// and before any later offer, which may have the same cookie.
void TcpEndpoint::closeOffer(int slot) {
  const uint64_t cookie = offers_[slot].cookie;
  offers_.erase(slot);
  for (size_t k = 0; k < requests_.size();) {
    Request& request = requests_[k];
    if (request.cookie != cookie || request.is_void) {
      ++k;
      continue;
    }
    const uint64_t fetch = request.fetch;
    if (k == 0 && data_.is_active) {
      request.is_void = data_.is_void = true;
      ++k;
    } else {
      requests_.erase(requests_.begin() + static_cast<ptrdiff_t>(k));
    }
    refuse(fetch);
  }
  std::erase_if(sent_, [&](const Sent& one) {
    if (one.cookie != cookie) return false;
    queueInternal(kFetchRefused, one.id, 0);
    pushed_bytes_ -= one.pushed;
    return true;
  });
}

bool TcpEndpoint::append(const FrameHeader& header, const void* payload, uint64_t payload_bytes) {
  const uint64_t bytes = sizeof header + payload_bytes;
  if (out_.size() - out_end_ < bytes) {
    if (out_.size() - queued() < bytes) return false;
    std::memmove(out_.data(), out_.data() + out_begin_, queued());
    out_end_ = queued();
    out_begin_ = 0;
  }
  std::memcpy(out_.data() + out_end_, &header, sizeof header);
  if (payload_bytes > 0) std::memcpy(out_.data() + out_end_ + sizeof header, payload, payload_bytes);
  out_end_ += bytes;
  return true;
}

void TcpEndpoint::queueInternal(FrameType type, uint64_t cookie, uint64_t address) {
  FrameHeader header;
  header.type = type;
  header.cookie = cookie;
  header.address = address;
  internal_.push_back(header);
  flushInternal();
}

bool TcpEndpoint::flushInternal() {
  size_t moved = 0;
  while (moved < internal_.size() && append(internal_[moved], nullptr, 0)) ++moved;
  internal_.erase(internal_.begin(), internal_.begin() + static_cast<ptrdiff_t>(moved));
  return internal_.empty();
}

bool TcpEndpoint::wantsWrite() const {
  return broken_.isOk() && !has_ended_ && write_error_.isOk() &&
         (queued() > 0 || data_.is_active || !internal_.empty() || !requests_.empty());
}

/// Writes until the socket is full, the budget is used up, or nothing is left.
void TcpEndpoint::flush() {
  uint64_t budget = kBytesPerFlush;
  while (write_error_.isOk() && budget > 0) {
    flushInternal();
    if (!data_.is_active && !startData() && queued() == 0) return;
    iovec pieces[4];
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = static_cast<size_t>(gather(pieces));
    const ssize_t count =
        tls_ ? sendTls(pieces, message.msg_iovlen) : sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) {
      written(static_cast<uint64_t>(count));
      budget -= std::min<uint64_t>(budget, static_cast<uint64_t>(count) + 1);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      write_error_ = lost("sendmsg", errno);
    }
  }
}

/// Begins the next data frame, behind everything that is in the send buffer now. False: no payload is asked for.
bool TcpEndpoint::startData() {
  while (!requests_.empty() && internal_.empty()) {
    const Request& request = requests_.front();
    const int slot = offers_.find(request.cookie);
    if (slot < 0) {
      refuse(request.fetch);
      requests_.erase(requests_.begin());
      continue;
    }
    const OpenOffer& offer = offers_[slot];
    data_ = Outgoing();
    data_.is_active = true;
    data_.ahead = queued();
    // The offered address is this process's own; it is a number only because it travelled.
    data_.source = reinterpret_cast<const uint8_t*>(offer.address) + request.sent;
    data_.length = std::min<uint64_t>(options_.data_frame_bytes, offer.length - request.sent);
    data_.header.type = kFetchData;
    data_.header.cookie = request.fetch;
    data_.header.address = request.sent;
    data_.header.length = data_.length;
    // A record of TLS that was refused must come again as it was, so it must not hold what may still be dropped.
    data_.is_last = !tls_ && request.sent + data_.length == offer.length;
    data_.done.type = kFetchDone;
    data_.done.cookie = request.fetch;
    return true;
  }
  return false;
}

int TcpEndpoint::gather(iovec* pieces) const {
  int count = 0;
  const uint64_t from_buffer = data_.is_active ? data_.ahead : queued();
  if (from_buffer > 0) {
    pieces[count++] = {const_cast<uint8_t*>(out_.data()) + out_begin_, from_buffer};
  }
  if (!data_.is_active) return count;
  if (data_.header_sent < sizeof data_.header) {
    auto* header = reinterpret_cast<uint8_t*>(const_cast<FrameHeader*>(&data_.header));
    pieces[count++] = {header + data_.header_sent, sizeof data_.header - data_.header_sent};
  }
  const uint64_t left = data_.length - data_.sent;
  if (left > 0 && data_.is_void) {
    pieces[count++] = {const_cast<uint8_t*>(kZeros), std::min(left, kZeroBytes)};
  } else if (left > 0) {
    pieces[count++] = {const_cast<uint8_t*>(data_.source) + data_.sent, left};
  }
  if (sendsDone()) {
    auto* done = reinterpret_cast<uint8_t*>(const_cast<FrameHeader*>(&data_.done));
    pieces[count++] = {done + data_.done_sent, sizeof data_.done - data_.done_sent};
  }
  return count;
}

void TcpEndpoint::written(uint64_t bytes) {
  const uint64_t buffered = std::min(bytes, data_.is_active ? data_.ahead : queued());
  out_begin_ += buffered;
  bytes -= buffered;
  if (out_begin_ == out_end_) out_begin_ = out_end_ = 0;
  if (!data_.is_active) return;
  data_.ahead -= buffered;
  const uint64_t of_header = std::min<uint64_t>(bytes, sizeof data_.header - data_.header_sent);
  data_.header_sent += of_header;
  const uint64_t of_payload = std::min<uint64_t>(bytes - of_header, data_.length - data_.sent);
  data_.sent += of_payload;
  data_.done_sent += bytes - of_header - of_payload;
  if (data_.ahead == 0 && data_.header_sent == sizeof data_.header && data_.sent == data_.length &&
      (!sendsDone() || data_.done_sent == sizeof data_.done)) {
    finishData();
  }
}

void TcpEndpoint::finishData() {
  Request request = requests_.front();
  requests_.erase(requests_.begin());
  data_.is_active = false;
  if (request.is_void) return;  // refused already
  request.sent += data_.length;
  const int slot = offers_.find(request.cookie);
  if (request.sent < offers_[slot].length) {
    requests_.push_back(request);  // the others' turn
    return;
  }
  if (data_.done_sent == 0) queueInternal(kFetchDone, request.fetch, 0);
  if (!(request.fetch & kPushBit)) {
    sent_.push_back({request.fetch, request.cookie, 0, true});
    return;
  }
  std::find_if(sent_.begin(), sent_.end(), [&](const Sent& one) { return one.id == request.fetch; })->is_whole = true;
}

void TcpEndpoint::revoke(uint64_t cookie) {
  std::erase(released_, cookie);
  const int slot = offers_.find(cookie);
  if (slot >= 0) closeOffer(slot);
}

}  // namespace jhetcc::transport::tcp
