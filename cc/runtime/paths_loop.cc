// SPDX-License-Identifier: Apache-2.0
// The thread: what came in, what is to be tried, what the kernel says of links. Nothing here holds the table's lock
// while it enters an engine.
#include "runtime/paths_loop.h"

#include <poll.h>

#include <algorithm>

#include "base/log.h"
#include "base/thread.h"
#include "net/connect.h"

namespace jhetcc::runtime {
namespace {

constexpr size_t kAttemptsMax = 32;
constexpr size_t kArrivalsMax = 4096;
constexpr int64_t kAttemptMinNs = 1'000 * kNsPerMs, kAttemptMaxNs = 3'000 * kNsPerMs;
constexpr int64_t kBackOffMinNs = 50 * kNsPerMs, kBackOffMaxNs = 5'000 * kNsPerMs;
/// A path that stayed this long starts over with the shortest back-off.
constexpr int64_t kStableNs = 10'000 * kNsPerMs;

}  // namespace

void Paths::Loop::run() {
  try {
    runUntilStopped();
  } catch (const std::exception& error) {
    JHETCC_LOG(kError, "rail", std::string("paths are not connected anew any more: ") + error.what());
  }
  stop_.store(true);  // attempts end
  std::list<Attempt> left;
  {
    std::lock_guard lock(mutex_);
    left.swap(attempts_);
  }
  for (Attempt& attempt : left) attempt.thread.join();
}

void Paths::Loop::runUntilStopped() {
  bool must_look = watch_.descriptor() >= 0;
  while (!stop_.load()) {
    if (must_look && isRunning()) {
      must_look = false;
      lookAtLinks();
    }
    const int64_t next_ns = launchDue();
    pollfd entries[] = {{wakeup_.descriptor(), POLLIN, 0}, {watch_.descriptor(), POLLIN, 0}};
    ::poll(entries, 2, net::pollTimeoutMs(clock_, next_ns));
    wakeup_.clear();
    if (entries[1].revents != 0) {
      watch_.clear();
      must_look = true;
    }
    takeResults();
    takeArrivals();
  }
}

bool Paths::Loop::isRunning() const {
  std::lock_guard lock(mutex_);
  return phase_ == Phase::kRunning;
}

/// Begins every attempt that is due; when the next one will be.
int64_t Paths::Loop::launchDue() {
  const int64_t now_ns = clock_.nowNs();
  int64_t next_ns = INT64_MAX;
  std::vector<Place> due;
  std::unique_lock lock(mutex_);
  if (phase_ != Phase::kStarting && phase_ != Phase::kRunning) return next_ns;
  size_t under_way = attempts_.size();
  for (size_t i = 0; i < pairs_.size(); ++i) {
    Pair& pair = pairs_[i];
    if (pair.is_over || (phase_ == Phase::kRunning && !pair.bundle)) continue;
    for (size_t k = 0; k < pair.paths.size(); ++k) {
      Path& path = pair.paths[k];
      Route& route = routes_[path.route];
      if (path.state != Path::State::kLost || path.is_refused_for_good || !nics_[route.nic].isOk()) continue;
      if (!pair.plan.is_caller && !route.asks_for_call) continue;
      if (route.next_ns > now_ns) {
        next_ns = std::min(next_ns, route.next_ns);
      } else if ((route.is_proven || route.under_way == 0) && under_way < kAttemptsMax) {
        path.state = Path::State::kConnecting;
        ++route.under_way;
        ++under_way;
        due.push_back({i, k});
      }
    }
  }
  const bool may_be_over = phase_ == Phase::kRunning;
  lock.unlock();
  for (const Place& place : due) {
    if (may_be_over && isOver(place.pair)) {
      lock.lock();
      at(place).state = Path::State::kLost;
      --routes_[at(place).route].under_way;
      pairs_[place.pair].is_over = true;
      lock.unlock();
      continue;
    }
    launch(place);
  }
  return next_ns;
}

/// Whether the pair's rail broke: nobody needs its paths any more.
bool Paths::Loop::isOver(size_t number) {
  const PairPlan& plan = pairs_[number].plan;
  bool is_over = true;
  process_->runner(plan.slot).withEngine([&](engine::Engine& engine) {
    for (const auto& rail : engine.rails()) {
      if (rail->peer() == plan.peer) is_over = rail->isBroken();
    }
  });
  return is_over;
}

void Paths::Loop::launch(Place place) {
  std::lock_guard lock(mutex_);
  const PairPlan& plan = pairs_[place.pair].plan;
  Path& path = at(place);
  Route& route = routes_[path.route];
  ++route.attempts;
  Attempt& attempt = attempts_.emplace_back();
  attempt.place = place;
  attempt.identity = options_.mine;
  attempt.identity.epoch = epoch_;
  attempt.identity.path = static_cast<uint16_t>(place.path);
  attempt.identity.caller_slot = static_cast<uint16_t>(plan.slot);
  attempt.identity.called_slot = static_cast<uint16_t>(plan.peer_slot);
  if (phase_ == Phase::kRunning && plan.is_caller) attempt.identity.generation = ++path.generation;
  const int64_t limit_ns = std::clamp(2 * route.back_off_ns, kAttemptMinNs, kAttemptMaxNs);
  const auto call = [this, &attempt, limit_ns, remote = route.remote, nic = options_.nics[route.nic],
                     wanted = plan.peer_process] {
    const net::Deadline deadline =
        net::Deadline::after(clock_, limit_ns, [this, &attempt] { return stop_.load() || attempt.is_outdated.load(); });
    Result<net::Connection> result = net::connectOnce(remote, options_.secret, attempt.identity, wanted, deadline,
                                                      nic.address, nic.device(), options_.tls);
    std::lock_guard lock(mutex_);
    attempt.result = std::move(result);
    wakeup_.signal();
  };
  Result<std::thread> thread = startThread("jhetcc-connect", call);
  if (thread.isOk()) attempt.thread = std::move(thread).value();
  if (!thread.isOk()) {
    attempt.result = Result<net::Connection>(thread.status());
    wakeup_.signal();
  }
}

void Paths::Loop::takeResults() {
  std::list<Attempt> ended;
  {
    std::lock_guard lock(mutex_);
    if (phase_ == Phase::kMaking) return;  // connect() wakes this thread after it
    for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
      const auto next = std::next(attempt);
      if (attempt->result) ended.splice(ended.end(), attempts_, attempt);
      attempt = next;
    }
  }
  for (Attempt& attempt : ended) {
    if (attempt.thread.joinable()) attempt.thread.join();
    Result<net::Connection>& result = *attempt.result;
    if (result.isOk() && result.value().peer.incarnation != pairs_[attempt.place.pair].plan.peer_incarnation) {
      result = Status(Kind::kDisconnected, Scope::kEndpoint, "refused",
                      "another process listens there now: " + result.value().description);
    }
    if (!result.isOk()) {
      takeFailure(attempt, result.status());
      continue;
    }
    {
      std::lock_guard lock(mutex_);
      Route& route = routes_[at(attempt.place).route];
      --route.under_way;
      route.is_proven = true;
      route.next_ns = 0;
      if (!pairs_[attempt.place.pair].plan.is_caller) {  // the wish was heard; that is all it is for
        route.asks_for_call = false;
        if (at(attempt.place).state == Path::State::kConnecting) at(attempt.place).state = Path::State::kLost;
        continue;
      }
    }
    adopt(attempt.place, std::move(result).value(), attempt.identity.generation);
  }
}

void Paths::Loop::takeFailure(const Attempt& attempt, const Status& why) {
  const bool is_final = why.kind() == Kind::kBadArgument || why.kind() == Kind::kResource;
  const bool is_left_behind = why.code() == "stale_epoch";
  rail::Bundle* bundle = nullptr;
  {
    std::lock_guard lock(mutex_);
    Path& path = at(attempt.place);
    Route& route = routes_[path.route];
    if (path.state == Path::State::kConnecting) path.state = Path::State::kLost;
    path.why = why;
    path.is_refused_for_good = is_final && (phase_ == Phase::kStarting || is_left_behind);
    --route.under_way;
    route.is_proven = false;
    backOff(route);
    if (pairs_[attempt.place.pair].plan.is_caller) bundle = pairs_[attempt.place.pair].bundle;
    changed_.notify_all();
  }
  if (!bundle || stop_.load()) return;
  process_->runner(pairs_[attempt.place.pair].plan.slot).withEngine([&](engine::Engine&) {
    // For this rank, who refuses to know it is as gone as who does not listen any more.
    const Status gone(Kind::kDisconnected, Scope::kEndpoint, "refused", why.message());
    bundle->failPath(static_cast<uint16_t>(attempt.place.path), is_left_behind ? gone : why);
  });
}

/// Half fixed, half drawn: the ranks of a job do not come back all at once. Under the lock.
void Paths::Loop::backOff(Route& route) {
  route.back_off_ns = std::clamp(2 * route.back_off_ns, kBackOffMinNs, kBackOffMaxNs);
  const auto half = static_cast<uint64_t>(route.back_off_ns / 2);
  route.next_ns = clock_.nowNs() + static_cast<int64_t>(half + jitter_.below(half));
}

void Paths::Loop::arrived(net::Connection connection) {
  {
    std::lock_guard lock(mutex_);
    if (arrivals_.size() < kArrivalsMax) arrivals_.push_back(std::move(connection));
  }
  wakeup_.signal();
}

/// Only a process of this job was told what its others drew at their start.
bool Paths::Loop::isKnown(const net::Identity& peer) const {
  std::lock_guard lock(mutex_);
  return std::any_of(pairs_.begin(), pairs_.end(), [&peer](const Pair& pair) {
    return pair.plan.peer_process == peer.rank && pair.plan.peer_incarnation == peer.incarnation;
  });
}

void Paths::Loop::takeArrivals() {
  std::deque<net::Connection> arrivals;
  {
    std::lock_guard lock(mutex_);
    if (phase_ != Phase::kStarting && phase_ != Phase::kRunning) return;
    arrivals.swap(arrivals_);
  }
  for (net::Connection& connection : arrivals) {
    if (takeWish(connection.peer)) continue;
    const std::optional<Place> place = placeOf(connection.peer, false);
    if (place) {
      const uint32_t generation = connection.peer.generation;
      adopt(*place, std::move(connection), generation);
    } else {
      JHETCC_LOG(kWarn, "rail", "closed a connection that joins no ranks of this job: " + connection.description);
    }
  }
}

/// A process that is always called says that it is back on this path: it is called at once.
bool Paths::Loop::takeWish(const net::Identity& other) {
  const std::optional<Place> place = placeOf(other, true);
  if (!place) return false;
  std::lock_guard lock(mutex_);
  tryAtOnce(at(*place).route);
  return true;
}

/// The path that another process means; `is_caller_here`: of those that this one connects.
std::optional<Paths::Loop::Place> Paths::Loop::placeOf(const net::Identity& caller, bool is_caller_here) const {
  for (size_t i = 0; i < pairs_.size(); ++i) {
    const PairPlan& plan = pairs_[i].plan;
    if (plan.is_caller == is_caller_here && plan.peer_process == caller.rank &&
        plan.peer_incarnation == caller.incarnation && plan.slot == caller.called_slot &&
        plan.peer_slot == caller.caller_slot && caller.path < plan.paths.size()) {
      return Place{i, caller.path};
    }
  }
  return std::nullopt;
}

/// A connection takes its path's place; one that comes too late for that is closed, and its caller tries again.
void Paths::Loop::adopt(Place place, net::Connection connection, uint32_t generation) {
  const PairPlan& plan = pairs_[place.pair].plan;
  auto endpoint = plan.paths[place.path].is_verbs
                      ? verbsEndpoint(*process_, plan.slot, plan.peer, std::move(connection))
                      : tcpEndpoint(*process_, plan.slot, plan.peer, std::move(connection), endpoint_);
  if (!endpoint.isOk()) JHETCC_LOG(kWarn, "rail", endpoint.status().message());
  rail::Bundle* bundle = nullptr;
  bool was_up = false;
  {
    std::lock_guard lock(mutex_);
    Path& path = at(place);
    bundle = pairs_[place.pair].bundle;
    const bool is_start = phase_ == Phase::kStarting && generation == 0;
    const bool is_anew = bundle && generation > 0 && (plan.is_caller || generation > path.generation);
    was_up = path.state == Path::State::kUp;
    if (!endpoint.isOk() || (!is_start && !is_anew)) {
      if (plan.is_caller) path.state = Path::State::kLost;
      return;
    }
    path.generation = generation;
    path.state = Path::State::kUp;
    routes_[path.route].asks_for_call = false;
    path.up_since_ns = clock_.nowNs();
    path.why = Status();
    if (is_start) path.endpoint = std::move(endpoint).value();
    changed_.notify_all();
    if (is_start) return;
  }
  process_->runner(plan.slot).withEngine([&](engine::Engine&) {
    bundle->reopenPath(static_cast<uint16_t>(place.path), std::move(endpoint).value(), plan.is_caller);
  });
  if (!was_up) return;
  std::lock_guard lock(mutex_);
  at(place).state = Path::State::kUp;  // what was lost in there is the connection before
}

void Paths::Loop::note(trace::EventKind kind, size_t pair, const rail::PathStatus& status, uint64_t bytes) {
  const PairPlan& plan = pairs_[pair].plan;
  trace::Record record;
  record.kind = kind;
  record.time_ns = clock_.nowNs();
  record.peer = process_->runner(plan.slot).worldRank();
  record.step = plan.peer;
  record.argument = status.info.path;
  record.index = status.generation;
  record.bytes = bytes;
  process_->trace().recorder->write(record);
}

/// Told by a bundle, under its engine's lock.
void Paths::Loop::onChange(Place place, const rail::PathStatus& status) {
  const bool is_lost = status.state == rail::PathState::kLost;
  const PairPlan& plan = pairs_[place.pair].plan;
  note(is_lost ? trace::EventKind::kDisconnected : trace::EventKind::kConnected, place.pair, status, 0);
  const bool is_relay = status.info.path == rail::kRelayPath;
  const std::string ends = is_relay ? "" : " (" + status.info.local + " -> " + status.info.remote + ")";
  const std::string text =
      rail::nameOf(status.info) + " to rank " + std::to_string(plan.peer) + ends + " " + status.last_event;
  if (!status.is_ending) JHETCC_LOG(kWarn, "rail", text);
  if (status.is_ending) JHETCC_LOG(kInfo, "rail", text);
  if (!is_lost || is_relay) return;  // none of this table's
  std::lock_guard lock(mutex_);
  Path& path = at(place);
  Route& route = routes_[path.route];
  if (clock_.nowNs() - path.up_since_ns >= kStableNs) route.back_off_ns = 0;
  path.state = Path::State::kLost;
  route.is_proven = false;
  backOff(route);
  wakeup_.signal();
}

}  // namespace jhetcc::runtime
