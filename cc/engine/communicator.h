// SPDX-License-Identifier: Apache-2.0
// Private to the engine: one communicator and the one active operation.
#pragma once

#include <map>
#include <tuple>

#include "base/hash.h"
#include "engine/engine.h"

namespace jhetcc::engine {

struct Engine::Communicator {
  CommunicatorSpec spec;
  std::unique_ptr<control::Membership> membership;
  std::unordered_map<int32_t, int32_t> member_of;  ///< world rank -> index
  uint64_t next_sequence = 0;                      ///< collectives only
  uint64_t started = 0, finished = 0;              ///< send and recv, too
  std::string last_text;
  std::deque<Parked*> parked;                                        ///< frames of operations not started here yet
  std::map<std::pair<int32_t, uint32_t>, uint64_t> sends, receives;  ///< (member, tag) -> next sequence

  /// Is this index the peer's own? Nobody speaks for somebody else.
  bool isFrom(uint32_t source, int32_t world_rank) const {
    return source < spec.world_ranks.size() && spec.world_ranks[source] == world_rank;
  }
  std::string numbered(uint64_t sequence, const std::string& text) const {
    return "#" + std::to_string(sequence) + " " + text;
  }
};

struct Engine::Active final : OperationHost, NativeSink, LaneSink {
  Engine* engine = nullptr;
  Communicator* communicator = nullptr;
  Request request;
  Operation operation;
  uint64_t sequence = 0;  ///< of the communicator, or of the last send/recv
  uint64_t send_sequence = 0, receive_sequence = 0;
  uint64_t fingerprint = 0;
  int64_t started_ns = 0;
  int64_t warned_ns = 0;
  bool begun = false;  ///< the schedule is there and running
  bool warned = false;
  bool withdrawn = false;  ///< the communicator is ending: waits for the verdict

  const Command& command() const { return *request.command; }
  std::string text() const {
    return command().point_to_point ? command().text : communicator->numbered(sequence, command().text);
  }
  rail::Rail* railTo(int32_t member) override {
    rail::Rail* rail = engine->railOf(communicator->spec.world_ranks[static_cast<size_t>(member)]);
    JHETCC_CHECK(rail != nullptr, "no rail to member " + std::to_string(member) + " of " + communicator->spec.name);
    return rail;
  }
  NativePort& native() override { return *communicator->spec.native; }
  Lane* lane() override { return request.turn.gate ? engine->lane_.get() : nullptr; }
  void noteStep(trace::EventKind kind, int32_t step, int64_t iteration, int64_t bytes) override {
    engine->noteStep(kind, step, iteration, bytes);
  }
  void onNativeDone(uint64_t token, const Status& status) override { engine->onNativeDone(token, status); }
  void onDeviceDone(uint64_t token) override {
    ++engine->events_;
    if (begun && !withdrawn) operation.onDeviceDone(token);
  }
  void fillHeader(transport::FrameHeader& header) override {
    header.communicator = communicator->spec.id;
    header.source = static_cast<uint32_t>(communicator->spec.self);
    header.fingerprint = fingerprint;
    header.sequence = sequence;
    if (command().point_to_point) {
      header.flags = kPointToPoint;
      header.tag = command().tag;
      header.sequence = send_sequence;
    }
  }
};

class Engine::RailSink final : public transport::EventSink {
 public:
  RailSink(Engine* engine, rail::Rail* rail) : engine_(engine), rail_(rail) {}
  void onFrame(const transport::FrameHeader& header, const void* payload) override {
    engine_->onFrame(*rail_, header, payload);
  }
  void onFetched(uint64_t token, Status status) override;
  void onReleased(uint64_t cookie) override;

 private:
  Engine* engine_;
  rail::Rail* rail_;
};

}  // namespace jhetcc::engine
