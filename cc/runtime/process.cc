// SPDX-License-Identifier: Apache-2.0
// The table of communicators and the calls on them; planning is in plans.cc.
#include "runtime/process.h"

#include <pthread.h>

#include <algorithm>

#include "base/hash.h"

namespace jhetcc::runtime {
namespace {

constexpr int64_t kPollNs = 2 * kNsPerMs;
constexpr size_t kRecordsKept = 8192;

// Counts forks on the child's side: threads and connections of an older generation are the parent's.
std::atomic<uint64_t>& forkGeneration() {
  static std::atomic<uint64_t> generation{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forkGeneration().fetch_add(1); });
  (void)registered;
  return generation;
}

/// A blocking caller's ticket: it never leaves.
class BlockingTicket final : public Ticket {
 public:
  using Ticket::Ticket;
  void resolve() override {}
};

}  // namespace

Result<std::shared_ptr<Process>> Process::create(const RunnerOptions& options, const std::vector<int32_t>& world_ranks,
                                                 const std::vector<int64_t>& ordinals) {
  std::shared_ptr<Process> process(new Process);
  Result<std::unique_ptr<trace::Recorder>> recorder = trace::Recorder::create(kRecordsKept);
  if (!recorder.isOk()) return recorder.status();
  process->trace_.recorder = std::move(recorder).value();
  for (size_t slot = 0; slot < world_ranks.size(); ++slot) {
    process->runners_.push_back(std::make_unique<Runner>(world_ranks[slot], options, process->clock_, process->trace_));
    process->slot_of_ordinal_[ordinals[slot]] = static_cast<int32_t>(slot);
  }
  return process;
}

Process::Process() : fork_generation_(forkGeneration().load()) {}

bool Process::isForked() const { return fork_generation_ != forkGeneration().load(std::memory_order_relaxed); }

Process::~Process() {
  if (isForked()) {
    for (auto& runner : runners_) (void)runner.release();  // its threads are in the parent; nothing here may wait for them
    return;
  }
  close(0);
}

void Process::addEndpoint(size_t slot, int32_t peer, std::unique_ptr<transport::Endpoint> endpoint) {
  auto rail = std::make_unique<rail::Rail>(peer, std::move(endpoint));
  runners_[slot]->withEngine([&](engine::Engine& engine) { engine.addRail(std::move(rail)); });
}

void Process::startThreads() {
  for (auto& runner : runners_) runner->startThreads();
}

Status Process::createCommunicator(const std::string& name, uint64_t epoch, std::vector<int32_t> world_ranks,
                                   std::vector<std::string> places) {
  auto communicator = std::make_shared<Communicator>();
  communicator->name = name;
  communicator->epoch = epoch;
  uint64_t id = hashNumber(epoch, hashText(name));
  for (int32_t rank : world_ranks) id = hashNumber(static_cast<uint64_t>(rank), id);
  communicator->id = id;
  communicator->world_ranks = world_ranks;
  std::vector<int32_t> members;
  for (size_t slot = 0; slot < runners_.size(); ++slot) {
    auto found = std::find(world_ranks.begin(), world_ranks.end(), runners_[slot]->worldRank());
    const bool is_member = found != world_ranks.end();
    communicator->member_of_slot.push_back(is_member ? static_cast<int32_t>(found - world_ranks.begin()) : -1);
    if (is_member) members.push_back(static_cast<int32_t>(slot));
  }
  if (members.size() == 1) communicator->only_slot = members[0];
  if (members.size() > 1) communicator->join = std::make_unique<LocalJoin>(members);
  {
    std::unique_lock<std::shared_mutex> lock(table_mutex_);
    if (communicators_.count(name)) {
      return Status(Kind::kBadArgument, Scope::kCommunicator, "bad_argument",
                    "a communicator named \"" + name + "\" exists already; close it first or choose another name");
    }
    communicators_[name] = communicator;
  }
  for (int32_t slot : members) {
    engine::CommunicatorSpec spec{name, id, epoch, communicator->member_of_slot[static_cast<size_t>(slot)], world_ranks, places};
    runners_[static_cast<size_t>(slot)]->withEngine([&](engine::Engine& engine) { engine.createCommunicator(spec); });
  }
  return Status::ok();
}

void Process::destroyCommunicator(const std::string& name) {
  std::shared_ptr<Communicator> communicator = find(name);
  if (!communicator) return;
  {
    std::unique_lock<std::shared_mutex> lock(table_mutex_);
    communicators_.erase(name);
  }
  for (size_t slot = 0; slot < runners_.size(); ++slot) {
    if (communicator->member_of_slot[slot] < 0) continue;
    runners_[slot]->withEngine([&](engine::Engine& engine) { engine.destroyCommunicator(communicator->id); });
  }
}

std::shared_ptr<Communicator> Process::find(std::string_view name) {
  std::shared_lock<std::shared_mutex> lock(table_mutex_);
  auto found = communicators_.find(name);
  return found == communicators_.end() ? nullptr : found->second;
}

Status Process::unknownCommunicator(std::string_view name) const {
  return Status(Kind::kBadArgument, Scope::kCommunicator, "closed",
                "no communicator named \"" + std::string(name) +
                    "\" in this process: it was closed, or jhetcc.init() or split() has not made it yet");
}

Result<int32_t> Process::slotOf(const Communicator& communicator, int64_t ordinal) const {
  if (communicator.only_slot >= 0) return communicator.only_slot;
  auto found = slot_of_ordinal_.find(ordinal);
  if (found == slot_of_ordinal_.end() || communicator.member_of_slot[static_cast<size_t>(found->second)] < 0) {
    return Status(Kind::kBadArgument, Scope::kCall, "bad_argument",
                  "device " + std::to_string(ordinal) + " is no member of communicator \"" + communicator.name +
                      "\"; run the operation on its member devices only");
  }
  return found->second;
}

Result<int32_t> Process::memberIndex(std::string_view name, int64_t ordinal) {
  std::shared_ptr<Communicator> communicator = find(name);
  if (!communicator) return unknownCommunicator(name);
  Result<int32_t> slot = slotOf(*communicator, ordinal);
  if (!slot.isOk()) return slot;
  return communicator->member_of_slot[static_cast<size_t>(slot.value())];
}

Result<Call> Process::callOf(const std::shared_ptr<Communicator>& communicator, std::string_view text, int32_t slot) {
  if (isForked()) {
    return Status(Kind::kUnavailable, Scope::kProcess, "forked",
                  std::string(text) + ": this process is a fork of the one that called jhetcc.init(); connections and threads do "
                                      "not survive a fork. Call init() after forking, or use the spawn start method");
  }
  CommandSet* commands = commandSet(*communicator, text, true);
  Call call;
  call.runner = runners_[static_cast<size_t>(slot)].get();
  call.command = commands->by_slot[static_cast<size_t>(slot)];
  call.join = call.command->point_to_point ? nullptr : communicator->join.get();
  call.slot = slot;
  call.size = static_cast<int64_t>(communicator->world_ranks.size());
  call.communicator = communicator->id;
  return call;
}

Result<Call> Process::prepareCall(std::string_view name, std::string_view text, int64_t ordinal) {
  std::shared_ptr<Communicator> communicator = find(name);
  if (!communicator) return unknownCommunicator(name);
  Result<int32_t> slot = slotOf(*communicator, ordinal);
  if (!slot.isOk()) return slot.status();
  return callOf(communicator, text, slot.value());
}

Result<Call> Process::prepareCallOfSlot(std::string_view name, std::string_view text, size_t slot) {
  std::shared_ptr<Communicator> communicator = find(name);
  if (!communicator) return unknownCommunicator(name);
  if (communicator->member_of_slot[slot] < 0) {
    return Status(Kind::kBadArgument, Scope::kCall, "bad_argument",
                  "rank " + std::to_string(runners_[slot]->worldRank()) + " is no member of \"" + communicator->name + "\"");
  }
  return callOf(communicator, text, static_cast<int32_t>(slot));
}

Status Process::run(std::string_view name, std::string_view text, const std::vector<engine::Buffers>& buffers,
                    const std::function<bool()>& interrupted) {
  std::shared_ptr<Communicator> communicator = find(name);
  if (!communicator) return unknownCommunicator(name);
  std::vector<Call> calls;
  for (size_t slot = 0; slot < runners_.size(); ++slot) {
    if (communicator->member_of_slot[slot] < 0) continue;
    Result<Call> call = callOf(communicator, text, static_cast<int32_t>(slot));
    if (!call.isOk()) return call.status();
    calls.push_back(std::move(call).value());
  }
  if (calls.size() != buffers.size()) {
    return Status(Kind::kBadArgument, Scope::kCall, "bad_argument",
                  std::string(text) + ": " + std::to_string(buffers.size()) + " buffers for " + std::to_string(calls.size()) +
                      " local ranks of \"" + communicator->name + "\"; give one a rank");
  }
  std::deque<BlockingTicket> tickets;
  for (const Call& call : calls) tickets.emplace_back(call.runner, call.join, call.slot);
  for (size_t k = 1; k < calls.size(); ++k) {
    engine::Request request{calls[k].communicator, calls[k].command, buffers[k], &tickets[k]};
    calls[k].runner->withEngine([&](engine::Engine& engine) { engine.start(std::move(request)); });
  }
  engine::Request request{calls[0].communicator, calls[0].command, buffers[0], &tickets[0]};
  bool done = calls[0].runner->drive(std::move(request), tickets[0], interrupted);
  const std::function<bool()> never = [] { return false; };
  Status status;
  for (size_t k = 0; k < calls.size(); ++k) {
    if (k > 0 && done) done = calls[k].runner->driveOn(tickets[k], interrupted);
    if (!done) {
      // Tickets live on this stack: end the operation everywhere first, which takes a bounded time.
      const Status cause(Kind::kAborted, Scope::kCommunicator, "interrupted", std::string(text) + " was interrupted by the user");
      for (const Call& call : calls) {
        call.runner->withEngine([&](engine::Engine& engine) { engine.abortCommunicator(call.communicator, cause, {}); });
      }
      calls[k].runner->driveOn(tickets[k], never);
      done = true;
    }
    if (status.isOk()) status = tickets[k].status();
  }
  return status;
}

Status Process::abort(const std::string& name, const std::string& reason, const std::string& code) {
  std::shared_ptr<Communicator> communicator = find(name);
  if (!communicator) return unknownCommunicator(name);
  for (size_t slot = 0; slot < runners_.size(); ++slot) {
    if (communicator->member_of_slot[slot] < 0) continue;
    const Status cause(Kind::kAborted, Scope::kCommunicator, code, reason, {runners_[slot]->worldRank()});
    runners_[slot]->withEngine([&](engine::Engine& engine) { engine.abortCommunicator(communicator->id, cause, {}); });
  }
  return Status::ok();
}

std::optional<control::Verdict> Process::verdict(const std::string& name) {
  std::shared_ptr<Communicator> communicator = find(name);
  std::optional<control::Verdict> verdict;
  for (size_t slot = 0; communicator && slot < runners_.size() && !verdict; ++slot) {
    if (communicator->member_of_slot[slot] < 0) continue;
    runners_[slot]->withEngine([&](engine::Engine& engine) {
      control::Membership* membership = engine.membership(communicator->id);
      if (membership) verdict = membership->verdict();
    });
  }
  return verdict;
}

Result<control::Survivors> Process::shrink(const std::string& name, int64_t timeout_ns,
                                           const std::function<bool()>& interrupted) {
  std::shared_ptr<Communicator> communicator = find(name);
  if (!communicator) return unknownCommunicator(name);
  const int64_t deadline = clock_.nowNs() + timeout_ns;
  std::optional<control::Survivors> survivors;
  const Status stopped(Kind::kAborted, Scope::kCall, "interrupted", "shrink() was interrupted");
  for (size_t slot = 0; slot < runners_.size(); ++slot) {
    if (communicator->member_of_slot[slot] < 0) continue;
    for (bool begun = false; !begun;) {  // after abort() the verdict takes a moment
      runners_[slot]->withEngine([&](engine::Engine& engine) {
        begun = engine.membership(communicator->id)->verdict() || clock_.nowNs() >= deadline;
        if (begun) engine.beginShrink(communicator->id, deadline);
      });
      if (begun) break;
      timespec nap{0, kPollNs};
      nanosleep(&nap, nullptr);
      if (interrupted()) return stopped;
    }
  }
  for (size_t slot = 0; slot < runners_.size(); ++slot) {
    if (communicator->member_of_slot[slot] < 0) continue;
    std::optional<control::Survivors> mine;
    Status failure;
    for (bool asked_once = false; !mine && failure.isOk(); asked_once = true) {
      if (asked_once) {
        timespec nap{0, kPollNs};
        nanosleep(&nap, nullptr);
        if (interrupted()) return stopped;
      }
      runners_[slot]->withEngine([&](engine::Engine& engine) {
        mine = engine.membership(communicator->id)->survivors();
        failure = engine.membership(communicator->id)->shrinkFailure();
      });
    }
    if (!failure.isOk()) return failure;
    survivors = mine;
  }
  return *survivors;
}

void Process::close(int64_t timeout_ns) {
  if (isForked()) return;
  {
    std::lock_guard<std::mutex> lock(plans_mutex_);
    if (closing_) return;
    closing_ = true;
  }
  plans_changed_.notify_all();
  const Status cause(Kind::kAborted, Scope::kProcess, "closed", "this process closed jhetcc");
  for (auto& runner : runners_) {
    runner->withEngine([&](engine::Engine& engine) {
      if (!engine.isIdle()) engine.abortAll(cause);
      engine.sayGoodbye();
    });
  }
  const int64_t deadline = clock_.nowNs() + timeout_ns;
  for (auto& runner : runners_) {
    for (bool busy = true; busy && clock_.nowNs() < deadline;) {
      runner->withEngine([&](engine::Engine& engine) { busy = !engine.isIdle() || engine.hasOutput(); });
      if (busy) {
        timespec nap{0, kPollNs};
        nanosleep(&nap, nullptr);
      }
    }
    runner->stop();
  }
}

}  // namespace jhetcc::runtime
