// SPDX-License-Identifier: Apache-2.0
// What goes out: messages over the primary, stripes over all paths. One thread.
#include "rail/bundle.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "rail/wire.h"

namespace jhetcc::rail {

using transport::FrameHeader;
using transport::FrameType;

namespace {

constexpr size_t kKeptMax = 256;
constexpr uint64_t kKeptBytesMax = 1024 * 1024;
// Told the peer at the latest; far below what it may keep.
constexpr uint64_t kAcknowledgeEach = kKeptMax / 4;
constexpr uint64_t kAcknowledgeBytes = kKeptBytesMax / 4;
constexpr size_t kOffersMax = 1024;
constexpr uint64_t kUnaskedBytesMax = 4 * 1024 * 1024;
constexpr uint64_t kStripeBytesMin = 32 * 1024;
constexpr uint64_t kStripeBytesUnmeasured = 128 * 1024;
constexpr double kStripeSeconds = 0.002;  ///< a stripe takes about this long on a path
constexpr uint64_t kUnderWayMax = 16 * 1024 * 1024;
constexpr double kUnmeasuredRate = 1e9;
constexpr double kStaleNs = 1e9;
constexpr double kTrialTimes = 20;  ///< what a trial may take, at the least, before the next: so they cost a twentieth

}  // namespace

Bundle::Bundle(std::string description, const Clock& clock, const BundleOptions& options)
    : description_("rail " + std::move(description)), clock_(clock), options_(options) {}

Bundle::~Bundle() = default;

uint64_t Bundle::Offered::bytesOf(uint32_t index) const {
  return std::min<uint64_t>(stripe_bytes, length - uint64_t{index} * stripe_bytes);
}

Result<bool> Bundle::send(const FrameHeader& header, const void* payload) {
  if (!broken_.isOk()) return broken_;
  const bool is_offer = header.type == FrameType::kOffer;
  const uint64_t payload_bytes = is_offer ? 0 : header.length;
  if (payload_bytes > transport::kInlineBytesMax) return transport::inlineTooLong(description_, payload_bytes);
  if (kept_.size() >= kKeptMax || kept_bytes_ >= kKeptBytesMax) return false;
  FrameHeader outer, inner = header;
  if (is_offer) {
    if (offered_.size() >= kOffersMax) return false;
    Offered offer;
    offer.cookie = header.cookie;
    offer.address = header.address;
    offer.length = header.length;
    offer.stripe_bytes = stripeBytes();
    offer.count = offer.left =
        static_cast<uint32_t>(std::max<uint64_t>(1, (offer.length + offer.stripe_bytes - 1) / offer.stripe_bytes));
    outer.address = next_offer_++;
    outer.tag = offer.stripe_bytes;
    inner.address = 0;  // means nothing to the peer
    pending_.push_back(outer.address);
    pending_bytes_ += offer.length;
    offered_.emplace(outer.address, std::move(offer));
  }
  if (header.type == FrameType::kGoodbye) {
    // The transports' own words of what came may be lost with their paths, and nobody will be here to be asked.
    for (const auto& path : paths_) {
      if (path->isOpen()) report(*path, path->status.generation, kWhole);
    }
  }
  if (header.type == FrameType::kGoodbye) goodbye_order_ = next_order_;
  keep(kMessage, outer, &inner, sizeof inner, payload, payload_bytes);
  if (is_offer) dispatch();
  if (!broken_.isOk()) return broken_;
  return true;
}

void Bundle::keep(uint8_t what, const FrameHeader& outer, const void* first, size_t first_bytes, const void* second,
                  size_t second_bytes) {
  Kept message;
  if (!spare_.empty()) {
    message = std::move(spare_.back());
    spare_.pop_back();
  }
  message.header = outer;
  message.header.type = FrameType::kRail;
  message.header.flags = what;
  message.header.sequence = next_order_++;
  message.header.length = first_bytes + second_bytes;
  message.was_sent = false;
  message.bytes.resize(first_bytes + second_bytes);
  if (first_bytes > 0) std::memcpy(message.bytes.data(), first, first_bytes);
  if (second_bytes > 0) std::memcpy(message.bytes.data() + first_bytes, second, second_bytes);
  kept_bytes_ += message.bytes.size();
  kept_.push_back(std::move(message));
  transmit();
}

/// Everything kept that did not go over the primary yet.
void Bundle::transmit() {
  while (sent_ < kept_.size() && primary_ && !primary_->is_full) {
    Kept& message = kept_[sent_];
    message.header.cookie = expected_order_ - 1;
    Path& path = *primary_;
    const Result<bool> taken = path.endpoint->send(message.header, message.bytes.data());
    if (!taken.isOk()) {
      lose(path, taken.status());  // and begins anew over another
      continue;
    }
    if (!taken.value()) {
      path.is_full = true;
      return;
    }
    acknowledged_ = expected_order_ - 1;
    unacknowledged_bytes_ = 0;
    if (message.was_sent) path.status.resent_bytes += message.bytes.size();
    message.was_sent = is_answer_due_ = true;
    ++sent_;
  }
}

/// Tells the peer what has come, where no message of ours did.
void Bundle::acknowledge() {
  const uint64_t come = expected_order_ - 1;
  if (come - acknowledged_ < kAcknowledgeEach && unacknowledged_bytes_ < kAcknowledgeBytes) return;
  if (!primary_ || !sendPlain(*primary_, kAcknowledge, 0)) return;
  acknowledged_ = come;
  unacknowledged_bytes_ = 0;
}

void Bundle::onAcknowledged(uint64_t order) {
  while (!kept_.empty() && kept_.front().header.sequence <= order) {
    kept_bytes_ -= kept_.front().bytes.size();
    if (spare_.size() < kKeptMax) spare_.push_back(std::move(kept_.front()));
    kept_.pop_front();
    if (sent_ > 0) --sent_;
  }
}

uint32_t Bundle::stripeBytes() const {
  double rate = 0;
  int measured = 0;
  for (const auto& path : paths_) {
    if (!path->endpoint || path->rate() <= 0) continue;
    rate += path->rate();
    ++measured;
  }
  const uint64_t most = std::max(options_.stripe_bytes_max, kStripeBytesMin);
  if (measured == 0) return static_cast<uint32_t>(std::min(kStripeBytesUnmeasured, most));
  const auto wanted = static_cast<uint64_t>(rate / measured * kStripeSeconds);
  return static_cast<uint32_t>(std::clamp(wanted / 4096 * 4096, kStripeBytesMin, most));
}

/// Gives stripes to paths as long as there are both: first of what the peer waits for. What it does not want yet may be
/// sent ahead, but so little that it never stands in the way.
void Bundle::dispatch() {
  if (dispatchFrom(wanted_, true)) dispatchFrom(pending_, false);
}

/// True: all that may be sent is.
bool Bundle::dispatchFrom(std::deque<uint64_t>& numbers, bool is_wanted) {
  while (!numbers.empty() && broken_.isOk()) {
    const uint64_t number = numbers.front();
    const auto found = offered_.find(number);
    if (found == offered_.end() || !found->second.hasPending() || found->second.is_wanted != is_wanted) {
      numbers.pop_front();
      continue;
    }
    Offered& offer = found->second;
    const uint64_t bytes = offer.bytesOf(offer.again.empty() ? offer.next : offer.again.back());
    if (!is_wanted && unasked_bytes_ + bytes > kUnaskedBytesMax) return false;
    Path* path = pathFor(bytes, is_wanted ? kStripesPerPath : kStripesPerPath / 2);
    if (!path) return false;
    sendStripe(*path, number, offer);
  }
  return true;
}

/// The peer has a place for it.
void Bundle::onWanted(uint64_t number) {
  const auto found = offered_.find(number);
  if (found == offered_.end() || found->second.is_wanted) return;
  found->second.is_wanted = true;
  unasked_bytes_ -= std::exchange(found->second.unasked, 0);
  if (found->second.hasPending()) wanted_.push_back(number);
}

/// The path on which a stripe ends first, if it has room now. One on which it ends later serves, too, as long as all
/// that waits would not be through before: so slow paths carry their share, and nobody waits for them in the end. Where
/// the better one takes nothing for a while, any will do.
Path* Bundle::pathFor(uint64_t bytes, size_t stripes_max) {
  double known = 0, fastest = 0, ahead = static_cast<double>(pending_bytes_), all_rates = 0, first_end = 1e300;
  int known_count = 0;
  const auto mayCarry = [this](const Path& path) {
    return path.endpoint && !path.is_opening &&
           (primary_ == &path || (path.status.state == PathState::kHealthy && primary_ != nullptr &&
                                  path.status.info.tier == primary_->status.info.tier));
  };
  for (const auto& path : paths_) {
    if (!mayCarry(*path) || path->rate() <= 0) continue;
    known += path->rate();
    fastest = std::max(fastest, path->rate());
    ++known_count;
  }
  const double usual = known_count > 0 ? known / known_count : kUnmeasuredRate;
  // A path that was slow and of which nothing was heard for long may have got better: it is tried before the others.
  const auto rateOf = [=, this](const Path& path) {
    const bool is_slow = path.rate() > 0 && path.rate() < fastest / 2;
    const double trial_ns = is_slow ? 1e9 * static_cast<double>(bytes) / path.rate() : 0;
    const auto unheard_ns = static_cast<double>(looked_ns_ - path.measured_ns);
    if (is_slow && path.under_way.empty() && unheard_ns > std::max(kStaleNs, kTrialTimes * trial_ns)) {
      return 1.01 * fastest;
    }
    return path.rate() > 0 ? path.rate() : usual;
  };
  const auto endOf = [&](const Path& path) { return static_cast<double>(path.under_way_bytes + bytes) / rateOf(path); };
  for (const auto& path : paths_) {
    if (!mayCarry(*path)) continue;
    ahead += static_cast<double>(path->under_way_bytes);
    all_rates += rateOf(*path);
    first_end = std::min(first_end, endOf(*path));
  }
  Path* best = nullptr;
  for (const auto& path : paths_) {
    if (!mayCarry(*path) || path->is_full || path->is_behind || path->given >= kStripesPerPoll) continue;
    if (path->under_way.size() >= stripes_max || path->under_way_bytes > kUnderWayMax) continue;
    if (rateOf(*path) * kCrawlTimes < fastest) continue;
    if (!is_stuck_ && endOf(*path) > std::max(first_end, ahead / all_rates)) continue;
    if (!best || endOf(*path) < endOf(*best)) best = path.get();
  }
  return best;
}

bool Bundle::sendStripe(Path& path, uint64_t number, Offered& offer) {
  const bool is_again = !offer.again.empty();
  const uint32_t index = is_again ? offer.again.back() : offer.next;
  const uint64_t bytes = offer.bytesOf(index);
  FrameHeader header;
  header.type = FrameType::kOffer;
  header.communicator = number;
  header.index = index;
  header.address = offer.address + uint64_t{index} * offer.stripe_bytes;
  header.length = bytes;
  header.cookie = next_stripe_;
  const Result<bool> taken = path.endpoint->send(header, nullptr);
  if (!taken.isOk()) {
    lose(path, taken.status());
    return false;
  }
  if (!taken.value()) {
    path.is_full = true;
    return false;
  }
  if (is_again) {
    offer.again.pop_back();
    path.status.resent_bytes += bytes;
    if (resend_watcher_) resend_watcher_(path.status, bytes);
  } else {
    ++offer.next;
  }
  path.under_way.push_back({next_stripe_++, number, bytes, index});
  path.under_way_bytes += bytes;
  ++path.given;
  has_dispatched_ = true;
  is_stuck_ = false;
  is_answer_due_ = true;
  pending_bytes_ -= bytes;
  if (!offer.is_wanted) {
    offer.unasked += bytes;
    unasked_bytes_ += bytes;
  }
  return true;
}

void Bundle::onStripeReleased(Path& path, uint64_t number) {
  const auto found = std::find_if(path.under_way.begin(), path.under_way.end(),
                                  [number](const Stripe& stripe) { return stripe.number == number; });
  if (found == path.under_way.end()) return;
  const Stripe stripe = *found;
  path.under_way.erase(found);
  path.under_way_bytes -= stripe.bytes;
  path.status.sent_bytes += stripe.bytes;
  countUnasked(stripe);
  countTaken(stripe.offer);
}

/// It is not under way any more.
void Bundle::countUnasked(const Stripe& stripe) {
  const auto found = offered_.find(stripe.offer);
  if (found == offered_.end() || found->second.is_wanted) return;
  found->second.unasked -= stripe.bytes;
  unasked_bytes_ -= stripe.bytes;
}

void Bundle::countTaken(uint64_t number) {
  const auto found = offered_.find(number);
  if (found == offered_.end() || --found->second.left > 0) return;
  released_.push_back(found->second.cookie);
  offered_.erase(found);
}

void Bundle::revoke(uint64_t cookie) {
  std::erase(released_, cookie);
  const auto found =
      std::find_if(offered_.begin(), offered_.end(), [cookie](const auto& one) { return one.second.cookie == cookie; });
  if (found == offered_.end()) return;
  const uint64_t number = found->first;
  const Offered& offer = found->second;
  unasked_bytes_ -= offer.unasked;
  for (uint32_t index : offer.again) pending_bytes_ -= offer.bytesOf(index);
  for (uint32_t index = offer.next; index < offer.count; ++index) pending_bytes_ -= offer.bytesOf(index);
  for (auto& path : paths_) {
    std::erase_if(path->under_way, [&](const Stripe& stripe) {
      if (stripe.offer != number) return false;
      path->endpoint->revoke(stripe.number);
      path->under_way_bytes -= stripe.bytes;
      return true;
    });
  }
  for (InDoubt& lost : in_doubt_) {
    std::erase_if(lost.stripes, [number](const Stripe& stripe) { return stripe.offer == number; });
  }
  offered_.erase(found);
  FrameHeader outer;
  outer.address = number;
  if (broken_.isOk()) keep(kWithdrawn, outer, nullptr, 0, nullptr, 0);
}

}  // namespace jhetcc::rail
