// SPDX-License-Identifier: Apache-2.0
// One rank: its rails, its communicators, and the operations it runs, strictly one at a time in the order given.
// Single-threaded; clock and rails are handed in, so hundreds of engines can live in one process and one simulated
// time.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "control/membership.h"
#include "control/probes.h"
#include "engine/lane.h"
#include "engine/operation.h"
#include "rail/rail.h"
#include "rail/relay.h"
#include "trace/trace.h"

namespace jhetcc::engine {

struct EngineOptions {
  int64_t operation_timeout_ns = 300'000'000'000;  ///< INT64_MAX: none
  int64_t warn_after_ns = 30'000'000'000;          ///< INT64_MAX: never
  int64_t probe_after_ns = 200'000'000;            ///< blocked this long: look for a wait cycle
  int64_t abort_gather_ns = 1'000'000'000;
  int64_t abort_confirm_ns = 2'000'000'000;
};

struct CommunicatorSpec {
  std::string name;
  uint64_t id = 0;  ///< of (name, members, epoch, how often it was made); equal on all members
  uint64_t epoch = 0;
  int32_t self = 0;
  std::vector<int32_t> world_ranks;
  std::vector<std::string> places;     ///< "host:pid" by index
  std::shared_ptr<NativePort> native;  ///< calls of the cluster's vendor library; null where there is none
};

/// What is asked, planned once and called many times. `program` is set before `ready`.
struct Command {
  std::string text;  ///< the operation text
  uint64_t text_hash = 0;
  bool point_to_point = false;
  int32_t to = -1, from = -1;
  uint32_t tag = 0;
  std::shared_ptr<const Program> program;
  Status failure;  ///< planning failed
  std::atomic<bool> ready{false};
};

/// Told under the engine's lock when an operation has ended; must be quick.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual void onDone(const Status& status) = 0;
};

struct Request {
  uint64_t communicator = 0;
  std::shared_ptr<const Command> command;
  Buffers buffers;
  Completion* completion = nullptr;
  Turn turn;  ///< of a call on the engine's device, from its lane
};

/// What a rank is doing, for status() and errors.
struct Activity {
  std::string communicator, operation;
  uint64_t sequence = 0;
  int64_t since_ns = 0;
  std::vector<int32_t> waiting_for;  ///< world ranks
};

class Engine {
 public:
  Engine(int32_t world_rank, const EngineOptions& options, const Clock& clock, trace::Trace& trace);
  ~Engine();

  void addRail(std::unique_ptr<rail::Rail> rail);
  /// Before the first call: calls with a turn are on memory of this device.
  void useDevice(std::unique_ptr<Lane> lane) { lane_ = std::move(lane); }
  /// Ranks that no path joins may reach each other by a third one from now on.
  void useRelays(rail::Relays::MakeEndpoint make) {
    relays_ = std::make_unique<rail::Relays>(world_rank_, clock_, rails_, std::move(make));
  }
  Lane* lane() { return lane_.get(); }
  void createCommunicator(const CommunicatorSpec& spec);
  /// Later frames of it are stale and change nothing; but if it had ended, this rank goes on to answer members that
  /// still look for an agreement on how, and who survives.
  void destroyCommunicator(uint64_t id);

  void start(Request request);
  /// One bounded pass over everything. True if anything moved.
  bool progress();
  bool isIdle() const { return !active_ && queue_.empty(); }
  bool hasOutput() const;
  /// What was said to peers may be lost with a path until they have it: not to be left before.
  bool hasUnacknowledged() const;
  /// Calls of a vendor's library are under way, on threads that want the processor.
  bool awaitsNative() const;
  /// When progress() must be called next although nothing arrives; INT64_MAX: never.
  int64_t nextWakeNs() const;

  /// Ends a communicator with this cause; `suspects` are member indexes.
  void abortCommunicator(uint64_t id, const Status& cause, const std::vector<int32_t>& suspects);
  void abortAll(const Status& cause);
  control::Membership* membership(uint64_t id);
  void beginShrink(uint64_t id, int64_t deadline_ns);
  /// Ends all operations here and now, without a word with the others.
  void endAll(const Status& cause);
  void sayGoodbye();

  int32_t worldRank() const { return world_rank_; }
  std::optional<Activity> activity() const;
  /// How long an operation was in flight here since birth, the one in flight now included.
  int64_t busyNs() const;
  std::vector<std::unique_ptr<rail::Rail>>& rails() { return rails_; }
  uint64_t staleFrames() const { return stale_frames_; }
  /// Messages that came before they could be taken: most at one time since birth.
  size_t parkedBlocks() const { return pool_.blocks(); }

 private:
  struct Communicator;
  class RailSink;
  struct Active;

  void makeProbes();
  void makeMembership(Communicator& communicator);
  /// Returns the time that it noted.
  int64_t note(trace::EventKind kind, const Communicator& communicator, uint64_t sequence, uint64_t bytes,
               uint64_t argument);
  void noteStep(trace::EventKind kind, int32_t step, int64_t iteration, int64_t bytes);
  void activateNext();
  void beginActive();
  bool advanceActive();
  void withdrawActive();
  int32_t firstGoneNeeded() const;
  void finishActive(const Status& status);
  static void end(const Request& request, const Status& status);
  void onFrame(rail::Rail& rail, const transport::FrameHeader& header, const void* payload);
  void onData(Communicator& communicator, const transport::FrameHeader& header, const void* payload);
  void onControl(Communicator& communicator, int from, const transport::FrameHeader& header, const void* payload);
  void onNativeDone(uint64_t token, const Status& status);
  void onRailBroken(rail::Rail& rail);
  void tick(int64_t now_ns);
  void adoptParked();
  bool matchesActive(const Communicator& communicator, const transport::FrameHeader& header) const;
  void sendControl(Communicator& communicator, int member, uint16_t kind, const std::string& message);
  rail::Rail* railOf(int32_t world_rank);
  Communicator* retired(uint64_t id);
  void warn(int64_t now_ns);
  std::optional<control::BlockedOperation> blocked() const;
  void countMessages();
  void onProbe(int32_t from, const transport::FrameHeader& header, const void* payload);

  const int32_t world_rank_;
  const EngineOptions options_;
  const Clock& clock_;
  trace::Trace& trace_;
  std::unique_ptr<Lane> lane_;  ///< outlives the operation
  std::vector<std::unique_ptr<rail::Rail>> rails_;
  std::vector<std::unique_ptr<RailSink>> sinks_;
  std::unordered_map<int32_t, rail::Rail*> rail_of_;
  std::unique_ptr<rail::Relays> relays_;  ///< null: nobody passes anything on
  std::unordered_map<uint64_t, std::unique_ptr<Communicator>> communicators_;
  std::unordered_set<uint64_t> dead_;                  ///< ids destroyed here
  std::deque<std::unique_ptr<Communicator>> retired_;  ///< of them, the latest that had ended: they answer, no more
  std::unordered_map<uint64_t, uint64_t> messages_started_;  ///< send/recv by (communicator, from, to, tag): how many
  std::deque<Parked*> unknown_;                              ///< frames of communicators not created yet
  std::deque<Request> queue_;
  std::unique_ptr<Active> active_storage_;
  Active* active_ = nullptr;
  ParkedPool pool_;
  std::unique_ptr<control::WaitProbes> probes_;
  uint64_t generation_ = 0;
  uint64_t stale_frames_ = 0;
  uint64_t events_ = 0;  ///< frames, fetches and releases seen
  int64_t next_tick_ns_ = 0, next_relay_look_ns_ = 0;
  int64_t busy_ns_ = 0;  ///< of operations that have ended
};

}  // namespace jhetcc::engine
