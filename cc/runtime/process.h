// SPDX-License-Identifier: Apache-2.0
// This process's part of a job: its ranks, the table of communicators, the commands planned for them.
// Any thread. The only place that knows which concrete transport joins two ranks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "runtime/native.h"
#include "runtime/runner.h"
#include "runtime/ticket.h"
#include "trace/trace.h"

namespace jhetcc::runtime {

/// One operation text on one communicator: a command per local rank.
constexpr size_t kCommandsMax = 1024;
struct CommandSet {
  std::string text;
  std::vector<std::shared_ptr<engine::Command>> by_slot;  ///< null where the local rank is no member
};

struct Communicator {
  std::string name;
  uint64_t id = 0, epoch = 0;
  std::vector<int32_t> world_ranks;
  std::vector<int32_t> member_of_slot;                 ///< local rank -> index, -1: no member
  int32_t only_slot = -1;                              ///< the one local member, if there is just one
  std::shared_ptr<LocalJoin> join;                     ///< where several local ranks are members
  std::vector<std::shared_ptr<NativeWorker>> natives;  ///< of the local ranks whose cluster has a library
  /// Keys point into the sets. At most kCommandsMax and those being planned; calls under way keep theirs.
  std::unordered_map<std::string_view, std::shared_ptr<const CommandSet>> commands;
  std::atomic<bool> closed{false};  ///< destroyed, replaced or the process closed: what was made ready fails
  std::atomic<bool> in_blocking_call{false};
};

/// A blocking call made ready: nothing is looked up any more. Outlives its communicator: it then fails with "closed".
struct Prepared {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<const CommandSet> commands;
};

/// The planner's thread takes these and answers with answerPlan().
struct PlanRequest {
  std::string communicator;
  uint64_t epoch = 0;
  int32_t size = 0;
  std::string text;
};

/// One member's share of a call, found for a device.
struct Call {
  Runner* runner = nullptr;
  std::shared_ptr<LocalJoin> join;
  int32_t slot = 0;
  int64_t size = 0;  ///< ranks of the communicator
  uint64_t communicator = 0;
  std::shared_ptr<const engine::Command> command;
};

/// What a local rank's call on its device works on: memory of the device, in the order of a stream of its.
struct DeviceBuffers {
  engine::Buffers buffers;
  device::Stream stream = nullptr;
};

class Paths;

class Process : public std::enable_shared_from_this<Process> {
 public:
  /// `ordinals[k]` is what XLA calls the device of local rank k. `births_before`: so often every communicator counts as
  /// made already; alike in all processes.
  static Result<std::shared_ptr<Process>> create(const RunnerOptions& options, const std::vector<int32_t>& world_ranks,
                                                 const std::vector<int64_t>& ordinals, uint64_t births_before = 0);
  ~Process();

  size_t localRanks() const { return runners_.size(); }
  Runner& runner(size_t slot) { return *runners_[slot]; }
  const Clock& clock() const { return clock_; }
  trace::Trace& trace() { return trace_; }
  const trace::Counters& counters() const { return trace_.counters; }
  void addEndpoint(size_t slot, int32_t peer, std::unique_ptr<transport::Endpoint> endpoint);
  /// Keeps what connects this process's ranks anew; close() ends it.
  void keepPaths(std::shared_ptr<Paths> paths) { paths_ = std::move(paths); }
  void startThreads();

  /// The vendor's library of this process's cluster; communicators made from now on can call it.
  void useLibrary(std::shared_ptr<const LibraryInUse> in_use) { library_ = std::move(in_use); }

  Status createCommunicator(const std::string& name, uint64_t epoch, std::vector<int32_t> world_ranks,
                            std::vector<std::string> places);
  void destroyCommunicator(const std::string& name);
  /// Null when there is none of this name. Valid until destroyed.
  std::shared_ptr<Communicator> find(std::string_view name);

  /// Planned in advance (lowering) or on request: binary schedules by member index.
  Status answerPlan(const std::string& communicator, uint64_t epoch, const std::string& text,
                    const std::vector<std::pair<int32_t, std::string>>& schedules, const Status& failure);
  bool hasPlan(const std::string& communicator, const std::string& text);
  std::optional<PlanRequest> nextPlanRequest(int64_t timeout_ns);

  /// The local rank that executes on this device and the command for it; asks the planner when there is none yet.
  Result<Call> prepareCall(std::string_view communicator, std::string_view text, int64_t ordinal);
  Result<int32_t> memberIndex(std::string_view communicator, int64_t ordinal);

  Result<Prepared> prepareBlocking(std::string_view communicator, std::string_view text);
  /// One blocking call by all `count` local members, buffers in slot order. Interrupted: the communicator is aborted.
  Status run(const Prepared& prepared, const engine::Buffers* buffers, size_t count,
             const std::function<bool()>& interrupted);

  /// Before startThreads(): calls of this local rank by start() are on memory of this device.
  Status useDevice(size_t slot, std::shared_ptr<device::Device> device, engine::Lane::Reducer reducer);
  /// A call by all local members on their devices' streams, under way. Ends it before it goes; keeps the process.
  class StreamCall {
   public:
    ~StreamCall();
    bool isDone() const;
    /// Interrupted: the communicator is aborted.
    Status wait(const std::function<bool()>& interrupted);

   private:
    friend class Process;
    StreamCall(std::shared_ptr<Process> process, std::vector<Call> calls)
        : process_(std::move(process)), calls_(std::move(calls)) {}
    const std::shared_ptr<Process> process_;
    std::vector<Call> calls_;
    std::deque<BlockingTicket> tickets_;
  };
  /// Returns at once; what is queued on the streams before comes before it, what is queued later comes after it, though
  /// it failed. Where a device's streams cannot wait for a value, returns when the call has ended (ADR 30).
  Result<std::unique_ptr<StreamCall>> start(const Prepared& prepared, const DeviceBuffers* buffers, size_t count,
                                            const std::function<bool()>& interrupted);

  Status abort(const std::string& communicator, const std::string& reason, const std::string& code);
  std::optional<control::Verdict> verdict(const std::string& communicator);
  /// Blocks until the survivors agreed or the deadline.
  Result<control::Survivors> shrink(const std::string& communicator, int64_t timeout_ns,
                                    const std::function<bool()>& interrupted);

  /// Says goodbye, lets output drain until the deadline, ends all threads. Pending operations fail with "closed".
  void close(int64_t timeout_ns);

 private:
  Process(uint64_t births_before, int64_t spin_ns);
  bool isForked() const;
  std::shared_ptr<const CommandSet> commandSet(Communicator& communicator, std::string_view text, bool ask);
  Status forkedStatus(const std::string& text) const;
  static void forgetCalls();  ///< names changed their meaning: nothing remembered by text holds any more
  Call callOf(const Communicator& communicator, const CommandSet& commands, int32_t slot);
  Status runMany(const Prepared& prepared, const engine::Buffers* buffers, size_t count,
                 const std::function<bool()>& interrupted);
  Result<std::vector<Call>> callsOf(const Prepared& prepared, size_t count);
  Status awaitAll(const std::vector<Call>& calls, std::deque<BlockingTicket>& tickets, bool is_interrupted,
                  const std::function<bool()>& interrupted);
  Status mayRun(const Prepared& prepared, const engine::Buffers& buffers) const;
  static Status secondThread(const Prepared& prepared);
  void endInterrupted(const Call& call);
  Result<int32_t> slotOf(const Communicator& communicator, int64_t ordinal) const;
  Status unknownCommunicator(std::string_view name) const;

  SystemClock clock_;
  trace::Trace trace_;
  std::vector<std::unique_ptr<Runner>> runners_;
  std::map<int64_t, int32_t> slot_of_ordinal_;
  std::shared_ptr<const LibraryInUse> library_;
  std::shared_ptr<Paths> paths_;
  const int64_t spin_ns_;

  const uint64_t fork_generation_;
  const uint64_t births_before_;
  mutable std::shared_mutex table_mutex_;  ///< guards communicators_ and every command table
  std::map<std::string, std::shared_ptr<Communicator>, std::less<>> communicators_;
  std::unordered_map<uint64_t, uint64_t>
      births_;  ///< by (name, members, epoch): how often made here; alike on all members

  std::mutex plans_mutex_;
  std::condition_variable plans_changed_;
  std::deque<PlanRequest> plan_requests_;
  bool closing_ = false;
};

}  // namespace jhetcc::runtime
