// SPDX-License-Identifier: Apache-2.0
// What happens from poll to poll: events of all paths, their rates, silences and probes; and sleeping over all of them.
// One thread.
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <utility>

#include "rail/bundle.h"
#include "rail/wire.h"

namespace jhetcc::rail {

using transport::FrameHeader;
using transport::FrameType;

namespace {

constexpr int64_t kLookNs = 10 * kNsPerMs;
constexpr int64_t kProbeNs = 20 * kNsPerMs;
constexpr uint32_t kProbesNeeded = 3;
constexpr int64_t kAskNs = 1'000 * kNsPerMs;  ///< who only waits asks the peer's host this often whether it is there
constexpr int64_t kMeasureNs = 5 * kNsPerMs;  ///< of busy time: shorter ones say little
constexpr uint64_t kMeasureBytes = 16 * 1024;
constexpr int64_t kMeasureLongNs = 200 * kNsPerMs;
constexpr double kNewest = 0.3;                     ///< weight of the newest measurement
constexpr int64_t kForgottenNs = 1'000 * kNsPerMs;  ///< so long after a measurement it counts no more
/// Messages leave a path on which they wait this long, and this many times as long as elsewhere.
constexpr double kSlowSeconds = 0.02, kSlowTimes = 4;
/// What a path that crawls has would take it so long: it goes over others instead. Seen in so much busy time, of which
/// one measurement counts for kMeasureLongNs at most: a machine that stood still, or a peer that was stopped, makes
/// one.
constexpr double kCrawlSeconds = 0.5;
constexpr int64_t kCrawlNs = 500 * kNsPerMs;

/// In a poll.
struct Ended {
  Path& path;
  const transport::Endpoint* endpoint;
  Status why;
};

std::string milliseconds(int64_t ns) { return std::to_string(ns / kNsPerMs) + " ms"; }

}  // namespace

int64_t Path::measure(int64_t now_ns, bool has_load) {
  if (!endpoint || is_opening) return 0;
  const transport::Answered now = endpoint->answered();
  const int64_t busy_ns = now.busy_ns - measured_from.busy_ns;
  const uint64_t bytes = now.bytes - measured_from.bytes;
  // Few bytes say how long a round trip takes, unless there was a load all the time: then the path is slow.
  const bool is_loaded = std::exchange(was_loaded, has_load) && has_load;
  if (bytes < kMeasureBytes && !is_loaded) {
    measured_from = now;
    return 0;
  }
  if (busy_ns < kMeasureNs || (bytes < kMeasureBytes && busy_ns < kMeasureLongNs)) return 0;
  const double rate = static_cast<double>(bytes) * 1e9 / static_cast<double>(busy_ns);
  const bool is_first = status.rate_bytes_per_s <= 0 || now_ns - measured_ns > kForgottenNs;
  status.rate_bytes_per_s += (is_first ? 1 : kNewest) * (rate - status.rate_bytes_per_s);
  newest_rate = rate;
  measured_from = now;
  measured_ns = now_ns;
  return busy_ns;
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

bool Bundle::sendPlain(Path& path, uint8_t what, uint32_t index) {
  FrameHeader header;
  header.type = FrameType::kRail;
  header.flags = what;
  header.index = index;
  header.cookie = expected_order_ - 1;
  is_answer_due_ = true;
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
  Path* relay = find(kRelayPath);
  if (relay && relay != &path && relay->endpoint) {
    lose(*relay, Status(Kind::kAborted, Scope::kEndpoint, "not_needed", "not needed any more"));
  }
  if (path.unreachable.isOk()) leaveUnreachable();
}

/// Whoever waits in an operation and has said everything hears nothing of a peer that is gone without a word.
void Bundle::ask(int64_t now_ns) {
  if (!is_in_operation_ || now_ns < next_ask_ns_ || peer_said_goodbye_) return;
  next_ask_ns_ = now_ns + kAskNs;
  for (const auto& path : paths_) {
    if (path->isOpen()) sendPlain(*path, kProbe, 0);
  }
}

/// A path whose peer's host does not answer is left, as long as that host has answered on another one since it was
/// first noticed.
void Bundle::lookForStall(int64_t now_ns) {
  Path* worst = nullptr;
  int64_t longest = options_.stall_ns / 2 - 1;
  for (const auto& path : paths_) {
    if (!path->isOpen()) continue;
    path->silent_ns = path->endpoint->unansweredNs(now_ns);
    is_answer_due_ |= path->silent_ns > 0;
    if (path->silent_ns <= longest) continue;
    longest = path->silent_ns;
    worst = path.get();
  }
  if (!worst) {
    doubted_since_ns_ = -1;
    return;
  }
  if (doubted_since_ns_ < 0) {
    doubted_since_ns_ = now_ns;
    for (const auto& path : paths_) {
      if (path->isOpen()) path->answers_before = path->answers();
    }
  }
  const auto answers = [this](const auto& path) {
    return path->isOpen() && path->status.state == PathState::kHealthy && path->silent_ns < options_.stall_ns / 2 &&
           path->answers() != path->answers_before;
  };
  // This process may not have run for a while: then it learns of a whole silence at once, and nobody was asked.
  const bool is_long = longest >= options_.stall_ns && now_ns - doubted_since_ns_ >= options_.stall_ns / 2;
  if (is_long && std::any_of(paths_.begin(), paths_.end(), answers)) {
    lose(*worst, Status(Kind::kTimeout, Scope::kEndpoint, "path_silent", "no answer for " + milliseconds(longest)));
    return;
  }
  for (const auto& path : paths_) {  // an idle one has to show that it would be better
    if (path->isOpen() && path.get() != worst) probe(*path, now_ns);
  }
}

/// Bytes that wait for the peer there.
uint64_t Bundle::loadOf(const Path& path) const { return path.under_way_bytes + (&path == primary_ ? kept_bytes_ : 0); }

/// What is under way on a path that crawls goes over the others. It comes back as one that is known to be slow.
void Bundle::leaveIfItCrawls(Path& path, int64_t busy_ns) {
  double fastest = 0;
  for (const auto& other : paths_) {
    const bool is_other = other.get() != &path && other->isOpen() && other->unreachable.isOk() &&
                          other->status.state == PathState::kHealthy && other->silent_ns < options_.stall_ns / 2 &&
                          other->status.info.tier == path.status.info.tier;
    if (is_other) fastest = std::max(fastest, other->rate());
  }
  const bool is_long = static_cast<double>(loadOf(path)) > kCrawlSeconds * path.newest_rate;
  const bool crawls = is_long && fastest > path.newest_rate * kCrawlTimes;
  path.crawled_ns = crawls ? path.crawled_ns + std::min(busy_ns, kMeasureLongNs) : 0;
  if (!path.isOpen() || path.crawled_ns < kCrawlNs) return;
  path.status.rate_bytes_per_s = path.newest_rate;
  lose(path, Status(Kind::kTimeout, Scope::kEndpoint, "path_slow",
                    "carries " + std::to_string(static_cast<uint64_t>(path.newest_rate / 1000)) +
                        " kB/s, another over " + std::to_string(static_cast<int>(kCrawlTimes)) + " times that"));
}

/// Where no path is answered, or the system says that nothing passes, there is none, since the last that was left.
void Bundle::lookForEnd(int64_t now_ns) {
  int64_t since_ns = -1;
  for (const auto& path : paths_) {
    if (!path->isOpen()) continue;
    const bool is_silent = path->silent_ns >= options_.stall_ns;
    if (path->unreachable.isOk() && !is_silent) {
      no_path_since_ns_ = -1;
      return;
    }
    // A silence counts from when it was noticed: this process, or the whole machine, may have stood still.
    const int64_t silent_since_ns = std::max(now_ns - path->silent_ns, doubted_since_ns_ - options_.stall_ns);
    since_ns = std::max({since_ns, path->said_ns, path->unreachable.isOk() ? silent_since_ns : -1});
  }
  if (since_ns >= 0) no_path_since_ns_ = since_ns;
  if (no_path_since_ns_ >= 0 && now_ns - no_path_since_ns_ >= options_.no_path_ns && broken_.isOk()) {
    giveUp(Status(Kind::kTimeout, Scope::kEndpoint, "no_path", "none came back"));
  }
}

void Bundle::look(int64_t now_ns) {
  next_look_ns_ = now_ns + kLookNs;
  looked_ns_ = now_ns;
  is_stuck_ = !wanted_.empty() && !std::exchange(has_dispatched_, false);
  ask(now_ns);
  if (std::exchange(is_answer_due_, false)) {
    for (const auto& path : paths_) {
      const int64_t busy_ns = path->measure(now_ns, loadOf(*path) > 0);
      if (busy_ns > 0) leaveIfItCrawls(*path, busy_ns);
    }
    lookForStall(now_ns);
  }
  for (const auto& path : paths_) {
    if (path->endpoint && path->status.state == PathState::kSettling) settle(*path, now_ns);
  }
  lookForEnd(now_ns);
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
  std::vector<Ended> ended;
  for (size_t i = 0; i < paths_.size(); ++i) {
    Path& path = *paths_[i];
    if (!path.endpoint) continue;
    path.is_full = false;
    PathSink path_sink(*this, path);
    polled_ = path.endpoint.get();
    const Status status = polled_->poll(path_sink);
    const transport::Endpoint* endpoint = std::exchange(polled_, nullptr);
    if (gone_) {
      gone_.reset();
      continue;
    }
    if (!status.isOk()) ended.push_back({path, endpoint, status});
    path.given = 0;
    path.is_behind = path.endpoint->wantsWrite();
  }
  for (const Ended& one : ended) {  // after all were heard: one of them may have brought the peer's goodbye
    if (one.path.endpoint.get() == one.endpoint) lose(one.path, one.why);
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
bool Bundle::needsLooks() const {
  if (no_path_since_ns_ >= 0 || is_answer_due_ || !wanted_.empty()) return true;
  return std::any_of(paths_.begin(), paths_.end(),
                     [](const auto& path) { return path->endpoint && path->status.state == PathState::kSettling; });
}

bool Bundle::prepareSleep(bool in_operation) {
  is_in_operation_ = in_operation;
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
    // It has passed on what it had, and may be given more.
    const bool was_held = path->is_behind || path->given >= kStripesPerPoll;
    if (was_held && !wants_write && !(wanted_.empty() && pending_.empty())) may_sleep = false;
    if (wants_write == path->wants_write) continue;
    path->wants_write = wants_write;
    epoll_event event{};
    event.events = EPOLLIN | (wants_write ? EPOLLOUT : 0u);
    ::epoll_ctl(poller_.get(), EPOLL_CTL_MOD, path->endpoint->waitDescriptor(), &event);
  }
  const bool needs = needsLooks();
  itimerspec spec{};
  if (needs) spec.it_value.tv_nsec = kLookNs;  // once a sleep: setting it anew also forgets one that has passed
  if (needs || timer_runs_) ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
  timer_runs_ = needs;
  return may_sleep;
}

}  // namespace jhetcc::rail
