// SPDX-License-Identifier: Apache-2.0
// The two ends of a byte ring for frames: 64-byte aligned, contiguous, single producer and single consumer.
// The other end may be hostile: its index and the frames' lengths are checked before anything is touched.
#pragma once

#include <cstring>

#include "transport/shm/segment.h"
#include "transport/transport.h"

namespace jhetcc::transport::shm {

/// Frames of this transport's own.
constexpr FrameType kPad = FrameType{0x80};           ///< skip to the ring's begin
constexpr FrameType kReleased = FrameType{0x81};      ///< cookie: the offer was fetched
constexpr FrameType kFetchRequest = FrameType{0x82};  ///< cookie: the offer; address: number of the fetch
constexpr FrameType kFetchData =
    FrameType{0x83};  ///< cookie: number of the fetch; address: offset; sequence: ns the copy took
constexpr FrameType kFetchRefused = FrameType{0x84};  ///< cookie: number of the fetch

/// Flag of a fetch request: stage past the caches.
constexpr uint8_t kPastCaches = 1;

/// Payload bytes that follow the header in the ring; ~0 for a type that nobody sends.
inline uint64_t inlineBytes(const FrameHeader& header) {
  const FrameType type = header.type;
  if (isInline(type)) return header.length;
  if (type == kPad) return header.length;
  if (type == FrameType::kOffer || (type >= kReleased && type <= kFetchRefused)) return 0;
  return ~uint64_t{0};
}

inline uint64_t frameBytes(uint64_t payload_bytes) {
  return sizeof(FrameHeader) + (payload_bytes + kLine - 1) / kLine * kLine;
}

class Producer {
 public:
  Producer(RingControl& control, uint8_t* data, uint64_t size) : control_(control), data_(data), size_(size) {}

  /// Place for a frame, or null: no room (or the consumer's index is damaged). Nothing is visible before commit().
  uint8_t* reserve(uint64_t payload_bytes) {
    const uint64_t bytes = frameBytes(payload_bytes);
    const uint64_t pad = needs(bytes) - bytes;
    if (room() < pad + bytes) {
      refresh();
      if (room() < pad + bytes) return nullptr;
    }
    if (pad > 0) {
      FrameHeader header;
      header.type = kPad;
      header.length = pad - sizeof(FrameHeader);
      std::memcpy(data_ + (head_ & (size_ - 1)), &header, sizeof header);
    }
    reserved_ = pad + bytes;
    return data_ + ((head_ + pad) & (size_ - 1));
  }
  /// Sequentially consistent against the sleeper's flag: either we see the flag, or it sees the frame.
  void commit() {
    head_ += reserved_;
    control_.head.store(head_, std::memory_order_seq_cst);
  }
  uint64_t room() const { return size_ - (head_ - tail_seen_); }
  /// What a frame of so many bytes takes: where it does not fit before the ring's end, that part is skipped.
  uint64_t needs(uint64_t frame_bytes) const {
    const uint64_t to_end = size_ - (head_ & (size_ - 1));
    return frame_bytes + (to_end < frame_bytes ? to_end : 0);
  }
  void refresh() {
    const uint64_t tail = control_.tail.load(std::memory_order_seq_cst);
    if (tail < tail_seen_ || tail > head_) {
      is_damaged_ = true;
    } else {
      tail_seen_ = tail;
    }
  }
  bool isDamaged() const { return is_damaged_; }
  uint64_t size() const { return size_; }

 private:
  RingControl& control_;
  uint8_t* data_;
  const uint64_t size_;
  uint64_t head_ = 0;
  uint64_t tail_seen_ = 0;
  uint64_t reserved_ = 0;
  bool is_damaged_ = false;
};

class Consumer {
 public:
  Consumer(RingControl& control, const uint8_t* data, uint64_t size) : control_(control), data_(data), size_(size) {}

  /// The next frame, if there is one; its header is copied, because the peer could change it after the check.
  bool peek(FrameHeader* header, const uint8_t** payload) {
    while (!is_damaged_) {
      if (head_seen_ == tail_ && !refresh()) return false;
      const uint64_t position = tail_ & (size_ - 1);
      std::memcpy(header, data_ + position, sizeof *header);
      const uint64_t payload_bytes = inlineBytes(*header);
      const uint64_t limit = header->type == kPad ? size_ : inlineLimit(header->type);
      const uint64_t there = head_seen_ - tail_ < size_ - position ? head_seen_ - tail_ : size_ - position;
      if (payload_bytes > limit || frameBytes(payload_bytes) > there) {
        is_damaged_ = true;
        return false;
      }
      current_ = frameBytes(payload_bytes);
      *payload = data_ + position + sizeof *header;
      if (header->type != kPad) return true;
      advance();
    }
    return false;
  }
  void advance() { tail_ += current_; }
  /// Gives the room back; until then the frames' bytes stay. False: there was nothing to give.
  bool publish() {
    if (published_ == tail_) return false;
    published_ = tail_;
    control_.tail.store(tail_, std::memory_order_seq_cst);
    return true;
  }
  uint64_t unpublished() const { return tail_ - published_; }
  bool isEmpty() { return head_seen_ == tail_ && !refresh(); }
  bool isDamaged() const { return is_damaged_; }

 private:
  bool refresh() {
    const uint64_t head = control_.head.load(std::memory_order_seq_cst);
    if (head < head_seen_ || head - tail_ > size_ - (tail_ - published_) || head % kLine != 0) {
      is_damaged_ = true;
      return false;
    }
    head_seen_ = head;
    return head != tail_;
  }
  RingControl& control_;
  const uint8_t* data_;
  const uint64_t size_;
  uint64_t tail_ = 0;
  uint64_t published_ = 0;
  uint64_t head_seen_ = 0;
  uint64_t current_ = 0;
  bool is_damaged_ = false;
};

}  // namespace jhetcc::transport::shm
