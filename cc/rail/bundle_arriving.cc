// SPDX-License-Identifier: Apache-2.0
// What comes in: messages in their order, stripes into their places. One thread. Nothing that a peer says is trusted: a
// frame that cannot be costs it the path.
#include <algorithm>
#include <cstring>

#include "rail/bundle.h"
#include "rail/wire.h"

namespace jhetcc::rail {

using transport::FrameHeader;
using transport::FrameType;

namespace {

/// Stripes may come so many offers before their own.
constexpr uint64_t kOvertakenMax = 4096;
constexpr uint64_t kStripesMax = uint64_t{1} << 31;

uint64_t bytesOf(uint64_t length, uint64_t stripe_bytes, uint64_t index) {
  return std::min(stripe_bytes, length - index * stripe_bytes);
}

}  // namespace

void Bundle::badFrame(Path& path, const std::string& what) {
  lose(path,
       Status(Kind::kInternal, Scope::kEndpoint, "bad_frame", what + "; the peer is damaged or runs another version"));
}

void Bundle::onPathFrame(Path& path, const FrameHeader& header, const void* payload) {
  if (header.type == FrameType::kOffer) {
    if (header.cookie <= path.last_stripe) return badFrame(path, "a stripe out of order");
    path.last_stripe = header.cookie;
    return onStripe(path, header);
  }
  if (header.type != FrameType::kRail) return badFrame(path, "a frame that belongs to no rail");
  if (header.cookie >= next_order_) return badFrame(path, "messages acknowledged that were not sent");
  onAcknowledged(header.cookie);
  switch (header.flags) {
    case kMessage:
    case kWithdrawn:
    case kWanted:
    case kLost:
    case kWhole:
      onNumbered(path, header, static_cast<const uint8_t*>(payload));
      if (peer_said_goodbye_ && path.endpoint) sendPlain(path, kAcknowledge, 0);  // it waits for that
      return;
    case kAcknowledge:
      return;
    case kOpen:
      return onOpen(path, header.index);
    case kProbe:
      sendPlain(path, kProbeAnswer, 0);  // no room now: the next one will be answered
      return;
    case kProbeAnswer:
      ++path.probes_answered;
      return;
    default:
      badFrame(path, "a rail's frame of kind " + std::to_string(header.flags));
  }
}

void Bundle::onNumbered(Path& path, const FrameHeader& outer, const uint8_t* payload) {
  if (outer.sequence < expected_order_) return;  // it came over another path before
  if (outer.sequence > expected_order_) return badFrame(path, "a message is missing");
  FrameHeader inner;
  if (outer.flags == kMessage) {
    if (outer.length < sizeof inner) return badFrame(path, "a message without a header");
    std::memcpy(&inner, payload, sizeof inner);
    const bool is_offer = inner.type == FrameType::kOffer;
    const bool is_whole = is_offer || (transport::isInline(inner.type) && inner.type != FrameType::kRail &&
                                       inner.length <= transport::kInlineBytesMax);
    if (!is_whole || outer.length != sizeof inner + (is_offer ? 0 : inner.length)) {
      return badFrame(path, "a message of another length than it says");
    }
    if (is_offer && !onOffer(path, outer, inner)) return;
  } else if ((outer.flags == kLost || outer.flags == kWhole) && outer.length % sizeof(uint64_t) != 0) {
    return badFrame(path, "a torn list of stripes");
  }
  ++expected_order_;
  unacknowledged_bytes_ += outer.length;
  if (outer.flags == kWithdrawn) return onWithdrawn(outer.address);
  if (outer.flags == kWanted) return onWanted(outer.address);
  if (outer.flags == kLost || outer.flags == kWhole) {
    std::vector<uint64_t> taken(outer.length / sizeof(uint64_t));
    if (!taken.empty()) std::memcpy(taken.data(), payload, outer.length);
    const auto number = static_cast<uint16_t>(outer.tag);
    return outer.flags == kLost ? onLostThere(number, outer.index, taken) : onWholeThere(number, outer.index, taken);
  }
  if (inner.type == FrameType::kGoodbye) peer_said_goodbye_ = true;
  sink_->onFrame(inner, payload + sizeof inner);
}

/// An offer comes before all it needs is known to fit. False: it cannot be.
bool Bundle::onOffer(Path& path, const FrameHeader& outer, FrameHeader& inner) {
  const uint64_t count =
      outer.tag == 0 ? kStripesMax : std::max<uint64_t>(1, inner.length / outer.tag + (inner.length % outer.tag != 0));
  if (outer.address != last_offer_ + 1 || count >= kStripesMax) {
    badFrame(path, "an offer that cannot be");
    return false;
  }
  last_offer_ = outer.address;
  inner.address = outer.address;  // so that fetch() knows it
  Arriving& arriving = arriving_[outer.address];
  arriving.length = inner.length;
  arriving.stripe_bytes = outer.tag;
  arriving.left = static_cast<uint32_t>(count);
  arriving.taken.assign(count, false);
  const std::vector<Arriving::Waiting> early = std::exchange(arriving.waiting, {});
  for (const Arriving::Waiting& one : early) {
    if (one.path->endpoint) onStripe(*one.path, one.header);
  }
  return true;
}

void Bundle::onStripe(Path& path, const FrameHeader& header) {
  const uint64_t number = header.communicator;
  auto found = arriving_.find(number);
  if (found == arriving_.end()) {
    if (number <= last_offer_) return;  // whole or withdrawn: its sender takes it back
    if (number - last_offer_ > kOvertakenMax) return badFrame(path, "a stripe of an offer far ahead");
    found = arriving_.emplace(number, Arriving{}).first;
  }
  Arriving& arriving = found->second;
  if (arriving.is_cancelled) return;
  if (arriving.stripe_bytes == 0) {
    arriving.waiting.push_back({&path, header});
    return;
  }
  if (header.index >= arriving.taken.size() ||
      header.length != bytesOf(arriving.length, arriving.stripe_bytes, header.index)) {
    return badFrame(path, "a stripe that cannot be");
  }
  if (arriving.taken[header.index]) return onStripeAgain(arriving, path, header);
  if (!arriving.is_fetched) {
    arriving.taken[header.index] = true;
    arriving.waiting.push_back({&path, header});
    return;
  }
  startStripe(arriving, path, header);
  finishIfWhole(number);
}

/// Whoever sends a stripe again has left the path that it came by first, which may not be known here yet.
void Bundle::onStripeAgain(Arriving& arriving, Path& path, const FrameHeader& header) {
  for (const auto& other : paths_) {
    uint64_t first = 0;
    for (const Stripe& stripe : other->fetching) {
      if (stripe.offer == header.communicator && stripe.index == header.index) first = stripe.number;
    }
    for (const Arriving::Waiting& one : arriving.waiting) {
      if (one.path == other.get() && one.header.index == header.index) first = one.header.cookie;
    }
    if (first == 0) continue;
    if (other.get() == &path) return badFrame(path, "a stripe that came twice");
    if (first > header.cookie) return;  // that is the later one, and this path the one that was left
    lose(*other, Status(Kind::kDisconnected, Scope::kEndpoint, "lost_there", "the peer lost it"));
    if (path.endpoint) onStripe(path, header);
    return;
  }
  // Whole: the word of what came over the lost path says so, and its sender takes it back.
}

void Bundle::startStripe(Arriving& arriving, Path& path, const FrameHeader& header) {
  arriving.taken[header.index] = true;
  uint8_t* place = arriving.destination + uint64_t{header.index} * arriving.stripe_bytes;
  const Result<bool> done = path.endpoint->fetch(header, place, header.cookie);
  if (done.isOk() && done.value()) return onStripeTaken(path, arriving, header.cookie, header.length);
  path.fetching.push_back({header.cookie, header.communicator, header.length, header.index});
  if (!done.isOk()) lose(path, done.status());
}

void Bundle::onStripeTaken(Path& path, Arriving& arriving, uint64_t stripe, uint64_t bytes) {
  path.taken.push_back(stripe);
  if (path.taken.size() > kTakenRemembered) path.taken.pop_front();
  path.status.received_bytes += bytes;
  --arriving.left;
}

void Bundle::onStripeFetched(Path& path, uint64_t token, const Status& status) {
  const auto found = std::find_if(path.fetching.begin(), path.fetching.end(),
                                  [token](const Stripe& stripe) { return stripe.number == token; });
  if (found == path.fetching.end()) return;
  const Stripe stripe = *found;
  path.fetching.erase(found);
  const auto arriving = arriving_.find(stripe.offer);
  if (arriving == arriving_.end()) return;
  if (!status.isOk()) {  // withdrawn: a message says so of the whole offer
    arriving->second.taken[stripe.index] = false;
    return;
  }
  onStripeTaken(path, arriving->second, stripe.number, stripe.bytes);
  finishIfWhole(stripe.offer);
}

void Bundle::finishIfWhole(uint64_t number) {
  const auto found = arriving_.find(number);
  if (found == arriving_.end() || found->second.left > 0) return;
  fetched_.emplace_back(found->second.token, Status());
  arriving_.erase(found);
}

Result<bool> Bundle::fetch(const FrameHeader& offer, void* destination, uint64_t token) {
  if (!broken_.isOk()) return broken_;
  const uint64_t number = offer.address;
  const auto found = arriving_.find(number);
  if (found == arriving_.end()) {
    fetched_.emplace_back(token, Status(Kind::kAborted, Scope::kCall, "offer_revoked",
                                        description_ + ": the peer withdrew the offer before it was fetched"));
    return false;
  }
  Arriving& arriving = found->second;
  arriving.is_fetched = true;
  arriving.destination = static_cast<uint8_t*>(destination);
  arriving.token = token;
  const std::vector<Arriving::Waiting> waiting = std::exchange(arriving.waiting, {});
  for (const Arriving::Waiting& one : waiting) {
    if (one.path->endpoint) {
      startStripe(arriving, *one.path, one.header);
    } else {
      arriving.taken[one.header.index] = false;  // lost just now, by a stripe before
    }
  }
  if (arriving.left == 0) {
    arriving_.erase(found);
    return true;
  }
  FrameHeader outer;
  outer.address = number;
  keep(kWanted, outer, nullptr, 0, nullptr, 0);
  return false;
}

void Bundle::cancel(uint64_t token) {
  const auto found = std::find_if(arriving_.begin(), arriving_.end(), [token](const auto& one) {
    return one.second.is_fetched && !one.second.is_cancelled && one.second.token == token;
  });
  if (found == arriving_.end()) {
    std::erase_if(fetched_, [token](const auto& one) { return one.first == token; });
    return;
  }
  for (auto& path : paths_) {
    std::erase_if(path->fetching, [&](const Stripe& stripe) {
      if (stripe.offer != found->first) return false;
      path->endpoint->cancel(stripe.number);
      return true;
    });
  }
  found->second.is_cancelled = true;  // what still comes of it waits for its sender to take it back
}

void Bundle::onWithdrawn(uint64_t number) {
  const auto found = arriving_.find(number);
  if (found == arriving_.end()) return;  // whole already
  Arriving& arriving = found->second;
  for (auto& path : paths_) {
    std::erase_if(path->fetching, [&](const Stripe& stripe) {
      if (stripe.offer != number) return false;
      path->endpoint->cancel(stripe.number);
      return true;
    });
  }
  if (arriving.is_fetched && !arriving.is_cancelled) {
    fetched_.emplace_back(arriving.token, Status(Kind::kAborted, Scope::kCall, "offer_revoked",
                                                 description_ + ": the peer withdrew the offer before it was fetched"));
  }
  arriving_.erase(found);
}

}  // namespace jhetcc::rail
