// SPDX-License-Identifier: Apache-2.0
// Which paths there are: losses, what the two sides tell each other of them, returns, the primary. One thread.
#include <sys/epoll.h>

#include <algorithm>

#include "rail/bundle.h"
#include "rail/wire.h"

namespace jhetcc::rail {

using transport::FrameHeader;

namespace {

/// A path that stays this long is no flapping one.
constexpr int64_t kStableNs = 10'000 * kNsPerMs;
constexpr int64_t kCloseTogetherNs = 1'000 * kNsPerMs;

}  // namespace

void Bundle::addPath(const PathInfo& info, std::unique_ptr<transport::Endpoint> endpoint, const Status& why) {
  paths_.push_back(std::make_unique<Path>());
  Path& path = *paths_.back();
  path.status.info = info;
  path.settle_ns = options_.settle_ns;
  path.healthy_since_ns = clock_.nowNs() - kStableNs;
  path.endpoint = std::move(endpoint);
  path.was_up = path.endpoint != nullptr;
  if (path.endpoint) {
    path.status.state = PathState::kHealthy;
    path.measured_from = path.endpoint->answered();
  } else if (!why.isOk()) {
    tell(path, "never came up: " + why.message());
  }
  choosePrimary();
}

Path* Bundle::find(uint16_t path) const {
  for (auto& one : paths_) {
    if (one->status.info.path == path) return one.get();
  }
  return nullptr;
}

/// The way by a third rank is a path from the first time on that it is tried.
Path* Bundle::findOrRelay(uint16_t path) {
  if (path == kRelayPath && !find(path)) addPath({kRelayPath, kRelayTier, "relay", ""}, nullptr);
  return find(path);
}

void Bundle::tell(Path& path, const std::string& event) {
  path.status.last_event = event;
  path.status.last_event_ns = clock_.nowNs();
  if (watcher_) watcher_(path.status);
}

/// The best path: of the lowest tier that has a healthy one, else one that has yet to show that it stays.
void Bundle::choosePrimary() {
  Path* best = primary_ && primary_->endpoint ? primary_ : nullptr;
  const auto rank = [](const Path& path) {
    const int standing = !path.unreachable.isOk() ? 2 : path.status.state == PathState::kHealthy ? 0 : 1;
    return std::pair(standing, path.status.info.tier);
  };
  for (const auto& path : paths_) {
    if (path->endpoint && !path->is_opening && (!best || rank(*path) < rank(*best))) best = path.get();
  }
  if (best == primary_) return;
  primary_ = best;
  sent_ = 0;  // from the first that the peer may not have
}

void Bundle::failPath(uint16_t number, const Status& why) {
  Path* path = find(number);
  if (!path || !broken_.isOk()) return;
  const bool is_refused = why.code() == "refused";
  if (path->endpoint) {
    if (is_refused) return;
    if (path->is_opening || hasOtherThan(*path)) return lose(*path, why);
    if (!path->unreachable.isOk()) return;
    path->unreachable = why;
    path->said_ns = clock_.nowNs();
    next_look_ns_ = 0;
    choosePrimary();
    return;
  }
  // What the system says of this end's NIC tells more than the word of a peer who saw it first.
  if (why.code() == "nic_lost" && path->lost_for.code() == "lost_there") path->lost_for = why;
  const std::string first = path->lost_for.message();
  path->status.last_event = first.empty() ? "" : "lost: " + first;
  if (first != why.message()) path->status.last_event += (first.empty() ? "" : "; ") + ("still lost: " + why.message());
  const auto isThere = [](const auto& one) { return one->endpoint != nullptr; };
  if (is_refused && std::none_of(paths_.begin(), paths_.end(), isThere)) giveUp(why);
}

void Bundle::restorePath(uint16_t number) {
  Path* path = find(number);
  if (!path || path->unreachable.isOk()) return;
  path->unreachable = Status();
  path->said_ns = clock_.nowNs();
  choosePrimary();
}

/// Whether there is one that may be answered.
bool Bundle::hasOtherThan(const Path& path) const {
  return std::any_of(paths_.begin(), paths_.end(), [&](const auto& one) {
    return one.get() != &path && one->isOpen() && one->unreachable.isOk() && one->silent_ns < options_.stall_ns;
  });
}

/// There is a better one now.
void Bundle::leaveUnreachable() {
  for (const auto& path : paths_) {
    if (path->endpoint && !path->unreachable.isOk()) lose(*path, Status(path->unreachable));
  }
}

/// From here on nothing comes over it; what its own poll brings after that is not heard, which is well where it is
/// broken or the peer has left it. What was under way goes again at once; the peer is told over another path which of
/// its own stripes are whole here.
void Bundle::lose(Path& path, const Status& why) {
  if (!path.endpoint) return;
  const int64_t now = clock_.nowNs();
  if (path.endpoint.get() == polled_) {
    gone_ = std::move(path.endpoint);
  } else {
    path.endpoint.reset();
  }
  const bool was_stable = path.status.state == PathState::kHealthy && now - path.healthy_since_ns >= kStableNs;
  path.settle_ns = was_stable ? options_.settle_ns : std::min(2 * path.settle_ns, options_.settle_max_ns);
  path.status.state = PathState::kLost;
  path.unreachable = Status();
  path.silent_ns = 0;
  path.crawled_ns = 0;
  ++path.status.losses;
  path.closed_ns = why.code() == "peer_closed" ? now : INT64_MIN / 2;
  if (!path.under_way.empty()) {
    for (const Stripe& stripe : path.under_way) sendAgain(stripe);
    in_doubt_.push_back({path.status.info.path, path.status.generation, std::move(path.under_way)});
  }
  path.under_way.clear();
  path.under_way_bytes = 0;
  forget(path);
  const bool may_report = !path.is_opening;  // else its generation is not known here; the peer will ask
  path.is_opening = false;
  choosePrimary();
  path.lost_for = why;
  path.status.is_ending = goodbye_order_ != 0;
  if (!peer_said_goodbye_) tell(path, "lost: " + why.message());
  if (may_report) report(path, path.status.generation, kLost);
  path.taken.clear();
  if (std::any_of(paths_.begin(), paths_.end(), [](const auto& one) { return one->endpoint != nullptr; })) return;
  if (no_path_since_ns_ < 0) no_path_since_ns_ = now;
  // A process that ends closes all of them; one that lives leaves them one by one, for reasons of their own.
  const auto closed_now = [now](const auto& one) {
    return now - one->closed_ns < kCloseTogetherNs || !one->was_up || one->status.info.tier == kRelayTier;
  };
  if (std::all_of(paths_.begin(), paths_.end(), closed_now)) giveUp(why);
}

/// Stripes that were to come over it will come over another.
void Bundle::forget(Path& path) {
  for (const Stripe& stripe : path.fetching) {
    const auto arriving = arriving_.find(stripe.offer);
    if (arriving != arriving_.end()) arriving->second.taken[stripe.index] = false;
  }
  path.fetching.clear();
  for (auto& [number, arriving] : arriving_) {
    std::erase_if(arriving.waiting, [&, &arriving = arriving](const Arriving::Waiting& one) {
      if (one.path != &path) return false;
      if (arriving.stripe_bytes > 0) arriving.taken[one.header.index] = false;
      return true;
    });
  }
}

void Bundle::report(Path& path, uint32_t generation, uint8_t what) {
  if (what == kLost) path.reported = generation;
  FrameHeader outer;
  outer.tag = path.status.info.path;
  outer.index = generation;
  const std::vector<uint64_t> taken(path.taken.begin(), path.taken.end());
  keep(what, outer, taken.data(), taken.size() * sizeof(uint64_t), nullptr, 0);
}

/// The peer has lost it, and says which stripes it had.
void Bundle::onLostThere(uint16_t number, uint32_t generation, const std::vector<uint64_t>& taken) {
  Path* path = findOrRelay(number);
  if (!path) return;
  if (path->endpoint && !path->is_opening && path->status.generation <= generation) {
    lose(*path, Status(Kind::kDisconnected, Scope::kEndpoint, "lost_there", "the peer lost it"));
  }
  if (path->reported < static_cast<int64_t>(generation)) {  // one that did not even come up here
    path->status.generation = std::max(path->status.generation, generation);
    report(*path, generation, kLost);
  }
  resolve(number, generation, taken);
}

/// The peer leaves, and says which stripes it had.
void Bundle::onWholeThere(uint16_t number, uint32_t generation, const std::vector<uint64_t>& taken) {
  const auto isTaken = [&taken](uint64_t stripe) {
    return std::find(taken.begin(), taken.end(), stripe) != taken.end();
  };
  Path* path = find(number);
  if (path && path->isOpen() && path->status.generation == generation) {
    for (const Stripe& stripe : std::vector<Stripe>(path->under_way)) {
      if (!isTaken(stripe.number)) continue;
      path->endpoint->revoke(stripe.number);
      onStripeReleased(*path, stripe.number);
    }
  }
  for (InDoubt& lost : in_doubt_) {
    if (lost.path != number || lost.generation != generation) continue;
    std::erase_if(lost.stripes, [&](const Stripe& stripe) {
      if (!isTaken(stripe.number)) return false;
      onTakenBefore(stripe);
      return true;
    });
  }
}

/// What was under way on a path until it was lost need not go again where the peer has it. Earlier generations of which
/// the peer said nothing never came up there.
void Bundle::resolve(uint16_t number, uint32_t generation, const std::vector<uint64_t>& taken) {
  for (size_t k = 0; k < in_doubt_.size();) {
    if (in_doubt_[k].path != number || in_doubt_[k].generation > generation) {
      ++k;
      continue;
    }
    const InDoubt lost = std::move(in_doubt_[k]);
    in_doubt_.erase(in_doubt_.begin() + static_cast<std::ptrdiff_t>(k));
    for (const Stripe& stripe : lost.stripes) {
      if (std::find(taken.begin(), taken.end(), stripe.number) != taken.end()) onTakenBefore(stripe);
    }
  }
}

void Bundle::sendAgain(const Stripe& stripe) {
  Offered& offer = offered_.at(stripe.offer);
  if (!offer.hasPending()) (offer.is_wanted ? wanted_ : pending_).push_front(stripe.offer);
  offer.again.push_back(stripe.index);
  pending_bytes_ += stripe.bytes;
  countUnasked(stripe);
}

/// The peer has it from the path that was lost: it does not go again, or is taken back if it did.
void Bundle::onTakenBefore(const Stripe& lost) {
  const auto found = offered_.find(lost.offer);
  if (found == offered_.end()) return;
  if (std::erase(found->second.again, lost.index) > 0) {
    pending_bytes_ -= lost.bytes;
    return countTaken(lost.offer);
  }
  for (const auto& path : paths_) {
    const auto again = std::find_if(path->under_way.begin(), path->under_way.end(), [&lost](const Stripe& stripe) {
      return stripe.offer == lost.offer && stripe.index == lost.index;
    });
    if (again == path->under_way.end()) continue;
    path->endpoint->revoke(again->number);
    path->under_way.erase(again);
    path->under_way_bytes -= lost.bytes;
    countUnasked(lost);
    return countTaken(lost.offer);
  }
}

void Bundle::giveUp(const Status& why) {
  std::string text = description_ + ": no path is left: ";
  for (const auto& path : paths_) {
    text += (path == paths_.front() ? "" : "; ") + nameOf(path->status.info) + " ";
    if (!path->unreachable.isOk()) {
      text += path->unreachable.message();
    } else if (path->endpoint) {
      text += "no answer for " + std::to_string(path->silent_ns / kNsPerMs) + " ms";
    } else {
      text += path->status.last_event;
    }
  }
  broken_ = Status(Kind::kDisconnected, Scope::kEndpoint, why.code(), text);
}

bool Bundle::hasDirectPath() const {
  return std::any_of(paths_.begin(), paths_.end(), [this](const auto& path) {
    return path->isOpen() && path->status.info.tier < kRelayTier && path->unreachable.isOk() &&
           path->silent_ns < 2 * options_.stall_ns;
  });
}

bool Bundle::needsRelay() const {
  if (!broken_.isOk() || peer_said_goodbye_) return false;
  const Path* relay = find(kRelayPath);
  return !(relay && relay->endpoint) && !hasDirectPath();
}

void Bundle::reopenPath(uint16_t number, std::unique_ptr<transport::Endpoint> endpoint, bool connected_here,
                        const std::string& remote) {
  Path* path = findOrRelay(number);
  if (!path || !broken_.isOk()) return;
  if (path->endpoint)
    lose(*path, Status(Kind::kDisconnected, Scope::kEndpoint, "lost_there", "the peer connected it anew"));
  path->endpoint = std::move(endpoint);
  path->was_up = true;
  if (!remote.empty()) path->status.info.remote = remote;
  path->wants_write = path->is_full = false;
  path->answers_before = path->probes_answered = 0;
  path->last_stripe = 0;
  path->is_opening = !connected_here;
  watchDescriptor(*path);
  if (connected_here) {
    path->status.generation = static_cast<uint32_t>(std::max<int64_t>(path->status.generation, path->reported)) + 1;
    openHere(*path);
    if (path->endpoint) sendPlain(*path, kOpen, path->status.generation);
  }
  transmit();
}

void Bundle::openHere(Path& path) {
  const int64_t now = clock_.nowNs();
  path.status.state = PathState::kSettling;
  path.opened_ns = path.next_probe_ns = now;
  path.probes_answered = 0;
  path.measured_from = path.endpoint->answered();
  no_path_since_ns_ = -1;
  next_look_ns_ = 0;
  choosePrimary();
}

void Bundle::onOpen(Path& path, uint32_t generation) {
  if (!path.is_opening || generation <= path.status.generation) return badFrame(path, "opened twice");
  path.is_opening = false;
  path.status.generation = generation;
  openHere(path);
  transmit();
}

}  // namespace jhetcc::rail
