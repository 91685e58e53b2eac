// SPDX-License-Identifier: Apache-2.0
// What goes out: frames and pieces of payloads into the peer's ring, several work requests by one doorbell. One thread.
#include <arpa/inet.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "transport/verbs/endpoint.h"

namespace jhetcc::transport::verbs {
namespace {

constexpr uint64_t kFlushAtBytes = 64 * 1024;
constexpr uint64_t kBytesPerPoll = 1024 * 1024;
constexpr uint64_t kSignalBytes = 2 * kPieceBytes;  // a slow path is seen to go on by each of these
constexpr int kPiecesPerDoorbell = 2;               // copying the next ones and sending these go on side by side
/// Who waits for a peer that says nothing asks for its adapter's answer so often.
constexpr int64_t kSilenceNs = 100 * kNsPerMs;
/// A dead path ends by its retries long before this.
constexpr int64_t kDrainNs = 5'000 * kNsPerMs;

}  // namespace

Result<bool> VerbsEndpoint::send(const FrameHeader& header, const void* payload) {
  if (!broken_.isOk()) return broken_;
  if (has_ended_) {
    return Status(Kind::kDisconnected, Scope::kEndpoint, "peer_closed", description_ + ": the peer has closed");
  }
  const bool is_offer = header.type == FrameType::kOffer;
  const uint64_t payload_bytes = is_offer ? 0 : header.length;
  if (payload_bytes > inlineLimit(header.type)) return inlineTooLong(description_, payload_bytes);
  if (!end_.isOk() || (is_offer && offers_.isFull())) return false;
  const bool is_urgent = header.type == FrameType::kControl || header.type == FrameType::kGoodbye;
  uint8_t* place = nullptr;
  for (int attempt = 0; place == nullptr && attempt < 2; ++attempt) {
    if (attempt > 0) flush();
    if (flushInternal()) place = out_.reserve(payload_bytes, is_urgent ? 0 : kReserveBytes);
  }
  is_refused_ = place == nullptr;
  if (is_refused_) return false;
  if (is_offer) offers_.insert(header.cookie, header.address, header.length);
  std::memcpy(place, &header, sizeof header);
  if (payload_bytes > 0) std::memcpy(place + sizeof header, payload, payload_bytes);
  // A rail's frame may wrap one for which a sleeper has to be woken.
  if (is_urgent || header.type == FrameType::kRail || header.type == FrameType::kRelay) solicited_ = out_.unposted();
  if (is_urgent || out_.unposted() >= kFlushAtBytes) flush();
  return true;
}

void VerbsEndpoint::queueInternal(FrameType type, uint64_t cookie, uint64_t address) {
  FrameHeader header;
  header.type = type;
  header.cookie = cookie;
  header.address = address;
  internal_.push_back(header);
  flushInternal();
}

bool VerbsEndpoint::flushInternal() {
  size_t moved = 0;
  for (; moved < internal_.size(); ++moved) {
    uint8_t* place = out_.reserve(0, 0);
    if (place == nullptr) break;
    std::memcpy(place, &internal_[moved], sizeof(FrameHeader));
  }
  internal_.erase(internal_.begin(), internal_.begin() + static_cast<ptrdiff_t>(moved));
  return internal_.empty();
}

bool VerbsEndpoint::wantsWrite() const {
  return broken_.isOk() && !has_ended_ && end_.isOk() &&
         (phase_ != Phase::kOpen || out_.unposted() > 0 || !internal_.empty() || !requests_.empty() ||
          done_wr_ != staged_wr_);
}

/// The peer and the queue take so many more messages.
bool VerbsEndpoint::mayStage(uint32_t count) const {
  return phase_ == Phase::kOpen && end_.isOk() && out_.mayPost(count) && staged_wr_ - done_wr_ + count <= kSendsMax;
}

/// The next work request, with `bytes` published and what was read meanwhile; its place and memory are the caller's.
abi::SendWr* VerbsEndpoint::stage(uint64_t bytes, uint32_t what) {
  if (chained_ == kChain) ringDoorbell();
  abi::SendWr& wr = chain_[chained_];
  wr = {};
  wr.id = ++staged_wr_;
  wr.sges = sges_[chained_];
  wr.opcode = what;
  if (what == abi::kWriteWithImmediate) {
    const Immediate told{static_cast<uint16_t>(bytes / kUnit), in_.takeCredit()};
    wr.immediate = htonl(told.word());
  }
  wr.rkey = link_->remoteKey();
  staged_bytes_ += bytes;
  unsignaled_bytes_ += bytes;
  if (unsignaled_bytes_ >= kSignalBytes) signal(wr);
  ++chained_;
  return &wr;
}

/// An empty write, of which the peer's process sees nothing: its adapter answers, or the path is dead.
void VerbsEndpoint::probeIfSilent() {
  const int64_t now = clock_.nowNs();
  if (phase_ != Phase::kOpen || !end_.isOk() || done_wr_ != staged_wr_ || now - heard_ns_ < kSilenceNs) return;
  abi::SendWr& wr = *stage(0, abi::kWrite);
  wr.remote_address = link_->remoteRing();
  ringDoorbell();
}

/// Its completion will tell of all up to it.
void VerbsEndpoint::signal(abi::SendWr& wr) {
  wr.flags |= abi::kSignaled;
  unsignaled_bytes_ = 0;
  const int64_t now = clock_.nowNs();
  if (postings_.empty()) busy_since_ns_ = now;
  postings_.push_back({wr.id, now, staged_bytes_});
}

/// All that is unposted, up to the ring's end or as much as one completion should tell of.
void VerbsEndpoint::stageRange() {
  OutRing::Range range = out_.next();
  range.bytes = std::min(range.bytes, kSignalBytes);
  abi::SendWr& wr = *stage(range.bytes);
  wr.remote_address = link_->remoteRing() + range.begin;
  wr.sges[0] = {reinterpret_cast<uint64_t>(link_->out()) + range.begin, static_cast<uint32_t>(range.bytes),
                link_->outKey()};
  wr.sge_count = 1;
  if (range.bytes <= link_->inlineBytes()) wr.flags |= abi::kInline;
  if (solicited_ > 0) {
    wr.flags |= range.bytes >= solicited_ ? abi::kSolicited : 0;
    solicited_ -= std::min(solicited_, range.bytes);
  }
  out_.posted(range.bytes);
}

/// One piece whose header alone lies in the copy of the ring; nothing else is unposted.
void VerbsEndpoint::stageGathered(const uint8_t* payload, uint64_t length, const abi::Mr& mr) {
  const OutRing::Range range = out_.next();
  const uint64_t copy = reinterpret_cast<uint64_t>(link_->out()) + range.begin;
  const uint64_t behind = range.bytes - sizeof(FrameHeader) - length;
  abi::SendWr& wr = *stage(range.bytes);
  wr.remote_address = link_->remoteRing() + range.begin;
  wr.sges[0] = {copy, sizeof(FrameHeader), link_->outKey()};
  wr.sges[1] = {reinterpret_cast<uint64_t>(payload), static_cast<uint32_t>(length), mr.lkey};
  wr.sges[2] = {copy + sizeof(FrameHeader) + length, static_cast<uint32_t>(behind), link_->outKey()};
  wr.sge_count = behind > 0 ? 3 : 2;
  out_.posted(range.bytes);
}

void VerbsEndpoint::stageCredit() {
  abi::SendWr& wr = *stage(0);
  wr.remote_address = link_->remoteRing();
}

/// Hands over what is staged; nothing stays unsignaled behind it.
void VerbsEndpoint::ringDoorbell() {
  if (chained_ == 0) return;
  for (int k = 0; k + 1 < chained_; ++k) chain_[k].next = &chain_[k + 1];
  if (!(chain_[chained_ - 1].flags & abi::kSignaled)) signal(chain_[chained_ - 1]);
  const int error = link_->postSend(chain_);
  chained_ = 0;
  if (error != 0) endWith(lost(std::string("ibv_post_send: ") + strerror(error)));
}

/// Posts what is in the ring, as far as the peer and the queue take it.
void VerbsEndpoint::flush() {
  flushInternal();
  stageRanges();
  if (in_.owesCredit() && end_.isOk() && staged_wr_ - done_wr_ < kSendsMax) stageCredit();
  ringDoorbell();
}

/// False: something is left.
bool VerbsEndpoint::stageRanges() {
  while (out_.unposted() > 0 && mayStage(1)) stageRange();
  return out_.unposted() == 0;
}

/// Pieces of what was asked for, by turns.
void VerbsEndpoint::serve() {
  uint64_t budget = kBytesPerPoll;
  size_t idle = 0;
  while (idle < requests_.size() && budget > 0 && internal_.empty()) {
    turn_ = turn_ < requests_.size() ? turn_ : 0;
    Request& request = requests_[turn_];
    const OpenOffer& offer = offers_[offers_.find(request.cookie)];
    if (request.isWhole(offer.length)) {
      ++idle;
      ++turn_;
      continue;
    }
    const uint64_t before = request.sent;
    if (!servePiece(request, offer)) break;
    budget -= std::min(budget, request.sent - before + 1);
    idle = 0;
    ++turn_;
  }
  flush();
}

/// False: there is no room now.
bool VerbsEndpoint::servePiece(Request& request, const OpenOffer& offer) {
  if (request.mr == nullptr && !request.is_copied) openMemory(request, offer);
  // What is unposted goes in front of this piece, which takes two messages where it has to begin at the ring's begin.
  if (!stageRanges() || !mayStage(2)) return false;
  const uint64_t length = std::min(kPieceBytes, offer.length - request.sent);
  uint8_t* place = out_.reserve(length, kReserveBytes);
  if (place == nullptr) return false;
  FrameHeader header;
  header.type = kFetchData;
  header.cookie = request.fetch;
  header.address = request.sent;
  header.length = length;
  header.flags = request.sent + length == offer.length ? 1 : 0;
  std::memcpy(place, &header, sizeof header);
  // The offered address is this process's own; it is a number only because it travelled.
  const auto* source = reinterpret_cast<const uint8_t*>(offer.address) + request.sent;
  if (out_.unposted() > frameBytes(length)) stageRange();
  if (request.mr != nullptr) {
    stageGathered(source, length, *request.mr);
  } else {
    if (length > 0) std::memcpy(place + sizeof header, source, length);
    stageRange();
  }
  request.sent += length;
  request.last_wr = staged_wr_;
  if (chained_ >= kPiecesPerDoorbell) ringDoorbell();
  return true;
}

/// Registers a long payload for as long as it is sent.
void VerbsEndpoint::openMemory(Request& request, const OpenOffer& offer) {
  if (offer.length >= options_.registered_from_bytes && offer.length > 0) {
    request.mr = memory_.acquire(offer.address, offer.length);
    if (request.mr == nullptr && isLogged(LogLevel::kInfo, "verbs")) {
      logLine(LogLevel::kInfo, "verbs",
              description_ + ": offered memory is copied, for it cannot be registered: " + strerror(errno));
    }
  }
  request.is_copied = request.mr == nullptr;
}

/// Offers that the peer took, and of which the adapter reads nothing any more: an answer to a write may come later.
void VerbsEndpoint::releaseWhole() {
  for (size_t k = 0; k < requests_.size();) {
    const int slot = offers_.find(requests_[k].cookie);
    if (!requests_[k].is_taken || requests_[k].last_wr > done_wr_) {
      ++k;
      continue;
    }
    released_.push_back(requests_[k].cookie);
    offers_.erase(slot);
    endRequest(k);
  }
}

void VerbsEndpoint::endRequest(size_t place) {
  if (requests_[place].mr != nullptr) memory_.release(requests_[place].mr);
  requests_.erase(requests_.begin() + static_cast<ptrdiff_t>(place));
}

/// Until the adapter has read all of these work requests: they completed, or the queue pair ended.
void VerbsEndpoint::drain(uint64_t wr) {
  ringDoorbell();
  const int64_t end_ns = clock_.nowNs() + kDrainNs;
  while (done_wr_ < wr) {
    reap();
    if (clock_.nowNs() > end_ns) {
      endWith(lost("work requests did not come back in " + std::to_string(kDrainNs / kNsPerMs) + " ms"));
      link_->destroyQp();
      done_wr_ = staged_wr_;
    } else if (done_wr_ < wr) {
      sched_yield();
    }
  }
}

void VerbsEndpoint::revoke(uint64_t cookie) {
  std::erase(released_, cookie);
  const int slot = offers_.find(cookie);
  if (slot < 0) return;
  for (size_t k = 0; k < requests_.size(); ++k) {
    if (requests_[k].cookie != cookie) continue;
    const Request request = requests_[k];
    if (request.mr != nullptr) drain(request.last_wr);
    const bool is_whole = request.isWhole(offers_[slot].length);
    endRequest(k);
    if (!is_whole) queueInternal(kFetchRefused, request.fetch, 0);
    break;
  }
  offers_.erase(slot);
}

}  // namespace jhetcc::transport::verbs
