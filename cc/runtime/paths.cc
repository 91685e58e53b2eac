// SPDX-License-Identifier: Apache-2.0
// The start: what is planned, how long it may take, and the endpoints it ends with.
#include "runtime/paths.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "base/log.h"
#include "base/thread.h"
#include "runtime/paths_loop.h"

namespace jhetcc::runtime {

Result<std::shared_ptr<Paths>> Paths::create(PathsOptions options) {
  Result<net::Wakeup> wakeup = net::Wakeup::create();
  if (!wakeup.isOk()) return wakeup.status();
  auto loop = std::make_unique<Loop>(std::move(options), std::move(wakeup).value());
  JHETCC_RETURN_IF_ERROR(loop->listen());
  return std::shared_ptr<Paths>(new Paths(std::move(loop)));
}

Paths::Paths(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Paths::~Paths() = default;
std::vector<net::Address> Paths::addresses() const { return loop_->addresses(); }
Status Paths::connect(Process& process, std::vector<PairPlan> pairs, const EndpointOptions& endpoint,
                      const net::Deadline& deadline) {
  return loop_->connect(process, std::move(pairs), endpoint, deadline);
}
bool Paths::hasSeveral() const { return loop_->hasSeveral(); }
void Paths::leaveBehind(uint32_t epoch, const std::vector<int32_t>& processes) { loop_->leaveBehind(epoch, processes); }
void Paths::stop() { loop_->stop(); }

Paths::Loop::Loop(PathsOptions options, net::Wakeup wakeup)
    : options_(std::move(options)),
      wakeup_(std::move(wakeup)),
      jitter_(options_.mine.incarnation),
      nics_(options_.nics.size()) {}

Paths::Loop::~Loop() { stop(); }

Status Paths::Loop::listen() {
  for (const net::Nic& nic : options_.nics) {
    net::AcceptorConfig config;
    config.address = nic.address;
    config.device = nic.device();
    if (nic.shares_subnet && !nic.is_bound) {
      JHETCC_LOG(
          kWarn, "rail",
          "NIC " + net::describe({nic}) + " shares its subnet with another one here, and the system may send by one " +
              "what belongs to the other. With net.ipv4.conf.all.arp_ignore=1 and arp_announce=2 on all hosts, " +
              "each is used for itself");
    }
    config.secret = options_.secret;
    config.mine = options_.mine;
    config.tls = options_.tls;
    config.on_connection = [this](net::Connection connection) { arrived(std::move(connection)); };
    config.is_known = [this](const net::Identity& peer) { return isKnown(peer); };
    Result<std::unique_ptr<net::Acceptor>> acceptor = net::Acceptor::create(std::move(config));
    if (!acceptor.isOk()) return acceptor.status();
    acceptors_.push_back(std::move(acceptor).value());
  }
  return Status::ok();
}

void Paths::Loop::stop() {
  stop_.store(true);
  wakeup_.signal();
  if (thread_.joinable()) thread_.join();
  std::vector<std::unique_ptr<net::Acceptor>> ended;  // their threads may wait for the lock
  std::lock_guard lock(mutex_);
  ended.swap(acceptors_);
}

void Paths::Loop::leaveBehind(uint32_t epoch, const std::vector<int32_t>& processes) {
  std::lock_guard lock(mutex_);
  epoch_ = std::max(epoch_, epoch);
  for (const auto& acceptor : acceptors_) acceptor->leaveBehind(epoch_, processes);
  for (Pair& pair : pairs_) {
    if (std::find(processes.begin(), processes.end(), pair.plan.peer_process) != processes.end()) pair.is_over = true;
  }
}

std::vector<net::Address> Paths::Loop::addresses() const {
  std::vector<net::Address> addresses;
  for (const auto& acceptor : acceptors_) addresses.push_back(acceptor->address());
  return addresses;
}

bool Paths::Loop::hasSeveral() const {
  std::lock_guard lock(mutex_);
  return std::any_of(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.paths.size() > 1; });
}

size_t Paths::Loop::routeOf(const PairPlan& pair, const PathPlan& path) {
  const auto found = std::find_if(routes_.begin(), routes_.end(), [&](const Route& route) {
    return route.nic == path.nic && route.peer_process == pair.peer_process && route.remote == path.remote;
  });
  const auto place = static_cast<size_t>(found - routes_.begin());
  if (place == routes_.size()) routes_.push_back({path.nic, path.remote, pair.peer_process});
  return place;
}

void Paths::Loop::plan(std::vector<PairPlan> pairs) {
  std::lock_guard lock(mutex_);
  for (PairPlan& plan : pairs) {
    Pair pair;
    for (const PathPlan& path : plan.paths) {
      Path made;
      made.plan = path;
      made.route = routeOf(plan, path);
      pair.paths.push_back(std::move(made));
    }
    pair.plan = std::move(plan);
    pairs_.push_back(std::move(pair));
  }
  phase_ = Phase::kStarting;
}

Status Paths::Loop::connect(Process& process, std::vector<PairPlan> pairs, const EndpointOptions& endpoint,
                            const net::Deadline& deadline) {
  process_ = &process;
  endpoint_ = endpoint;
  plan(std::move(pairs));
  if (hasSeveral()) {
    Result<net::LinkWatch> watch = net::LinkWatch::create();
    if (watch.isOk()) watch_ = std::move(watch).value();
    if (!watch.isOk()) JHETCC_LOG(kInfo, "rail", watch.status().message() + "; links are judged by their traffic");
  }
  Result<std::thread> thread = startThread("jhetcc-paths", [this] { run(); });
  if (!thread.isOk()) return thread.status();
  thread_ = std::move(thread).value();

  const int64_t begun_ns = clock_.nowNs();
  std::unique_lock lock(mutex_);
  for (;;) {
    const std::optional<Status> ended = startEnded(clock_.nowNs());
    if (ended && !ended->isOk()) return *ended;
    if (ended) break;
    lock.unlock();  // cancelled() is the caller's code
    const Status time = net::checkDeadline(deadline, "connecting");
    lock.lock();
    if (!time.isOk()) return noPath(time, deadline, begun_ns);
    changed_.wait_for(lock, std::chrono::nanoseconds(net::kSliceNs / 5));
  }
  phase_ = Phase::kMaking;  // what comes too late is closed, and connected anew
  lock.unlock();
  warnOfMissing();
  warnOfLone();
  makeEndpoints();
  lock.lock();
  phase_ = Phase::kRunning;
  lock.unlock();
  wakeup_.signal();
  return Status::ok();
}

bool Paths::Loop::isUp(int tier) const {
  for (const Pair& pair : pairs_) {
    for (const Path& path : pair.paths) {
      if (path.plan.tier <= tier && path.state != Path::State::kUp) return false;
    }
  }
  return true;
}

/// Ok as soon as nothing is to be waited for any more; an error where a pair cannot get a path.
std::optional<Status> Paths::Loop::startEnded(int64_t now_ns) {
  bool all_have_one = true;
  for (const Pair& pair : pairs_) {
    const auto isUp = [](const Path& path) { return path.state == Path::State::kUp; };
    if (std::any_of(pair.paths.begin(), pair.paths.end(), isUp)) continue;
    all_have_one = false;
    const auto isHopeless = [](const Path& path) { return path.is_refused_for_good; };
    if (std::all_of(pair.paths.begin(), pair.paths.end(), isHopeless)) {
      const Status& why = pair.paths.front().why;
      return Status(why.kind(), why.scope(), why.code(), why.message(), {pair.plan.peer_process});
    }
  }
  if (!all_have_one) return std::nullopt;
  if (all_have_one_ns_ == 0) all_have_one_ns_ = now_ns;
  if (isUp(1) || now_ns - all_have_one_ns_ >= options_.patience_ns) return Status::ok();
  if (!isUp(0)) return std::nullopt;
  if (tier_is_up_ns_ == 0) tier_is_up_ns_ = now_ns;
  if (now_ns - tier_is_up_ns_ >= options_.spare_patience_ns) return Status::ok();
  return std::nullopt;
}

/// The error at the deadline: which process, where it was tried or awaited, and the last reasons.
Status Paths::Loop::noPath(const Status& time, const net::Deadline& deadline, int64_t begun_ns) const {
  const bool is_late = time.kind() == Kind::kTimeout;
  std::string text;
  std::vector<int32_t> ranks;
  for (const Pair& pair : pairs_) {
    const auto isUp = [](const Path& path) { return path.state == Path::State::kUp; };
    if (!ranks.empty() || std::any_of(pair.paths.begin(), pair.paths.end(), isUp)) continue;
    ranks = {pair.plan.peer_process};
    for (const Path& path : pair.paths) {
      const std::string local = options_.nics[path.plan.nic].address.host();
      const int attempts = routes_[path.route].attempts;
      text += text.empty() ? "" : "; ";
      text += pair.plan.is_caller ? "calling " + path.plan.remote.text() + " from " + local + ", " +
                                        std::to_string(attempts) + (attempts == 1 ? " attempt" : " attempts")
                                  : "waiting for its call at " + acceptors_[path.plan.nic]->address().text();
      if (!path.why.isOk()) text += ": " + path.why.message();
    }
    for (const auto& acceptor : acceptors_) {
      for (const std::string& drop : acceptor->recentDrops()) text += "; turned away of late: " + drop;
    }
  }
  const int64_t seconds = (deadline.clock.nowNs() - begun_ns) / (1'000 * kNsPerMs);
  return Status(time.kind(), Scope::kEndpoint, is_late ? "connect_timeout" : "cancelled",
                std::string(is_late ? "gave up after " : "cancelled after ") + std::to_string(seconds) + " s: " + text +
                    ". JHETCC_INTERFACE names the NICs to use",
                ranks);
}

/// One line a route: not one for every pair of ranks.
void Paths::Loop::warnOfMissing() const {
  std::lock_guard lock(mutex_);
  for (size_t route = 0; route < routes_.size(); ++route) {
    int missing = 0, tier = 1;
    bool is_caller = false;
    Status why;
    for (const Pair& pair : pairs_) {
      for (const Path& path : pair.paths) {
        if (path.route != route || path.state == Path::State::kUp) continue;
        ++missing;
        tier = std::min(tier, path.plan.tier);
        is_caller = pair.plan.is_caller;
        if (!path.why.isOk()) why = path.why;
      }
    }
    if (missing == 0) continue;
    const Route& one = routes_[route];
    const net::Nic& nic = options_.nics[one.nic];
    const std::string text = "no connection between " + net::describe({nic}) + " here and " + one.remote.host() +
                             " of process " + std::to_string(one.peer_process) + ": " +
                             (why.isOk() ? (is_caller ? "no answer yet" : "it did not call") : why.message()) + "; " +
                             (missing == 1 ? "that path begins" : std::to_string(missing) + " paths begin") +
                             " as lost, and it is tried on. JHETCC_INTERFACE names the NICs to be used";
    if (tier == 0) JHETCC_LOG(kWarn, "rail", text);
    if (tier != 0) JHETCC_LOG(kInfo, "rail", text);
  }
}

/// Ranks that one path joins: there failover has nowhere to go. Within a host that is as it should be.
void Paths::Loop::warnOfLone() const {
  std::lock_guard lock(mutex_);
  std::set<int32_t> lone;
  for (const Pair& pair : pairs_) {
    const auto isUp = [](const Path& path) { return path.state == Path::State::kUp; };
    if (std::count_if(pair.paths.begin(), pair.paths.end(), isUp) != 1) continue;
    const PathPlan& first = pair.plan.paths.front();
    const bool is_within = first.remote.isLoopback() || first.remote.host() == options_.nics[first.nic].address.host();
    if (pair.paths.size() > 1 || !is_within) lone.insert(pair.plan.peer);
  }
  if (lone.empty()) return;
  std::string ranks;
  for (const int32_t rank : lone) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  JHETCC_LOG(kWarn, "rail",
             "no spare path to rank" + std::string(lone.size() > 1 ? "s " : " ") + ranks +
                 " at the start: one connection joins them with this process, and while it is lost nothing takes its " +
                 "place. A second NIC, or JHETCC_PATHS_PER_NIC=2 where there is one, gives them a spare");
}

std::unique_ptr<transport::Endpoint> Paths::Loop::bundleOf(size_t number) {
  std::lock_guard lock(mutex_);
  Pair& pair = pairs_[number];
  const std::string names = "rank " + std::to_string(process_->runner(pair.plan.slot).worldRank()) + " -> rank " +
                            std::to_string(pair.plan.peer);
  const auto isVerbs = [](const PathPlan& path) { return path.is_verbs; };
  const bool is_verbs = std::any_of(pair.plan.paths.begin(), pair.plan.paths.end(), isVerbs);
  auto bundle = std::make_unique<rail::Bundle>(
      (is_verbs ? "verbs " : "tcp ") + names + " over " + std::to_string(pair.paths.size()) + " paths",
      process_->clock(), rail::BundleOptions{});
  for (size_t k = 0; k < pair.paths.size(); ++k) {
    Path& path = pair.paths[k];
    const net::Nic& nic = options_.nics[path.plan.nic];
    const std::string local = nic.name + (nic.name.empty() ? "" : " ") + nic.address.host();
    bundle->addPath({static_cast<uint16_t>(k), path.plan.tier, local, path.plan.remote.host()},
                    std::move(path.endpoint), path.why);
  }
  return bundle;
}

void Paths::Loop::makeEndpoints() {
  for (size_t number = 0; number < pairs_.size(); ++number) {
    Pair& pair = pairs_[number];
    if (pair.paths.size() == 1) {
      process_->addEndpoint(pair.plan.slot, pair.plan.peer, std::move(pair.paths.front().endpoint));
      continue;
    }
    std::unique_ptr<transport::Endpoint> endpoint = bundleOf(number);
    auto* bundle = static_cast<rail::Bundle*>(endpoint.get());
    bundle->watch([this, number](const rail::PathStatus& status) { onChange({number, status.info.path}, status); });
    bundle->watchResends([this, number](const rail::PathStatus& status, uint64_t bytes) {
      note(trace::EventKind::kResent, number, status, bytes);
    });
    pair.bundle = bundle;
    process_->addEndpoint(pair.plan.slot, pair.plan.peer, std::move(endpoint));
  }
}

}  // namespace jhetcc::runtime
