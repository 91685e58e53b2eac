// SPDX-License-Identifier: Apache-2.0
// A network of Membership objects in simulated time: random delays, order kept per pair, deaths, stops, duplicates,
// connections that are cut between members that live on.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "control/membership.h"

namespace jhetcc::control::testing {

constexpr int64_t kMs = 1'000'000;

class Network {
 public:
  struct Member {
    std::unique_ptr<Membership> membership;
    Report report;
    bool dead = false;
    bool ever_stopped = false;
    int64_t stopped_until = 0;
    int64_t sends_left = std::numeric_limits<int64_t>::max();  // then it dies, in the middle of whatever it does
    int64_t verdict_at = -1;
    int64_t tick_version = 0;
  };

  Network(int size, uint64_t seed, int64_t delay_max_ns, const std::string& name = "world")
      : random(seed),
        members(static_cast<size_t>(size)),
        delay_max_(delay_max_ns),
        last_(static_cast<size_t>(size) * static_cast<size_t>(size)) {
    for (int i = 0; i < size; ++i) {
      MembershipConfig config;
      config.communicator = name;
      config.self = i;
      for (int k = 0; k < size; ++k) {
        config.world_ranks.push_back(k);
        config.places.push_back("host" + std::to_string(k) + ":" + std::to_string(100 + k));
      }
      Member& member = members[static_cast<size_t>(i)];
      member.report = {12, 11, "#12 psum(f32[8])", ""};
      member.membership = std::make_unique<Membership>(
          config, [&member] { return member.report; },
          [this, i](int to, std::string message) { transmit(i, to, std::move(message)); });
    }
  }

  int size() const { return static_cast<int>(members.size()); }
  int64_t now() const { return now_; }
  Member& at(int i) { return members[static_cast<size_t>(i)]; }
  int64_t draw(int64_t below) { return below <= 0 ? 0 : static_cast<int64_t>(random() % static_cast<uint64_t>(below)); }

  /// Runs `action` on a member at a time; put off while it is stopped, dropped when it is dead.
  void schedule(int member, int64_t when, std::function<void(Membership&)> action) {
    queue_.push({when, ++count_, member, -1, std::move(action)});
  }
  void kill(int member) {
    Member& dying = at(member);
    if (dying.dead) return;
    dying.dead = true;
    for (int other = 0; other < size(); ++other) {
      if (other == member) continue;
      // The end of the connection is seen after everything that was sent on it.
      const int64_t seen = std::max(last(member, other), now_ + draw(20 * kMs) + 1);
      last(member, other) = seen;
      schedule(other, seen, [this, member](Membership& m) {
        m.peerGone(member, Status(Kind::kDisconnected, Scope::kEndpoint, "peer_lost", "read: Connection reset by peer"),
                   now_);
      });
    }
  }
  void killAt(int member, int64_t when) { queue_.push({when, ++count_, -1, member, nullptr}); }
  /// The connection of two members ends; what is on its way is lost. `seen` runs on each as soon as it notices.
  void cutAt(int a, int b, int64_t when, const std::function<void(Membership&, int peer)>& seen = nullptr) {
    cuts_.push_back({a, b, when});
    for (const auto& [member, peer] : {std::pair(a, b), std::pair(b, a)}) {
      schedule(member, when + draw(20 * kMs) + 1, [this, peer = peer, seen](Membership& m) {
        m.peerGone(peer, Status(Kind::kDisconnected, Scope::kEndpoint, "peer_lost", "read: Connection reset by peer"),
                   now_);
        if (seen) seen(m, peer);
      });
    }
  }
  void stop(int member, int64_t from, int64_t until) {
    at(member).ever_stopped = true;
    stops_.push_back({member, from, until});
  }
  void suspectAt(int member, int64_t when, Status cause, std::vector<int32_t> suspects) {
    schedule(member, when, [this, cause, suspects](Membership& m) { m.suspect(cause, suspects, now_); });
  }

  void run(int64_t until) {
    while (!queue_.empty() && queue_.top().when <= until) {
      Event event = queue_.top();
      queue_.pop();
      now_ = std::max(now_, event.when);
      if (event.member < 0) {
        kill(event.dies);
        continue;
      }
      Member& member = at(event.member);
      if (member.dead) continue;
      const int64_t resumes = resumesAt(event.member);
      if (resumes > now_) {
        event.when = resumes;  // count_ is kept, so the order stays
        queue_.push(std::move(event));
        continue;
      }
      if (event.dies == kTick && event.version != member.tick_version) continue;
      if (event.action) event.action(*member.membership);
      if (event.dies == kTick) member.membership->tick(now_);
      if (member.sends_left <= 0) kill(event.member);
      if (member.verdict_at < 0 && member.membership->verdict()) member.verdict_at = now_;
      const int64_t next = member.membership->nextTickNs();
      ++member.tick_version;
      if (next == std::numeric_limits<int64_t>::max()) continue;
      Event tick{std::max(next, now_ + 1) + draw(kMs), ++count_, event.member, kTick, nullptr};
      tick.version = member.tick_version;
      queue_.push(std::move(tick));
    }
    now_ = until;
  }

  std::mt19937_64 random;
  std::vector<Member> members;
  uint64_t messages = 0;
  size_t longest = 0;
  int duplicate_percent = 0;

 private:
  static constexpr int kTick = -2;
  struct Event {
    int64_t when;
    uint64_t order;
    int member;
    int dies;
    std::function<void(Membership&)> action;
    int64_t version = 0;
    bool operator<(const Event& other) const { return std::pair(when, order) > std::pair(other.when, other.order); }
  };
  struct Cut {
    int a, b;
    int64_t when;
  };
  struct Stop {
    int member;
    int64_t from, until;
  };

  int64_t& last(int from, int to) { return last_[static_cast<size_t>(from * size() + to)]; }
  bool isCut(int from, int to) const {
    return std::any_of(cuts_.begin(), cuts_.end(), [&](const Cut& cut) {
      return cut.when <= now_ && ((cut.a == from && cut.b == to) || (cut.a == to && cut.b == from));
    });
  }
  int64_t resumesAt(int member) const {
    for (const Stop& stop : stops_) {
      if (stop.member == member && stop.from <= now_ && now_ < stop.until) return stop.until;
    }
    return 0;
  }
  void transmit(int from, int to, std::string message) {
    if (at(from).dead || at(from).sends_left <= 0) return;
    --at(from).sends_left;
    ++messages;
    longest = std::max(longest, message.size());
    const int copies = draw(100) < duplicate_percent ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      const int64_t when = std::max(last(from, to), now_ + draw(delay_max_) + 1);
      last(from, to) = when;
      schedule(to, when, [this, from, to, message](Membership& m) {
        if (!isCut(from, to)) m.onMessage(from, message.data(), message.size(), now_);
      });
    }
  }

  int64_t delay_max_;
  int64_t now_ = 0;
  uint64_t count_ = 0;
  std::priority_queue<Event> queue_;
  std::vector<int64_t> last_;
  std::vector<Stop> stops_;
  std::vector<Cut> cuts_;
};

inline bool same(const Verdict& a, const Verdict& b) {
  return a.status.message() == b.status.message() && a.status.code() == b.status.code() && a.lost == b.lost &&
         a.status.ranks() == b.status.ranks() && a.confirmed == b.confirmed;
}
inline bool names(const Verdict& verdict, int member) {
  return std::find(verdict.lost.begin(), verdict.lost.end(), member) != verdict.lost.end();
}

inline void join(Network& network, int member, int64_t when, int64_t patience) {
  network.schedule(member, when,
                   [&network, patience](Membership& m) { m.beginShrink(network.now() + patience, network.now()); });
}

// Equal among all who go on; each is among them.
inline std::vector<int32_t> checkSurvivors(Network& network) {
  std::vector<int32_t> members;
  for (int i = 0; i < network.size(); ++i) {
    const auto& survivors = network.at(i).membership->survivors();
    if (network.at(i).dead || !survivors) continue;
    if (members.empty()) members = survivors->members;
    CHECK(survivors->members == members);
    CHECK(survivors->epoch == 1);
    CHECK(std::find(members.begin(), members.end(), i) != members.end());
    CHECK(network.at(i).membership->shrinkFailure().isOk());
  }
  return members;
}

}  // namespace jhetcc::control::testing
