// SPDX-License-Identifier: Apache-2.0
// The arithmetic of a byte ring whose producer and consumer are in two machines: frames are 64-byte aligned and
// contiguous, positions only grow, what the consumer has read comes back as credit. The other end may be damaged or
// hostile: what it says is checked before anything is touched. One thread.
#pragma once

#include <array>
#include <cstring>

#include "transport/transport.h"

namespace jhetcc::transport::verbs {

/// Frames of this transport's own.
constexpr FrameType kPad = FrameType{0x80};           ///< skip to the ring's begin
constexpr FrameType kFetchRequest = FrameType{0x82};  ///< cookie: the offer; address: number of the fetch
constexpr FrameType kFetchData = FrameType{0x83};     ///< cookie: number of the fetch; address: offset; flags: the last
constexpr FrameType kFetchRefused = FrameType{0x84};  ///< cookie: number of the fetch
constexpr FrameType kTaken =
    FrameType{0x85};  ///< cookie: number of the fetch: all is in its place, or not wanted any more

constexpr uint64_t kUnit = 64;
constexpr uint64_t kPieceBytes = 64 * 1024;          ///< of an offered payload, in one frame
constexpr uint64_t kReserveBytes = 32 * 1024;        ///< room that only what is urgent may take
constexpr uint32_t kRingBytesMin = 256 * 1024;       ///< two pieces and the reserve fit twice
constexpr uint32_t kRingBytesMax = 2 * 1024 * 1024;  ///< counts of units fit into 16 bits
/// Messages that the peer may not have told to be read yet. Each takes one of its receives.
constexpr uint32_t kMessagesMax = 128;
/// A consumer gives credit after so many messages, or a quarter of the ring: at most 8 messages of credit alone.
constexpr uint32_t kMessagesPerCredit = kMessagesMax / 4;
constexpr uint32_t kReceives = kMessagesMax + 32;

inline uint64_t frameBytes(uint64_t payload_bytes) {
  return sizeof(FrameHeader) + (payload_bytes + kUnit - 1) / kUnit * kUnit;
}

/// Payload bytes that follow the header in the ring; ~0 for a type or length that cannot be.
inline uint64_t bytesBehind(const FrameHeader& header) {
  const FrameType type = header.type;
  if (type == FrameType::kOffer || type == kFetchRequest || type == kFetchRefused || type == kTaken) return 0;
  uint64_t limit = 0;
  if (isInline(type)) {
    limit = inlineLimit(type);
  } else if (type == kFetchData) {
    limit = kPieceBytes;
  } else if (type == kPad) {
    limit = kRingBytesMax;
  } else {
    return ~uint64_t{0};
  }
  return header.length <= limit ? header.length : ~uint64_t{0};
}

/// What travels with each message: units published by it, units read since the last one.
struct Immediate {
  uint16_t published;
  uint16_t credit;
  uint32_t word() const { return uint32_t{published} << 16 | credit; }
  static Immediate of(uint32_t word) { return {static_cast<uint16_t>(word >> 16), static_cast<uint16_t>(word)}; }
};

/// The producer's side. Bytes lie in a copy of the peer's ring, at the same place.
class OutRing {
 public:
  /// Bytes of the ring to be posted, contiguous.
  struct Range {
    uint64_t begin;
    uint64_t bytes;
  };
  void start(uint8_t* data, uint64_t size) { data_ = data, size_ = size; }
  uint64_t size() const { return size_; }

  /// Place for a frame, or null: no room beyond what has to stay.
  uint8_t* reserve(uint64_t payload_bytes, uint64_t kept) {
    const uint64_t bytes = frameBytes(payload_bytes);
    const uint64_t to_end = size_ - place(head_);
    const uint64_t pad = to_end < bytes ? to_end : 0;
    if (size_ - (head_ - tail_) < pad + bytes + kept) return nullptr;
    if (pad > 0) {
      FrameHeader header;
      header.type = kPad;
      header.length = pad - sizeof header;
      std::memcpy(data_ + place(head_), &header, sizeof header);
    }
    head_ += pad + bytes;
    return data_ + place(head_ - bytes);
  }
  uint64_t unposted() const { return head_ - posted_; }
  /// The peer can take so many more messages.
  bool mayPost(uint32_t count) const { return messages_end_ - messages_begin_ + count <= kMessagesMax; }
  /// The next bytes to post, at most up to the ring's end; then posted() has to be told.
  Range next() const {
    const uint64_t to_end = size_ - place(posted_);
    return {place(posted_), unposted() < to_end ? unposted() : to_end};
  }
  void posted(uint64_t bytes) {
    posted_ += bytes;
    message_ends_[messages_end_++ % kMessagesMax] = posted_;
  }
  /// False: nobody can have read that much.
  bool credit(uint16_t units) {
    if (units * kUnit > posted_ - tail_) return false;
    tail_ += units * kUnit;
    while (messages_begin_ != messages_end_ && message_ends_[messages_begin_ % kMessagesMax] <= tail_) {
      ++messages_begin_;
    }
    return true;
  }

 private:
  uint64_t place(uint64_t position) const { return position & (size_ - 1); }
  uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t head_ = 0;
  uint64_t posted_ = 0;
  uint64_t tail_ = 0;  ///< read by the peer, as it told
  std::array<uint64_t, kMessagesMax> message_ends_{};
  uint64_t messages_begin_ = 0;
  uint64_t messages_end_ = 0;
};

/// The consumer's side.
class InRing {
 public:
  enum class Found { kNothing, kFrame, kDamage };
  void start(const uint8_t* data, uint64_t size) { data_ = data, size_ = size; }

  /// False: more than there is room for.
  bool publish(uint16_t units) {
    ++messages_;
    if (units * kUnit > size_ - (head_ - credited_)) return false;
    head_ += units * kUnit;
    return true;
  }
  /// The next frame; its header is copied, because the peer could change it after the check.
  Found peek(FrameHeader* header, const uint8_t** payload) {
    while (tail_ != head_) {
      const uint64_t place = tail_ & (size_ - 1);
      std::memcpy(header, data_ + place, sizeof *header);
      const uint64_t payload_bytes = bytesBehind(*header);
      const uint64_t there = head_ - tail_ < size_ - place ? head_ - tail_ : size_ - place;
      if (payload_bytes == ~uint64_t{0} || frameBytes(payload_bytes) > there) return Found::kDamage;
      current_ = frameBytes(payload_bytes);
      *payload = data_ + place + sizeof *header;
      if (header->type != kPad) return Found::kFrame;
      advance();
    }
    return Found::kNothing;
  }
  void advance() { tail_ += current_; }
  bool isEmpty() const { return tail_ == head_; }
  /// Enough was read that the peer should hear of it even if nothing else is to be said.
  bool owesCredit() const {
    return tail_ - credited_ >= size_ / 4 || (messages_ >= kMessagesPerCredit && tail_ != credited_);
  }
  uint16_t takeCredit() {
    const uint64_t units = (tail_ - credited_) / kUnit;
    credited_ = tail_;
    messages_ = 0;
    return static_cast<uint16_t>(units);
  }

 private:
  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  uint64_t credited_ = 0;
  uint64_t current_ = 0;
  uint32_t messages_ = 0;  ///< since the last credit
};

}  // namespace jhetcc::transport::verbs
