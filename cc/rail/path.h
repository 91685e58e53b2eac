// SPDX-License-Identifier: Apache-2.0
// One local NIC to one remote NIC: its endpoint while it has one, what is under way on it, and how fast it is.
// Belongs to its bundle.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace jhetcc::rail {

struct PathInfo {
  uint16_t path = 0;  ///< its number, equal on both sides
  int tier = 0;       ///< paths of a higher one are used where none of a lower one is left
  std::string local, remote;
};

/// Of every bundle whose ranks may reach each other by a third one; `remote` then names that one.
constexpr uint16_t kRelayPath = 0xFFFF;
constexpr int kRelayTier = 0xFF;

/// As people read it.
inline std::string nameOf(const PathInfo& info) {
  if (info.path != kRelayPath) return "path " + std::to_string(info.path);
  return "path by way of " + (info.remote.empty() ? "a third rank" : info.remote);
}

enum class PathState : uint8_t {
  kLost,
  kSettling,  ///< it came back, and has to show that it stays
  kHealthy,
};
inline const char* stateName(PathState state) {
  constexpr const char* kNames[] = {"lost", "settling", "healthy"};
  return kNames[static_cast<size_t>(state)];
}

struct PathStatus {
  PathInfo info;
  PathState state = PathState::kLost;
  uint32_t generation = 0;      ///< how often it was connected anew
  double rate_bytes_per_s = 0;  ///< as measured from the traffic itself; 0: not yet
  uint64_t sent_bytes = 0;      ///< of payloads, confirmed by the peer
  uint64_t received_bytes = 0;
  uint64_t resent_bytes = 0;  ///< of payloads and messages, after other paths were lost
  uint32_t losses = 0;
  std::string last_event;
  int64_t last_event_ns = 0;
  bool is_ending = false;  ///< this side has said goodbye: from then on a loss is what to expect
};

/// A part of an offer on its way over this path.
struct Stripe {
  uint64_t number;  ///< of the stripe: its cookie there, its token here
  uint64_t offer;
  uint64_t bytes;
  uint32_t index;
};

/// How many stripes a path carries at once, at most.
constexpr size_t kStripesPerPath = 64;
/// Between two polls. A path that did not pass on all that it has gets nothing: it would wait there while others could
/// carry it.
constexpr int kStripesPerPoll = 2;
/// A path so many times as slow as another of its tier crawls: it gets no payloads but for trials, and is left when
/// what it has would take it long.
constexpr double kCrawlTimes = 20;
/// So many of the last taken are remembered for the peer: what it does not know of yet is among them.
constexpr size_t kTakenRemembered = 4 * kStripesPerPath;

struct Path {
  PathStatus status;
  std::unique_ptr<transport::Endpoint> endpoint;  ///< null: lost
  bool was_up = false;                            ///< ever
  int64_t silent_ns = 0;                          ///< as last looked at: how long the peer's host has not answered
  uint64_t answers_before = 0;                    ///< when a silence was first noticed, on any path
  Status lost_for;                                ///< why it was lost last
  Status unreachable;        ///< why the system says that nothing passes, where it is kept for want of another
  int64_t said_ns = 0;       ///< when the system said so, or said last that it is over
  bool is_opening = false;   ///< the side that connected has not spoken yet: its generation is not known
  int64_t reported = -1;     ///< the last generation whose end the peer was told
  bool is_full = false;      ///< took no more, until the next poll
  bool is_behind = false;    ///< had not passed on all that it was given, at the last poll
  int given = 0;             ///< stripes since then
  bool wants_write = false;  ///< as its descriptor is watched
  int64_t healthy_since_ns = 0;
  int64_t settle_ns = 0;
  int64_t closed_ns = INT64_MIN / 2;  ///< when the peer closed it last
  int64_t opened_ns = 0;
  int64_t next_probe_ns = 0;
  uint32_t probes_answered = 0;

  std::vector<Stripe> under_way;
  uint64_t under_way_bytes = 0;
  std::vector<Stripe> fetching;
  uint64_t last_stripe = 0;    ///< of the peer's over this connection; they ascend
  std::deque<uint64_t> taken;  ///< the peer's stripes that are whole here, the latest

  transport::Answered measured_from;  ///< where the measurement under way began
  int64_t measured_ns = 0;            ///< when its rate was measured last
  bool was_loaded = false;            ///< something waited for the peer at the last look
  double newest_rate = 0;             ///< of the last measurement alone
  int64_t crawled_ns = 0;             ///< busy time of the latest measurements, all of which say that it crawls
  double rate() const { return status.rate_bytes_per_s; }
  bool isOpen() const { return endpoint && !is_opening; }
  /// Grows with everything that the peer's host, or it itself, answers here.
  uint64_t answers() const { return endpoint->answered().bytes + probes_answered; }
  /// The busy time of a measurement that ends here; 0: none does.
  int64_t measure(int64_t now_ns, bool has_load);
};

}  // namespace jhetcc::rail
