// SPDX-License-Identifier: Apache-2.0
// One end of a simulated link, and the network's public face. One thread.
#include <algorithm>
#include <cstring>

#include "transport/sim/core.h"

namespace jhetcc::transport::sim {

namespace {

constexpr int kItemsPerPoll = 64;
constexpr int64_t kBufferNs = 10 * kNsPerMs;

class SimEndpoint final : public Endpoint {
 public:
  SimEndpoint(std::shared_ptr<Core> core, Side* side) : core_(std::move(core)), side_(side) {
    description_ = side->link->description[side == &side->link->sides[0] ? 0 : 1];
  }
  ~SimEndpoint() override { core_->close(side_); }

  Result<bool> send(const FrameHeader& header, const void* payload) override;
  Result<bool> fetch(const FrameHeader& offer, void* destination, uint64_t token) override;
  void cancel(uint64_t token) override {
    std::erase_if(side_->fetches, [token](const PendingFetch& fetch) { return fetch.token == token; });
  }
  void revoke(uint64_t cookie) override {
    std::erase_if(side_->offers, [cookie](const OpenOffer& offer) { return offer.cookie == cookie; });
  }
  Status poll(EventSink& sink) override;
  int waitDescriptor() const override { return -1; }
  bool prepareSleep(bool) override { return side_->inbox.empty(); }
  bool wantsWrite() const override {  // as a socket whose buffer is full
    return side_->peer->busy_until_ns > core_->clock.nowNs() + kBufferNs;
  }
  bool seesDevices() const override { return core_->options.sees_devices; }
  int64_t unansweredNs(int64_t now_ns) override {
    return side_->peer->under_way == 0 ? 0 : now_ns - side_->peer->under_way_since_ns;
  }
  Answered answered() override {
    const Side& peer = *side_->peer;
    const int64_t now_ns = core_->clock.nowNs();
    return {peer.arrived_bytes, peer.busy_ns + (peer.under_way > 0 ? now_ns - peer.under_way_since_ns : 0)};
  }
  const char* transportName() const override { return "sim"; }
  const std::string& description() const override { return description_; }

 private:
  void deliver(Item item, EventSink& sink);
  void finishFetch(Item item, EventSink& sink);
  void postReleased(uint64_t cookie);

  std::shared_ptr<Core> core_;
  Side* side_;
  std::string description_;
};

Result<bool> SimEndpoint::send(const FrameHeader& header, const void* payload) {
  if (!side_->broken.isOk()) return side_->broken;
  if (core_->isStopped(side_->rank)) return false;
  const bool is_offer = header.type == FrameType::kOffer;
  if (!is_offer && header.length > inlineLimit(header.type)) return inlineTooLong(description_, header.length);
  const uint64_t bytes = sizeof(FrameHeader) + (is_offer ? 0 : header.length);
  Side* peer = side_->peer;
  if (peer->unpolled_bytes + bytes > core_->options.window_bytes) return false;
  if (core_->roll(core_->options.break_probability)) {
    core_->cut(side_->link, "connection reset (injected)");
    return true;  // taken, and lost with the link
  }
  Item item;
  item.what = Item::What::kFrame;
  item.header = header;
  if (is_offer) {
    // The seam gives the address as a number, because it crosses processes.
    side_->offers.push_back({header.cookie, reinterpret_cast<const uint8_t*>(header.address), header.length});
  } else if (header.length > 0) {
    const auto* first = static_cast<const uint8_t*>(payload);
    item.bytes.assign(first, first + header.length);
  }
  peer->unpolled_bytes += bytes;
  core_->post(peer, std::move(item), bytes);
  return true;
}

Result<bool> SimEndpoint::fetch(const FrameHeader& offer, void* destination, uint64_t token) {
  if (!side_->broken.isOk()) return side_->broken;
  Side* peer = side_->peer;
  const bool may_read = !side_->link->cut && !side_->is_held && !peer->is_held && !peer->closed;
  if (may_read && core_->roll(core_->options.instant_fetch_probability)) {
    const auto open = std::find_if(peer->offers.begin(), peer->offers.end(),
                                   [&](const OpenOffer& candidate) { return candidate.cookie == offer.cookie; });
    if (open != peer->offers.end() && open->length == offer.length) {
      if (offer.length > 0) std::memcpy(destination, open->data, offer.length);
      postReleased(offer.cookie);
      return true;
    }
  }
  Item request;
  request.what = Item::What::kRequest;
  request.id = side_->next_fetch++;
  request.cookie = offer.cookie;
  side_->fetches.push_back({request.id, token, destination, offer.length});
  core_->post(peer, std::move(request), sizeof(FrameHeader));
  return false;
}

void SimEndpoint::postReleased(uint64_t cookie) {
  Item item;
  item.what = Item::What::kReleased;
  item.id = cookie;
  core_->post(side_->peer, std::move(item), sizeof(FrameHeader));
}

Status SimEndpoint::poll(EventSink& sink) {
  if (!side_->broken.isOk()) return side_->broken;
  if (core_->isStopped(side_->rank)) return Status::ok();
  for (int i = 0; i < kItemsPerPoll && !side_->inbox.empty() && side_->broken.isOk(); ++i) {
    Item item = std::move(side_->inbox.front());
    side_->inbox.pop_front();
    deliver(std::move(item), sink);
  }
  return side_->broken;
}

void SimEndpoint::deliver(Item item, EventSink& sink) {
  switch (item.what) {
    case Item::What::kFrame:
      side_->unpolled_bytes -= sizeof(FrameHeader) + item.bytes.size();
      if (item.header.type == FrameType::kGoodbye) side_->goodbye = true;
      sink.onFrame(item.header, item.bytes.data());
      return;
    case Item::What::kFetched:
      finishFetch(std::move(item), sink);
      return;
    case Item::What::kReleased: {
      const size_t before = side_->offers.size();
      revoke(item.id);
      if (side_->offers.size() != before) sink.onReleased(item.id);
      return;
    }
    case Item::What::kBroken:
      if (!side_->goodbye) side_->broken = item.status;
      return;
    case Item::What::kRequest:
      return;  // served on arrival, never queued here
  }
}

void SimEndpoint::finishFetch(Item item, EventSink& sink) {
  const auto found = std::find_if(side_->fetches.begin(), side_->fetches.end(),
                                  [&](const PendingFetch& fetch) { return fetch.id == item.id; });
  if (item.status.isOk()) postReleased(item.cookie);
  if (found == side_->fetches.end()) {
    ++core_->late_dropped;
    return;
  }
  const PendingFetch fetch = *found;
  side_->fetches.erase(found);
  if (item.status.isOk() && item.bytes.size() != fetch.length) {
    item.status = Status(Kind::kInternal, Scope::kEndpoint, "bad_frame", description_ + ": offer changed its length");
  }
  if (item.status.isOk() && fetch.length > 0) std::memcpy(fetch.destination, item.bytes.data(), fetch.length);
  sink.onFetched(fetch.token, item.status);
}

}  // namespace

std::unique_ptr<Endpoint> makeEndpoint(std::shared_ptr<Core> core, Side* side) {
  return std::make_unique<SimEndpoint>(std::move(core), side);
}

Network::Network(uint64_t seed, const Options& options) : core_(std::make_shared<Core>(seed, options)) {}
Network::~Network() = default;
SimClock& Network::clock() { return core_->clock; }

std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>> Network::connect(int rank_a, int rank_b) {
  Link* link = core_->connect(rank_a, rank_b);
  return {makeEndpoint(core_, &link->sides[0]), makeEndpoint(core_, &link->sides[1])};
}

std::optional<int64_t> Network::nextEventNs() const { return core_->nextEventNs(); }
bool Network::step() { return core_->step(); }
void Network::runUntil(int64_t time_ns) { core_->runUntil(time_ns); }
void Network::at(int64_t time_ns, std::function<void()> action) { core_->at(time_ns, std::move(action)); }
void Network::stop(int rank) { core_->stop(rank); }
void Network::resume(int rank) { core_->resume(rank); }
void Network::kill(int rank) { core_->kill(rank); }
void Network::cut(int rank_a, int rank_b, int link) {
  for (Link* one : core_->between(rank_a, rank_b, link)) core_->cut(one, "connection reset (cut)");
}
void Network::hold(int rank_a, int rank_b, int link) {
  for (Link* one : core_->between(rank_a, rank_b, link)) core_->hold(one);
}
void Network::holdOneWay(int from, int to, int link) {
  for (Link* one : core_->between(from, to, link)) one->sides[one->sides[0].rank == to ? 0 : 1].is_held = true;
}
void Network::release(int rank_a, int rank_b, int link) {
  for (Link* one : core_->between(rank_a, rank_b, link)) core_->release(one);
}
void Network::setBandwidth(int rank_a, int rank_b, int link, double bytes_per_s) {
  for (Link* one : core_->between(rank_a, rank_b, link)) one->bandwidth_bytes_per_s = bytes_per_s;
}
int Network::links(int rank_a, int rank_b) const { return static_cast<int>(core_->between(rank_a, rank_b).size()); }
uint64_t Network::digest() const { return core_->digest; }
uint64_t Network::lateDropped() const { return core_->late_dropped; }

}  // namespace jhetcc::transport::sim
