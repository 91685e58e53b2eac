// SPDX-License-Identifier: Apache-2.0
// One operation being run: a schedule's steps against buffers and rails. Single-threaded, under the engine's lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/lane.h"
#include "engine/native.h"
#include "rail/rail.h"
#include "schedule/schedule.h"
#include "trace/recorder.h"
#include "transport/transport.h"

namespace jhetcc::engine {

/// A schedule made ready to run: the receive steps found by (peer, stream), the native ones. Shared and immutable.
struct Program {
  std::shared_ptr<const schedule::Schedule> schedule;
  std::vector<std::pair<uint64_t, int32_t>> receive_steps;  ///< (peer << 16 | stream, step), ascending
  std::vector<int32_t> native_steps;
  static std::shared_ptr<const Program> make(std::shared_ptr<const schedule::Schedule> schedule);
  int32_t receiveStep(uint32_t peer, uint16_t stream) const;  ///< -1: none
  bool hears(uint32_t peer) const;                            ///< there is a receive from it
};

/// A message that came before it could be taken. Blocks are reused, never freed while the engine lives.
struct Parked {
  transport::FrameHeader header;
  int32_t peer = -1;  ///< world rank at the other end of the rail that brought it
  Parked* next = nullptr;
  std::vector<char> payload;
};
class ParkedPool {
 public:
  Parked* take(const transport::FrameHeader& header, const void* payload);
  void put(Parked* parked);
  size_t blocks() const { return all_.size(); }

 private:
  std::vector<std::unique_ptr<Parked>> all_;
  Parked* free_ = nullptr;
};

struct Buffers {
  const void* input = nullptr;
  void* output = nullptr;
  uint64_t input_bytes = 0, output_bytes = 0;
};

/// FrameHeader::flags: the sequence counts the messages of (source, destination, tag), not operations.
constexpr uint8_t kPointToPoint = 1;

/// At most this many iterations of one send or receive step are under way; of any step on a device, where each may
/// have staging of its own.
constexpr int64_t kWindow = 8, kDeviceWindow = 4;

/// What a running operation needs from its engine.
class OperationHost {
 public:
  virtual ~OperationHost() = default;
  virtual rail::Rail* railTo(int32_t member) = 0;
  virtual void fillHeader(transport::FrameHeader& header) = 0;
  virtual NativePort& native() = 0;
  virtual Lane* lane() = 0;  ///< of the device that this operation's buffers are on; null: the host
  /// An iteration of a step began or ended; asked for operations in several chunks only.
  virtual void noteStep(trace::EventKind kind, int32_t step, int64_t iteration, int64_t bytes) = 0;
};

class Operation {
 public:
  /// Not ok: the device cannot do it; only withdraw() may follow.
  Status begin(std::shared_ptr<const Program> program, const Buffers& buffers, OperationHost* host, ParkedPool* pool,
               uint64_t generation);
  /// Issues what can be issued, up to a bounded amount of work. True if anything moved.
  bool advance();
  bool isComplete() const { return unfinished_.empty(); }
  /// The device failed.
  const Status& failure() const { return failure_; }

  /// A message for this operation. The caller has checked communicator, sequence and fingerprint.
  /// Not ok: it fits no receive step (scope kCommunicator).
  Status onMessage(const transport::FrameHeader& header, const void* payload);
  void onFetched(uint64_t token);
  void onReleased(uint64_t cookie);
  void onNativeDone(uint64_t token);
  void onDeviceDone(uint64_t token);
  /// Does a cookie or token belong to this operation?
  bool owns(uint64_t cookie) const { return (cookie >> kGenerationShift) == generation_; }

  /// Native calls are under way: somebody must look whether they have ended.
  bool awaitsNative() const { return native_open_ > 0; }

  /// Takes every message and call still under way back: afterwards no buffer is touched.
  void withdraw();
  /// Members whose part is missing: unreceived messages, or sends not taken.
  std::vector<int32_t> waitingFor() const;
  /// `has_left`: the member went on purpose, so what it had to do in native calls is done.
  bool needs(int32_t member, bool has_left = false) const;
  uint64_t bytesMoved() const { return bytes_moved_; }

 private:
  static constexpr int kGenerationShift = 28;
  struct StepState {
    int64_t issued = 0, completed = 0, total = 0;
    uint32_t done_mask = 0;  ///< iterations completed out of order, relative to `completed`
    Parked* parked_first = nullptr;
    Parked* parked_last = nullptr;
    int64_t parked = 0;
    int64_t staged = 0, sent = 0;  ///< of a send that bounces: copied, and gone out
    int64_t landed = 0;            ///< of a receive on a device: came from the peer, if not yet where it belongs
    int64_t slots = -1;            ///< where its staging begins; -1: it has none
  };
  bool dependenciesMet(const schedule::Step& step, int64_t iteration) const;
  bool issue(int32_t step_index);
  bool issueSend(int32_t index, const schedule::Step& step, StepState& state);
  bool goesInline(const schedule::Step& step, const transport::FrameHeader& header) const;
  bool issueReceive(int32_t index, StepState& state);
  bool issueNative(int32_t index, const schedule::Step& step, StepState& state);
  void findNextNative();
  const std::vector<int32_t>& circleOf(const schedule::Step& step) const {
    return schedule_->circles[step.stream].members;
  }
  void runLocal(const schedule::Step& step, StepState& state);
  int64_t window() const { return lane_ ? kDeviceWindow : kWindow; }

  // operation_device.cc
  Status beginOnDevice();
  bool reaches(int32_t peer) const;
  int64_t slotBytes(const schedule::Step& step) const;
  char* slot(int32_t index, int64_t iteration) const;
  void queueLocal(int32_t index, const schedule::Step& step, StepState& state);
  bool stageSend(int32_t index, const schedule::Step& step, StepState& state);
  bool sendStaged(int32_t index, const schedule::Step& step, StepState& state);
  void deliverToDevice(int32_t index, int64_t iteration, const transport::FrameHeader& header, const void* payload);
  bool finishReceive(int32_t index, int64_t iteration);
  bool noteFailure(const Status& status);  ///< false, always
  bool deliver(int32_t index, const transport::FrameHeader& header, const void* payload);
  void begun(int32_t index, int64_t iteration);
  void complete(int32_t index, int64_t iteration);
  int64_t bytesOf(const schedule::Step& step, int64_t iteration) const;
  char* place(const schedule::Operand& operand, int64_t iteration);
  uint64_t cookieOf(int32_t step, int64_t iteration) const;
  std::pair<int32_t, int64_t> placeOf(uint64_t token) const;  ///< step and iteration of a cookie

  std::shared_ptr<const Program> program_;
  const schedule::Schedule* schedule_ = nullptr;
  Buffers buffers_;
  OperationHost* host_ = nullptr;
  ParkedPool* pool_ = nullptr;
  uint64_t generation_ = 0;
  uint64_t bytes_moved_ = 0;
  int64_t work_left_ = 0;
  std::vector<StepState> states_;
  std::vector<int32_t> unfinished_;
  Lane* lane_ = nullptr;
  Status failure_;
  std::shared_ptr<std::vector<char>> scratch_store_;  ///< native calls under way keep it, too
  char* scratch_ = nullptr;
  bool is_traced_ = false;    ///< in chunks: what overlaps what is worth a record
  int32_t next_native_ = -1;  ///< the step whose next iteration is the rank's next native call; -1: none is left
  int64_t native_open_ = 0;   ///< native calls begun and not ended
};

}  // namespace jhetcc::engine
