// SPDX-License-Identifier: Apache-2.0
// The simulated network: when things arrive, and what faults do to them. One thread.
#include "transport/sim/core.h"

#include <algorithm>

namespace jhetcc::transport::sim {

namespace {

Status disconnected(const std::string& why, const char* code = "peer_lost") {
  return Status(Kind::kDisconnected, Scope::kEndpoint, code, why);
}

std::string place(const Side& side) {
  return "sim rank " + std::to_string(side.rank) + " -> rank " + std::to_string(side.peer->rank);
}

}  // namespace

uint64_t Core::random() {  // splitmix64
  uint64_t z = (random_ += 0x9E3779B97F4A7C15ULL);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

bool Core::roll(double probability) {
  return probability > 0 && static_cast<double>(random() >> 11) * 0x1.0p-53 < probability;
}

int64_t Core::delayNs() {
  const int64_t spread = std::max<int64_t>(0, 2 * (options.delay_ns_mean - options.delay_ns_min));
  int64_t delay_ns = options.delay_ns_min + static_cast<int64_t>(random() % static_cast<uint64_t>(spread + 1));
  if (roll(options.late_probability)) delay_ns += options.late_ns;
  return delay_ns;
}

Link* Core::connect(int rank_a, int rank_b) {
  links_.push_back(std::make_unique<Link>());
  Link* link = links_.back().get();
  link->bandwidth_bytes_per_s = options.bandwidth_bytes_per_s;
  const int ranks[2] = {rank_a, rank_b};
  for (int i = 0; i < 2; ++i) {
    Side& side = link->sides[i];
    side.rank = ranks[i];
    side.link = link;
    side.peer = &link->sides[1 - i];
    link->description[i] = "sim rank " + std::to_string(ranks[i]) + " -> rank " + std::to_string(ranks[1 - i]);
    of_rank_[ranks[i]].push_back(&side);
  }
  return link;
}

void Core::push(Event event) {
  event.order = next_order_++;
  events_.push_back(std::move(event));
  std::push_heap(events_.begin(), events_.end());
}

void Core::at(int64_t time_ns, std::function<void()> action) {
  push(Event{std::max(time_ns, clock.nowNs()), 0, nullptr, {}, std::move(action)});
}

void Core::post(Side* to, Item item, uint64_t bytes) {
  const int64_t wire_ns = static_cast<int64_t>(static_cast<double>(bytes) * 1e9 / to->link->bandwidth_bytes_per_s);
  const int64_t start_ns = std::max(clock.nowNs(), to->busy_until_ns);
  to->busy_until_ns = start_ns + wire_ns;
  int64_t arrival_ns = to->busy_until_ns + delayNs();
  if (item.what == Item::What::kFrame) {
    arrival_ns = std::max(arrival_ns, to->last_arrival_ns);
    to->last_arrival_ns = arrival_ns;
  }
  if (to->under_way++ == 0) to->under_way_since_ns = clock.nowNs();
  item.wire_bytes = bytes;
  push(Event{arrival_ns, 0, to, std::move(item), {}});
}

/// Its host has it now, and says so.
void Core::confirm(Side* to, Item& item) {
  if (item.wire_bytes == 0) return;
  to->busy_ns += clock.nowNs() - to->under_way_since_ns;
  to->under_way_since_ns = clock.nowNs();
  to->arrived_bytes += item.wire_bytes;
  --to->under_way;
  item.wire_bytes = 0;
}

std::optional<int64_t> Core::nextEventNs() const {
  if (events_.empty()) return std::nullopt;
  return events_.front().time_ns;
}

bool Core::step() {
  if (events_.empty()) return false;
  std::pop_heap(events_.begin(), events_.end());
  Event event = std::move(events_.back());
  events_.pop_back();
  clock.advanceTo(event.time_ns);
  if (event.to == nullptr) {
    event.action();
  } else {
    arrive(event.to, std::move(event.item));
  }
  return true;
}

void Core::runUntil(int64_t time_ns) {
  while (!events_.empty() && events_.front().time_ns <= time_ns) step();
  clock.advanceTo(time_ns);
}

void Core::arrive(Side* to, Item item) {
  if (to->closed || (to->link->cut && item.what != Item::What::kBroken)) return;
  if (to->is_held && !to->link->cut) {  // even the news of a peer's death does not pass
    to->held.push_back(std::move(item));
    return;
  }
  confirm(to, item);
  mix(static_cast<uint64_t>(clock.nowNs()));
  mix(static_cast<uint64_t>(to->rank) << 32 | static_cast<uint64_t>(item.what));
  mix(item.id ^ item.header.sequence ^ item.bytes.size());
  if (item.what == Item::What::kRequest) {
    if (options.reads_need_peer && isStopped(to->rank)) {
      to->held.push_back(std::move(item));
    } else {
      serve(to, item);
    }
    return;
  }
  to->inbox.push_back(std::move(item));
}

/// A fetch request reached the owner of the offer: its memory is read now, or not any more.
void Core::serve(Side* side, const Item& request) {
  Item answer;
  answer.what = Item::What::kFetched;
  answer.id = request.id;
  answer.cookie = request.cookie;
  const auto offer = std::find_if(side->offers.begin(), side->offers.end(),
                                  [&](const OpenOffer& open) { return open.cookie == request.cookie; });
  if (offer == side->offers.end()) {
    answer.status = Status(Kind::kAborted, Scope::kCall, "offer_revoked",
                           place(*side->peer) + ": the peer withdrew the offer before it was fetched");
  } else {
    answer.bytes.assign(offer->data, offer->data + offer->length);
  }
  const uint64_t bytes = answer.bytes.size() + sizeof(FrameHeader);
  post(side->peer, std::move(answer), bytes);
}

void Core::resume(int rank) {
  stopped_.erase(rank);
  for (Side* side : of_rank_[rank]) {
    if (side->is_held) continue;
    for (Item& item : std::exchange(side->held, {})) push(Event{clock.nowNs(), 0, side, std::move(item), {}});
  }
}

void Core::release(Link* link) {
  for (Side& side : link->sides) {
    side.is_held = false;
    for (Item& item : std::exchange(side.held, {})) push(Event{clock.nowNs(), 0, &side, std::move(item), {}});
    side.last_arrival_ns = std::max(side.last_arrival_ns, clock.nowNs());
  }
}

void Core::breakSide(Side* side, Status why) {
  Item item;
  item.what = Item::What::kBroken;
  item.status = std::move(why);
  const int64_t time_ns = std::max(clock.nowNs() + options.break_notice_ns, side->last_arrival_ns);
  push(Event{time_ns, 0, side, std::move(item), {}});
}

void Core::close(Side* side) {
  if (side->closed) return;
  side->closed = true;
  side->offers.clear();
  side->fetches.clear();
  breakSide(side->peer, disconnected(place(*side->peer) + ": peer process is gone: connection closed", "peer_closed"));
}

void Core::kill(int rank) {
  for (Side* side : of_rank_[rank]) {
    close(side);
    if (side->broken.isOk()) side->broken = disconnected(place(*side) + ": this rank was killed");
  }
}

void Core::cut(Link* link, const std::string& why) {
  if (link->cut) return;
  link->cut = true;
  for (Side& side : link->sides) breakSide(&side, disconnected(place(side) + ": " + why));
}

std::vector<Link*> Core::between(int rank_a, int rank_b, int link) {
  std::vector<Link*> found;
  for (Side* side : of_rank_[rank_a]) {
    if (side->peer->rank == rank_b) found.push_back(side->link);
  }
  if (link != kAllLinks) found = {found.at(static_cast<size_t>(link))};
  return found;
}

}  // namespace jhetcc::transport::sim
