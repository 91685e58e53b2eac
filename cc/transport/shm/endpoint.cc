// SPDX-License-Identifier: Apache-2.0
// Frames through the rings, sleeping and waking, and the peer's end. One thread per endpoint.
#include "transport/shm/endpoint.h"

#include <sched.h>

#include <algorithm>
#include <utility>

namespace jhetcc::transport::shm {

namespace {

constexpr int kFramesPerPoll = 64;
constexpr uint64_t kBytesPerPoll = 256 * 1024;
constexpr uint32_t kPollsPerClock = 64;  // power of two
constexpr int64_t kCheckPeerEveryNs = 200'000;

}  // namespace

ShmEndpoint::ShmEndpoint(Parts parts)
    : parts_(std::move(parts)),
      mine_(parts_.segment->layout().sides[parts_.side]),
      peers_(parts_.segment->layout().sides[1 - parts_.side]),
      out_(parts_.segment->layout().rings[parts_.side], parts_.segment->ring(parts_.side), parts_.segment->ringBytes()),
      in_(parts_.segment->layout().rings[1 - parts_.side], parts_.segment->ring(1 - parts_.side),
          parts_.segment->ringBytes()),
      stage_out_(parts_.segment->layout().stages[parts_.side], parts_.segment->stage(parts_.side)),
      stage_in_(parts_.segment->layout().stages[1 - parts_.side], parts_.segment->stage(1 - parts_.side)) {
  fetches_.reserve(64);
  requests_.reserve(64);
  internal_.reserve(256);
}

ShmEndpoint::~ShmEndpoint() {
  // Within one process, the peer must not copy from memory that the owner frees next.
  for (int slot = 0; slot < static_cast<int>(kOfferSlots); ++slot) {
    if (offers_[slot].is_open) closeOffer(slot);
  }
}

void ShmEndpoint::fail(const std::string& what) {
  broken_ = Status(Kind::kInternal, Scope::kEndpoint, "bad_frame",
                   parts_.description + ": " + what + "; the peer's memory is damaged or it runs another version");
}

Result<bool> ShmEndpoint::send(const FrameHeader& header, const void* payload) {
  if (!broken_.isOk()) return broken_;
  if (has_ended_) {
    return Status(Kind::kDisconnected, Scope::kEndpoint, "peer_closed", parts_.description + ": the peer has closed");
  }
  const bool is_offer = header.type == FrameType::kOffer;
  const uint64_t payload_bytes = is_offer ? 0 : header.length;
  if (payload_bytes > inlineLimit(header.type)) return inlineTooLong(parts_.description, payload_bytes);
  if (is_offer && offers_.isFull()) return false;  // a release wakes us
  const bool is_urgent =
      header.type == FrameType::kControl || header.type == FrameType::kGoodbye || header.type == FrameType::kRelay;
  uint8_t* place = flushInternal() ? out_.reserve(payload_bytes) : nullptr;
  if (place == nullptr) {
    if (out_.isDamaged()) {
      fail("ring index of the peer out of range");
      return broken_;
    }
    room_refused_ = std::max(room_refused_, frameBytes(payload_bytes));
    // A peer that waits for nothing may sleep beside a ring full of what can wait; this cannot.
    if (is_urgent && !std::exchange(has_knocked_, true)) parts_.bell->ring();
    return false;
  }
  if (frameBytes(payload_bytes) >= room_refused_) room_refused_ = 0;
  has_knocked_ = false;
  std::memcpy(place, &header, sizeof header);
  if (payload_bytes > 0) std::memcpy(place + sizeof header, payload, payload_bytes);
  if (is_offer) {
    const uint32_t slot = offers_.insert(header.cookie, header.address, header.length);
    OfferSlot& shared = parts_.segment->layout().offers[parts_.side][slot];
    shared.cookie.store(header.cookie, std::memory_order_relaxed);
    shared.state.store(kOfferOpen, std::memory_order_release);
  }
  out_.commit();
  if (is_urgent) {
    parts_.bell->ring();  // rare, and wanted even by a side that waits for nothing
  } else {
    wake(kWakeForFrames);
  }
  return true;
}

void ShmEndpoint::wake(uint32_t reason) {
  if ((peers_.sleeping.load(std::memory_order_seq_cst) & reason) == 0) return;
  if (peers_.sleeping.exchange(0, std::memory_order_seq_cst) != 0) parts_.bell->ring();
}

void ShmEndpoint::queueInternal(FrameType type, uint64_t cookie, uint64_t address, uint8_t flags) {
  FrameHeader header;
  header.type = type;
  header.flags = flags;
  header.cookie = cookie;
  header.address = address;
  internal_.push_back(header);
  flushInternal();
}

bool ShmEndpoint::flushInternal() {
  if (internal_.empty()) return true;
  const size_t before = internal_sent_;
  while (internal_sent_ < internal_.size()) {
    uint8_t* place = out_.reserve(0);
    if (place == nullptr) break;
    std::memcpy(place, &internal_[internal_sent_], sizeof(FrameHeader));
    out_.commit();
    ++internal_sent_;
  }
  if (internal_sent_ > before) wake(kWakeForFrames);
  if (internal_sent_ < internal_.size()) return false;
  internal_.clear();
  internal_sent_ = 0;
  return true;
}

Status ShmEndpoint::poll(EventSink& sink) {
  if (!broken_.isOk() || has_ended_) return broken_;
  if (const int cpu = sched_getcpu(); cpu != cpu_said_) {
    cpu_said_ = cpu;
    mine_.cpu.store(cpu + 1, std::memory_order_relaxed);
  }
  if (is_asleep_) {
    is_asleep_ = false;
    mine_.sleeping.store(0, std::memory_order_seq_cst);
    checkPeer();
  }
  flushInternal();
  serveRequests(sink);
  const bool was_gone = !gone_.isOk();
  const bool was_empty = in_.isEmpty();
  if (!was_empty) receive(sink);
  continuePulls(sink);
  if (in_.isDamaged() || out_.isDamaged() || stage_out_.isDamaged()) {
    fail("frame or ring index out of range");
  }
  if (!was_empty || !broken_.isOk()) return broken_;
  if (was_gone) {
    if (said_goodbye_) {
      has_ended_ = true;
    } else {
      broken_ = gone_;
    }
    return broken_;
  }
  if (++empty_polls_ % kPollsPerClock == 0 && parts_.clock->nowNs() - checked_ns_ >= kCheckPeerEveryNs) checkPeer();
  return Status::ok();
}

void ShmEndpoint::checkPeer() {
  checked_ns_ = parts_.clock->nowNs();
  if (gone_.isOk()) gone_ = parts_.bell->drain().withContext(parts_.description);
}

void ShmEndpoint::publishRoom() {
  if (in_.publish()) wake(kWakeForRoom);
}

void ShmEndpoint::receive(EventSink& sink) {
  FrameHeader header;
  const uint8_t* payload = nullptr;
  uint64_t bytes = 0;
  for (int i = 0; i < kFramesPerPoll && bytes < kBytesPerPoll && broken_.isOk() && in_.peek(&header, &payload); ++i) {
    bytes += header.type == kFetchData ? header.length : inlineBytes(header);
    handle(header, payload, sink);
    in_.advance();
    if (in_.unpublished() > out_.size() / 8) publishRoom();
  }
  publishRoom();
}

void ShmEndpoint::handle(const FrameHeader& header, const uint8_t* payload, EventSink& sink) {
  if (header.type == kReleased) {
    const int slot = offers_.find(header.cookie);
    if (slot < 0) return;  // revoked meanwhile
    closeOffer(slot);
    sink.onReleased(header.cookie);
  } else if (header.type == kFetchRequest) {
    if (requests_.size() >= kOfferSlots) return fail("more fetch requests than offers");
    requests_.push_back({header.cookie, header.address, 0, (header.flags & kPastCaches) != 0});
  } else if (header.type == kFetchData || header.type == kFetchRefused) {
    takeFetchData(header, sink);
  } else {
    if (header.type == FrameType::kGoodbye) said_goodbye_ = true;
    sink.onFrame(header, payload);
  }
}

/// Free bytes that would let us go on; 0: we do not wait for room.
uint64_t ShmEndpoint::roomWanted() const {
  uint64_t wanted = room_refused_;
  if (!internal_.empty()) wanted = std::max<uint64_t>(wanted, sizeof(FrameHeader));
  if (!requests_.empty()) wanted = std::max<uint64_t>(wanted, sizeof(FrameHeader));
  return wanted;
}

bool ShmEndpoint::prepareSleep(bool in_operation) {
  if (!broken_.isOk() || !gone_.isOk()) return has_ended_;
  const bool pulls = std::any_of(fetches_.begin(), fetches_.end(),
                                 [this](const Fetch& fetch) { return fetch.is_refused || !fetch.is_staged; });
  if (pulls) return false;
  const uint64_t wanted = roomWanted();
  is_asleep_ = true;
  mine_.sleeping.store((in_operation ? kWakeForFrames : 0) | (wanted > 0 ? kWakeForRoom : 0),
                       std::memory_order_seq_cst);
  bool has_work = !in_.isEmpty() || in_.isDamaged();
  if (wanted > 0) {
    out_.refresh();
    const bool has_room = out_.room() >= out_.needs(wanted) && (requests_.empty() || stage_out_.hasRoom());
    if (has_room) room_refused_ = 0;  // told once: its owner may not want it any more
    has_work = has_work || has_room || out_.isDamaged() || stage_out_.isDamaged();
  }
  if (!has_work) return true;
  mine_.sleeping.store(0, std::memory_order_seq_cst);
  is_asleep_ = false;
  return false;
}

}  // namespace jhetcc::transport::shm
