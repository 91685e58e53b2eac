// SPDX-License-Identifier: Apache-2.0
// Offered payloads: read from the peer's memory, copied within the process, or staged by the peer in pieces.
// One thread per endpoint; within one process the offer's state word keeps reader and owner apart.
#include <sched.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/copy.h"
#include "base/log.h"
#include "transport/shm/endpoint.h"

namespace jhetcc::transport::shm {

namespace {

constexpr uint64_t kSliceBytes = 1 << 20;       // one call reads no more
constexpr uint64_t kCopyNsMax = 1'000'000'000;  // what a peer may say that a copy took
constexpr uint64_t kStagedStreamMax = 2 << 20;
constexpr uint64_t kServeBytesPerPoll = 1 << 20;

/// Whether this error of process_vm_readv is about the right to read, and not about the peer or its memory.
bool isForbidden(int error) { return error == EPERM || error == EACCES || error == ENOSYS; }

}  // namespace

Status ShmEndpoint::refusal() const {
  return Status(Kind::kAborted, Scope::kCall, "offer_revoked",
                parts_.description + ": the peer withdrew the offer before it was fetched");
}

/// The owner's end of an offer: after this nobody of this process reads its memory.
void ShmEndpoint::closeOffer(int slot) {
  OfferSlot& shared = parts_.segment->layout().offers[parts_.side][slot];
  if (parts_.reads == Reads::kLocal) {
    // The peer's thread may be in the middle of a copy, of one slice at most.
    uint32_t expected = kOfferOpen;
    while (!shared.state.compare_exchange_weak(expected, kOfferFree, std::memory_order_acq_rel)) {
      if (expected == kOfferFree) break;
      expected = kOfferOpen;
      sched_yield();
    }
  } else {
    shared.state.exchange(kOfferFree, std::memory_order_acq_rel);
  }
  offers_.erase(slot);
}

void ShmEndpoint::revoke(uint64_t cookie) {
  const int slot = offers_.find(cookie);
  if (slot >= 0) closeOffer(slot);
}

OfferSlot* ShmEndpoint::peerSlot(uint64_t cookie) const {
  OfferSlot* slots = parts_.segment->layout().offers[1 - parts_.side];
  for (uint32_t distance = 0; distance < kOfferSlots; ++distance) {
    OfferSlot& slot = slots[(offerHome(cookie) + distance) % kOfferSlots];
    if (slot.cookie.load(std::memory_order_relaxed) == cookie &&
        slot.state.load(std::memory_order_acquire) != kOfferFree) {
      return &slot;
    }
  }
  return nullptr;
}

Result<bool> ShmEndpoint::fetch(const FrameHeader& offer, void* destination, uint64_t token) {
  if (!broken_.isOk()) return broken_;
  Fetch fetch;
  fetch.id = next_fetch_++;
  fetch.token = token;
  fetch.destination = static_cast<uint8_t*>(destination);
  fetch.length = offer.length;
  fetch.address = offer.address;
  fetch.cookie = offer.cookie;
  // A long stream of payloads comes from memory rather than from caches: then reading it is the cheapest.
  fetch.is_long = (uint64_t{offer.index} + 1) * offer.length > kStagedStreamMax;
  if (parts_.reads != Reads::kLocal && !fetch.is_long) fetch.road = roads_.choose(fetch.length);
  if (parts_.reads == Reads::kThroughRing || fetch.road != Road::kRead) {
    askForStaging(fetch);
    fetches_.push_back(fetch);
    return false;
  }
  switch (pullSlice(fetch)) {
    case Pulled::kPeerGone:
      return gone_;
    case Pulled::kRefused:
      fetch.is_refused = true;
      break;
    case Pulled::kForbidden:
      askForStaging(fetch);
      break;
    case Pulled::kBytes:
      if (fetch.done == fetch.length) {
        noteCost(fetch);
        queueInternal(kReleased, fetch.cookie, 0);
        return true;
      }
  }
  fetches_.push_back(fetch);
  return false;
}

void ShmEndpoint::askForStaging(Fetch& fetch) {
  stage_in_.populate(false);
  fetch.is_staged = true;
  queueInternal(kFetchRequest, fetch.cookie, fetch.id, fetch.road == Road::kStagedPastCaches ? kPastCaches : 0);
}

void ShmEndpoint::noteCost(const Fetch& fetch) {
  if (parts_.reads != Reads::kLocal && !fetch.is_long) roads_.note(fetch.length, fetch.road, fetch.spent_ns);
}

void ShmEndpoint::cancel(uint64_t token) {
  const auto found =
      std::find_if(fetches_.begin(), fetches_.end(), [token](const Fetch& fetch) { return fetch.token == token; });
  if (found == fetches_.end()) return;
  const Fetch fetch = *found;
  fetches_.erase(found);
  // Nothing reads the offer any more. Where it is staged, the peer finishes that and releases it itself.
  if (!fetch.is_staged && !fetch.is_refused) queueInternal(kReleased, fetch.cookie, 0);
}

ShmEndpoint::Pulled ShmEndpoint::pullSlice(Fetch& fetch) {
  const uint64_t bytes = std::min(kSliceBytes, fetch.length - fetch.done);
  if (parts_.reads != Reads::kLocal) return readPeer(fetch, bytes);
  const Pulled pulled = copyLocal(fetch, bytes);
  if (pulled == Pulled::kBytes) fetch.done += bytes;
  return pulled;
}

ShmEndpoint::Pulled ShmEndpoint::copyLocal(Fetch& fetch, uint64_t bytes) {
  OfferSlot* slot = peerSlot(fetch.cookie);
  uint32_t expected = kOfferOpen;
  if (slot == nullptr || !slot->state.compare_exchange_strong(expected, kOfferReading, std::memory_order_acq_rel)) {
    return Pulled::kRefused;
  }
  // Same process: the offered address is a pointer of ours.
  const auto* source = reinterpret_cast<const uint8_t*>(fetch.address);
  if (bytes > 0) std::memcpy(fetch.destination + fetch.done, source + fetch.done, bytes);
  slot->state.store(kOfferOpen, std::memory_order_release);
  return Pulled::kBytes;
}

ShmEndpoint::Pulled ShmEndpoint::readPeer(Fetch& fetch, uint64_t bytes) {
  OfferSlot* slot = peerSlot(fetch.cookie);
  if (slot == nullptr) return Pulled::kRefused;
  const int64_t begin = parts_.clock->nowNs();
  int error = 0;
  for (uint64_t got = 0; got < bytes && error == 0;) {
    iovec local{fetch.destination + fetch.done + got, bytes - got};
    iovec remote{reinterpret_cast<void*>(fetch.address + fetch.done + got), bytes - got};  // NOLINT: the peer's address
    const ssize_t count = process_vm_readv(parts_.peer_pid, &local, 1, &remote, 1, 0);
    if (count > 0) {
      got += static_cast<uint64_t>(count);
    } else if (count == 0 || errno != EINTR) {
      error = count == 0 ? EFAULT : errno;
    }
  }
  // Read-modify-write, so that the reads above are ordered before it: still open now means nothing was reused before.
  const bool is_open = slot->state.fetch_add(0, std::memory_order_acq_rel) == kOfferOpen &&
                       slot->cookie.load(std::memory_order_relaxed) == fetch.cookie;
  if (error == 0 && is_open) {
    fetch.done += bytes;
    fetch.spent_ns += parts_.clock->nowNs() - begin;
    return Pulled::kBytes;
  }
  if (error != ESRCH && !is_open) return Pulled::kRefused;
  if (isForbidden(error)) {
    stopReading(std::string("process_vm_readv: ") + strerror(error));
    return Pulled::kForbidden;
  }
  if (gone_.isOk()) {
    gone_ = Status(Kind::kDisconnected, Scope::kEndpoint, "peer_lost",
                   parts_.description + ": reading " + std::to_string(bytes) + " bytes of process " +
                       std::to_string(parts_.peer_pid) + ": process_vm_readv: " + strerror(error));
  }
  return Pulled::kPeerGone;
}

/// The right to read the peer's memory was lost since the two met (a filter, a change of user, dumping switched off):
/// from here on all payloads are staged, and fetches under way start again so.
void ShmEndpoint::stopReading(const std::string& why) {
  parts_.reads = Reads::kThroughRing;
  parts_.description = describe(parts_.names, parts_.peer_pid, why);
  JHETCC_LOG(kWarn, "transport", parts_.description + ": the right to read its memory was lost; slower, not wrong");
  for (Fetch& fetch : fetches_) {
    if (fetch.is_staged) continue;
    fetch.done = 0;
    // Without this an owner that withdrew offers and made new ones could get more requests than it has offers.
    fetch.is_refused = fetch.is_refused || peerSlot(fetch.cookie) == nullptr;
    if (!fetch.is_refused) askForStaging(fetch);
  }
}

/// One slice of the oldest fetch that is not staged, and every refusal that waits to be told.
void ShmEndpoint::continuePulls(EventSink& sink) {
  for (size_t i = 0; i < fetches_.size();) {
    if (fetches_[i].is_refused) {
      endFetch(i, refusal(), sink);
    } else {
      ++i;
    }
  }
  const auto fetch = std::find_if(fetches_.begin(), fetches_.end(), [](const Fetch& each) { return !each.is_staged; });
  if (fetch == fetches_.end() || !gone_.isOk()) return;
  const auto position = static_cast<size_t>(fetch - fetches_.begin());
  const Pulled pulled = pullSlice(*fetch);
  if (pulled == Pulled::kRefused) {
    endFetch(position, refusal(), sink);
  } else if (pulled == Pulled::kBytes && fetch->done == fetch->length) {
    queueInternal(kReleased, fetch->cookie, 0);
    endFetch(position, Status::ok(), sink);
  }
}

void ShmEndpoint::endFetch(size_t position, Status status, EventSink& sink) {
  const uint64_t token = fetches_[position].token;
  if (status.isOk()) noteCost(fetches_[position]);
  fetches_.erase(fetches_.begin() + static_cast<ptrdiff_t>(position));
  sink.onFetched(token, std::move(status));  // may start or cancel other fetches
}

/// Owner's side: stages pieces of the oldest request as far as there is room.
void ShmEndpoint::serveRequests(EventSink& sink) {
  if (requests_.empty()) return;
  stage_out_.populate(true);
  uint64_t budget = kServeBytesPerPoll;
  while (!requests_.empty() && internal_.empty() && budget > 0) {
    Request& request = requests_.front();
    const int slot = offers_.find(request.cookie);
    if (slot < 0) {
      queueInternal(kFetchRefused, request.fetch, 0);
      requests_.erase(requests_.begin());
      continue;
    }
    const OpenOffer offer = offers_[slot];
    const uint64_t bytes = std::min(kPieceBytes, offer.length - request.sent);
    uint8_t* frame = out_.reserve(0);
    uint8_t* place = frame == nullptr ? nullptr : stage_out_.reserve(bytes);
    if (place == nullptr) return;
    const int64_t begin = parts_.clock->nowNs();
    const auto* source = reinterpret_cast<const uint8_t*>(offer.address);
    if (request.past_caches) {
      copyPastCaches(place, source + request.sent, bytes);
    } else if (bytes > 0) {
      std::memcpy(place, source + request.sent, bytes);
    }
    FrameHeader header;
    header.type = kFetchData;
    header.sequence = static_cast<uint64_t>(parts_.clock->nowNs() - begin);
    header.cookie = request.fetch;
    header.address = request.sent;
    header.length = bytes;
    std::memcpy(frame, &header, sizeof header);
    out_.commit();
    wake(kWakeForFrames);
    request.sent += bytes;
    budget -= std::min(budget, bytes + 1);
    if (request.sent == offer.length) {
      requests_.erase(requests_.begin());
      closeOffer(slot);
      sink.onReleased(offer.cookie);
    }
  }
}

void ShmEndpoint::takeFetchData(const FrameHeader& header, EventSink& sink) {
  const uint8_t* piece = nullptr;
  if (header.type == kFetchData) {
    if (header.length > kPieceBytes) return fail("piece of a payload too long");
    piece = stage_in_.next(header.length);
  }
  const auto found =
      std::find_if(fetches_.begin(), fetches_.end(), [&](const Fetch& fetch) { return fetch.id == header.cookie; });
  if (found == fetches_.end()) {  // cancelled: what still comes is dropped
    if (piece != nullptr) stage_in_.release();
    return;
  }
  const size_t position = static_cast<size_t>(found - fetches_.begin());
  if (header.type == kFetchRefused) {
    endFetch(position, refusal(), sink);
    return;
  }
  if (header.address != found->done || header.length > found->length - found->done) {
    fail("piece of a payload out of place");
    return;
  }
  const int64_t begin = parts_.clock->nowNs();
  if (header.length > 0) std::memcpy(found->destination + found->done, piece, header.length);
  stage_in_.release();
  found->spent_ns += static_cast<int64_t>(std::min(header.sequence, kCopyNsMax)) + parts_.clock->nowNs() - begin;
  found->done += header.length;
  if (found->done == found->length) endFetch(position, Status::ok(), sink);
}

}  // namespace jhetcc::transport::shm
