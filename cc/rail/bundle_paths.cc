// SPDX-License-Identifier: Apache-2.0
// Which paths there are: losses, returns, stalls, the primary; and polling and sleeping over all of them. One thread.
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>

#include "rail/bundle.h"
#include "rail/wire.h"

namespace jhetcc::rail {

using transport::FrameHeader;
using transport::FrameType;

namespace {

constexpr int64_t kLookNs = 10 * kNsPerMs;
constexpr int64_t kProbeNs = 20 * kNsPerMs;
constexpr uint32_t kProbesNeeded = 3;
constexpr int64_t kMeasureNs = 5 * kNsPerMs;  ///< of busy time: shorter ones say little
constexpr uint64_t kMeasureBytes = 16 * 1024;
constexpr int64_t kMeasureLongNs = 200 * kNsPerMs;
constexpr double kNewest = 0.3;               ///< weight of the newest measurement
/// A path that stays this long is no flapping one.
constexpr int64_t kStableNs = 10'000 * kNsPerMs;
constexpr int64_t kCloseTogetherNs = 1'000 * kNsPerMs;
/// Messages leave a path on which they wait this long, and this many times as long as elsewhere.
constexpr double kSlowSeconds = 0.02, kSlowTimes = 4;

std::string milliseconds(int64_t ns) { return std::to_string(ns / kNsPerMs) + " ms"; }

}  // namespace

void Path::measure() {
  if (!endpoint || is_opening) return;
  const transport::Answered now = endpoint->answered();
  const int64_t busy_ns = now.busy_ns - measured_from.busy_ns;
  const uint64_t bytes = now.bytes - measured_from.bytes;
  // Few bytes in a short time are probes and small messages: they say how long a round trip takes.
  if (busy_ns < kMeasureNs || (bytes < kMeasureBytes && busy_ns < kMeasureLongNs)) return;
  const double rate = static_cast<double>(bytes) * 1e9 / static_cast<double>(busy_ns);
  status.rate_bytes_per_s += status.rate_bytes_per_s > 0 ? kNewest * (rate - status.rate_bytes_per_s) : rate;
  measured_from = now;
}

/// What a path's endpoint reports reaches the bundle with the path.
class Bundle::PathSink final : public transport::EventSink {
 public:
  PathSink(Bundle& bundle, Path& path) : bundle_(bundle), path_(path) {}
  // A path that was lost by an earlier event of the same poll says no more.
  void onFrame(const FrameHeader& header, const void* payload) override {
    if (path_.endpoint) bundle_.onPathFrame(path_, header, payload);
  }
  void onFetched(uint64_t token, Status status) override {
    if (path_.endpoint) bundle_.onStripeFetched(path_, token, status);
  }
  void onReleased(uint64_t cookie) override {
    if (path_.endpoint) bundle_.onStripeReleased(path_, cookie);
  }

 private:
  Bundle& bundle_;
  Path& path_;
};

void Bundle::addPath(const PathInfo& info, std::unique_ptr<transport::Endpoint> endpoint, const Status& why) {
  paths_.push_back(std::make_unique<Path>());
  Path& path = *paths_.back();
  path.status.info = info;
  path.settle_ns = options_.settle_ns;
  path.healthy_since_ns = clock_.nowNs() - kStableNs;
  path.endpoint = std::move(endpoint);
  if (path.endpoint) {
    path.status.state = PathState::kHealthy;
    path.measured_from = path.endpoint->answered();
  } else {
    tell(path, "never came up: " + why.message());
  }
  choosePrimary();
}

Path* Bundle::find(uint16_t path) {
  for (auto& one : paths_) {
    if (one->status.info.path == path) return one.get();
  }
  return nullptr;
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
    return std::pair(path.status.state == PathState::kHealthy ? 0 : 1, path.status.info.tier);
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
    if (!is_refused) lose(*path, why);
    return;
  }
  path->status.last_event = "still lost: " + why.message();
  if (is_refused && no_path_since_ns_ >= 0) giveUp(why);
}

/// From here on nothing comes over it. The peer is told over another which stripes are whole here.
void Bundle::lose(Path& path, const Status& why) {
  if (!path.endpoint) return;
  const int64_t now = clock_.nowNs();
  gone_.push_back(std::move(path.endpoint));
  if (!sink_) gone_.clear();
  const bool was_stable = path.status.state == PathState::kHealthy && now - path.healthy_since_ns >= kStableNs;
  path.settle_ns = was_stable ? options_.settle_ns : std::min(2 * path.settle_ns, options_.settle_max_ns);
  path.status.state = PathState::kLost;
  ++path.status.losses;
  path.closed_ns = why.code() == "peer_closed" ? now : INT64_MIN / 2;
  if (!path.under_way.empty()) {
    in_doubt_.push_back({path.status.info.path, path.status.generation, std::move(path.under_way)});
  }
  path.under_way.clear();
  path.under_way_bytes = 0;
  forget(path);
  const bool may_report = !path.is_opening;  // else its generation is not known here; the peer will ask
  path.is_opening = false;
  choosePrimary();
  if (!peer_said_goodbye_) tell(path, "lost: " + why.message());
  if (may_report) report(path, path.status.generation);
  path.taken.clear();
  if (std::any_of(paths_.begin(), paths_.end(), [](const auto& one) { return one->endpoint != nullptr; })) return;
  no_path_since_ns_ = now;
  // A process that ends closes all of them; one that lives leaves them one by one, for reasons of their own.
  const auto closed_now = [now](const auto& one) { return now - one->closed_ns < kCloseTogetherNs; };
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

void Bundle::report(Path& path, uint32_t generation) {
  path.reported = generation;
  FrameHeader outer;
  outer.tag = path.status.info.path;
  outer.index = generation;
  const std::vector<uint64_t> taken(path.taken.begin(), path.taken.end());
  keep(kLost, outer, taken.data(), taken.size() * sizeof(uint64_t), nullptr, 0);
}

/// The peer has lost it, and says which stripes it had.
void Bundle::onLostThere(uint16_t number, uint32_t generation, const std::vector<uint64_t>& taken) {
  Path* path = find(number);
  if (!path) return;
  if (path->endpoint && !path->is_opening && path->status.generation <= generation) {
    lose(*path, Status(Kind::kDisconnected, Scope::kEndpoint, "lost_there", "the peer lost it"));
  }
  if (path->reported < static_cast<int64_t>(generation)) {  // one that did not even come up here
    path->status.generation = std::max(path->status.generation, generation);
    report(*path, generation);
  }
  resolve(number, generation, taken);
}

/// What was under way on a path until it was lost is taken, or will be sent again. Earlier generations of which the
/// peer said nothing never came up there.
void Bundle::resolve(uint16_t number, uint32_t generation, const std::vector<uint64_t>& taken) {
  for (size_t k = 0; k < in_doubt_.size();) {
    if (in_doubt_[k].path != number || in_doubt_[k].generation > generation) {
      ++k;
      continue;
    }
    const InDoubt lost = std::move(in_doubt_[k]);
    in_doubt_.erase(in_doubt_.begin() + static_cast<std::ptrdiff_t>(k));
    for (const Stripe& stripe : lost.stripes) {
      if (std::find(taken.begin(), taken.end(), stripe.number) != taken.end()) {
        countTaken(stripe.offer);
      } else {
        sendAgain(stripe);
      }
    }
  }
}

void Bundle::sendAgain(const Stripe& stripe) {
  Offered& offer = offered_.at(stripe.offer);
  if (!offer.hasPending()) pending_.push_front(stripe.offer);
  offer.again.push_back(stripe.index);
  pending_bytes_ += stripe.bytes;
}

void Bundle::giveUp(const Status& why) {
  std::string text = description_ + ": no path is left: ";
  for (const auto& path : paths_) {
    text += (path == paths_.front() ? "path " : "; path ") + std::to_string(path->status.info.path) + " " +
            path->status.last_event;
  }
  broken_ = Status(Kind::kDisconnected, Scope::kEndpoint, why.code(), text);
}

void Bundle::reopenPath(uint16_t number, std::unique_ptr<transport::Endpoint> endpoint, bool connected_here) {
  Path* path = find(number);
  if (!path || !broken_.isOk()) return;
  if (path->endpoint)
    lose(*path, Status(Kind::kDisconnected, Scope::kEndpoint, "lost_there", "the peer connected it anew"));
  path->endpoint = std::move(endpoint);
  path->wants_write = path->is_full = false;
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

bool Bundle::sendPlain(Path& path, uint8_t what, uint32_t index) {
  FrameHeader header;
  header.type = FrameType::kRail;
  header.flags = what;
  header.index = index;
  header.cookie = expected_order_ - 1;
  const Result<bool> taken = path.endpoint->send(header, nullptr);
  if (!taken.isOk()) lose(path, taken.status());
  return taken.isOk() && taken.value();
}

void Bundle::probe(Path& path, int64_t now_ns) {
  if (now_ns < path.next_probe_ns) return;
  path.next_probe_ns = now_ns + kProbeNs;
  sendPlain(path, kProbe, 0);
}

void Bundle::settle(Path& path, int64_t now_ns) {
  probe(path, now_ns);
  if (!path.endpoint || now_ns - path.opened_ns < path.settle_ns || path.probes_answered < kProbesNeeded) return;
  path.status.state = PathState::kHealthy;
  path.healthy_since_ns = now_ns;
  tell(path, "back after " + milliseconds(now_ns - path.opened_ns) + " of probes");
  choosePrimary();
}

/// A path whose peer's host does not answer is left, as long as that host answers on another one.
void Bundle::lookForStall(int64_t now_ns) {
  Path* worst = nullptr;
  int64_t longest = options_.stall_ns / 2 - 1;
  bool answers_elsewhere = false;
  for (const auto& path : paths_) {
    if (!path->endpoint || path->is_opening) continue;
    const int64_t silent_ns = path->endpoint->unansweredNs(now_ns);
    if (silent_ns < options_.stall_ns / 2 && path->status.state == PathState::kHealthy) answers_elsewhere = true;
    if (silent_ns <= longest) continue;
    longest = silent_ns;
    worst = path.get();
  }
  if (!worst) return;
  if (longest >= options_.stall_ns && answers_elsewhere) {
    lose(*worst, Status(Kind::kTimeout, Scope::kEndpoint, "path_silent", "no answer for " + milliseconds(longest)));
    return;
  }
  for (const auto& path : paths_) {  // an idle one has to show that it would be better
    if (path->endpoint && !path->is_opening && path.get() != worst) probe(*path, now_ns);
  }
}

void Bundle::look(int64_t now_ns) {
  next_look_ns_ = now_ns + kLookNs;
  for (const auto& path : paths_) path->measure();
  lookForStall(now_ns);
  for (const auto& path : paths_) {
    if (path->endpoint && path->status.state == PathState::kSettling) settle(*path, now_ns);
  }
  if (no_path_since_ns_ >= 0 && now_ns - no_path_since_ns_ >= options_.no_path_ns && broken_.isOk()) {
    giveUp(Status(Kind::kTimeout, Scope::kEndpoint, "no_path", "none came back"));
  }
  // Messages move to a path on which they wait much less.
  if (!primary_ || primary_->rate() <= 0) return;
  const auto wait = [](const Path& path) { return static_cast<double>(path.under_way_bytes) / path.rate(); };
  const double here = wait(*primary_);
  if (here < kSlowSeconds) return;
  for (const auto& path : paths_) {
    const bool may = path->endpoint && path->status.state == PathState::kHealthy && path->rate() > 0 &&
                     path->status.info.tier == primary_->status.info.tier;
    if (!may || wait(*path) * kSlowTimes > here) continue;
    primary_ = path.get();
    sent_ = 0;
    return;
  }
}

Status Bundle::poll(transport::EventSink& sink) {
  if (!broken_.isOk()) return peer_said_goodbye_ ? Status::ok() : broken_;
  sink_ = &sink;
  for (size_t i = 0; i < paths_.size(); ++i) {
    Path& path = *paths_[i];
    if (!path.endpoint) continue;
    path.is_full = false;
    PathSink path_sink(*this, path);
    transport::Endpoint* endpoint = path.endpoint.get();
    const Status status = endpoint->poll(path_sink);
    if (!status.isOk() && path.endpoint.get() == endpoint) lose(path, status);
  }
  const int64_t now = clock_.nowNs();
  if (now >= next_look_ns_) look(now);
  transmit();
  dispatch();
  acknowledge();
  while (!released_.empty()) {
    const uint64_t cookie = released_.front();
    released_.pop_front();
    sink.onReleased(cookie);
  }
  while (!fetched_.empty()) {
    auto [token, status] = std::move(fetched_.front());
    fetched_.pop_front();
    sink.onFetched(token, std::move(status));
  }
  sink_ = nullptr;
  gone_.clear();
  return peer_said_goodbye_ ? Status::ok() : broken_;
}

bool Bundle::wantsWrite() const {
  if (!broken_.isOk()) return false;
  if (primary_ && sent_ < kept_.size()) return true;
  return std::any_of(paths_.begin(), paths_.end(),
                     [](const auto& path) { return path->endpoint && path->endpoint->wantsWrite(); });
}

bool Bundle::seesDevices() const {
  return std::all_of(paths_.begin(), paths_.end(),
                     [](const auto& path) { return !path->endpoint || path->endpoint->seesDevices(); });
}

std::vector<PathStatus> Bundle::paths() const {
  std::vector<PathStatus> statuses;
  for (const auto& path : paths_) statuses.push_back(path->status);
  return statuses;
}

void Bundle::watchDescriptor(Path& path) {
  if (!poller_.isOpen() || !path.endpoint || path.endpoint->waitDescriptor() < 0) return;
  epoll_event event{};
  event.events = EPOLLIN;
  ::epoll_ctl(poller_.get(), EPOLL_CTL_ADD, path.endpoint->waitDescriptor(), &event);
}

int Bundle::waitDescriptor() const { return poller_.get(); }

/// Whether time alone may have something to say: a silence that grows, a path that settles, no path at all.
bool Bundle::needsLooks(int64_t now_ns) {
  if (no_path_since_ns_ >= 0) return true;
  return std::any_of(paths_.begin(), paths_.end(), [now_ns](const auto& path) {
    return path->endpoint && (path->status.state == PathState::kSettling || !path->under_way.empty() ||
                              path->endpoint->unansweredNs(now_ns) > 0);
  });
}

bool Bundle::prepareSleep(bool in_operation) {
  if (!broken_.isOk() || !released_.empty() || !fetched_.empty()) return false;
  if (!poller_.isOpen()) {
    poller_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    timer_ = Fd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    ::epoll_ctl(poller_.get(), EPOLL_CTL_ADD, timer_.get(), &event);
    for (auto& path : paths_) watchDescriptor(*path);
  }
  bool may_sleep = true;
  for (auto& path : paths_) {
    if (!path->endpoint) continue;
    may_sleep &= path->endpoint->prepareSleep(in_operation);
    const bool wants_write = path->endpoint->wantsWrite();
    if (wants_write == path->wants_write) continue;
    path->wants_write = wants_write;
    epoll_event event{};
    event.events = EPOLLIN | (wants_write ? EPOLLOUT : 0u);
    ::epoll_ctl(poller_.get(), EPOLL_CTL_MOD, path->endpoint->waitDescriptor(), &event);
  }
  const bool needs = needsLooks(clock_.nowNs());
  itimerspec spec{};
  if (needs) spec.it_value.tv_nsec = kLookNs;  // once a sleep: setting it anew also forgets one that has passed
  if (needs || timer_runs_) ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
  timer_runs_ = needs;
  return may_sleep;
}

}  // namespace jhetcc::rail
