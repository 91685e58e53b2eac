// SPDX-License-Identifier: Apache-2.0
// The table of communicators and how they end; calls on them are in calls.cc, planning is in plans.cc.
#include "runtime/process.h"

#include <pthread.h>

#include <algorithm>

#include "base/hash.h"
#include "runtime/paths.h"
#include "transport/tcp/tcp.h"

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

}  // namespace

Result<std::shared_ptr<Process>> Process::create(const RunnerOptions& options, const std::vector<int32_t>& world_ranks,
                                                 const std::vector<int64_t>& ordinals, uint64_t births_before) {
  std::shared_ptr<Process> process(new Process(births_before, options.spin_ns));
  Result<std::unique_ptr<trace::Recorder>> recorder = trace::Recorder::create(kRecordsKept);
  if (!recorder.isOk()) return recorder.status();
  process->trace_.recorder = std::move(recorder).value();
  for (size_t slot = 0; slot < world_ranks.size(); ++slot) {
    process->runners_.push_back(std::make_unique<Runner>(world_ranks[slot], options, process->clock_, process->trace_));
    process->runners_.back()->withEngine([](engine::Engine& engine) {
      engine.useRelays([](Fd socket, const std::string& text) {
        return transport::tcp::create(std::move(socket), transport::tcp::Options{}, text);
      });
    });
    process->slot_of_ordinal_[ordinals[slot]] = static_cast<int32_t>(slot);
  }
  return process;
}

Process::Process(uint64_t births_before, int64_t spin_ns)
    : spin_ns_(spin_ns), fork_generation_(forkGeneration().load()), births_before_(births_before) {}

bool Process::isForked() const { return fork_generation_ != forkGeneration().load(std::memory_order_relaxed); }

Process::~Process() {
  if (isForked()) {
    for (auto& runner : runners_)
      (void)runner.release();  // its threads are in the parent; nothing here may wait for them
    // Nor may a vendor's library be called here.
    new std::map(std::move(communicators_));
    new std::shared_ptr(std::move(library_));
    new std::shared_ptr(std::move(paths_));
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
  communicator->world_ranks = world_ranks;
  std::vector<int32_t> members;
  for (size_t slot = 0; slot < runners_.size(); ++slot) {
    auto found = std::find(world_ranks.begin(), world_ranks.end(), runners_[slot]->worldRank());
    const bool is_member = found != world_ranks.end();
    communicator->member_of_slot.push_back(is_member ? static_cast<int32_t>(found - world_ranks.begin()) : -1);
    if (is_member) members.push_back(static_cast<int32_t>(slot));
  }
  if (members.size() == 1) communicator->only_slot = members[0];
  if (members.size() > 1) communicator->join = std::make_shared<LocalJoin>(members);
  {
    std::unique_lock<std::shared_mutex> lock(table_mutex_);
    // Made again after close(): its first messages may come while this process still drops those of its former life.
    id = hashNumber(births_before_ + births_[id]++, id);
    communicator->id = id;
    if (communicators_.count(name)) {
      return Status(Kind::kBadArgument, Scope::kCommunicator, "bad_argument",
                    "a communicator named \"" + name + "\" exists already; close it first or choose another name");
    }
    communicators_[name] = communicator;
    forgetCalls();
  }
  for (int32_t slot : members) {
    engine::CommunicatorSpec spec{name,        id,     epoch,  communicator->member_of_slot[static_cast<size_t>(slot)],
                                  world_ranks, places, nullptr};
    Runner* runner = runners_[static_cast<size_t>(slot)].get();
    const auto inCluster = [&](int32_t rank) {
      return std::count(library_->world_ranks.begin(), library_->world_ranks.end(), rank) > 0;
    };
    if (library_ && inCluster(runner->worldRank())) {
      std::shared_ptr<device::Device> device;
      runner->withEngine([&](engine::Engine& engine) {
        if (engine.lane() != nullptr) device = engine.lane()->device();
      });
      communicator->natives.push_back(std::make_shared<NativeWorker>(
          library_, id, world_ranks, runner->worldRank(), [runner] { runner->wake(); }, spin_ns_, std::move(device)));
      spec.native = communicator->natives.back();
    }
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
    communicator->closed.store(true);
    forgetCalls();
  }
  bool is_whole = true;
  for (size_t slot = 0; slot < runners_.size(); ++slot) {
    if (communicator->member_of_slot[slot] < 0) continue;
    runners_[slot]->withEngine([&](engine::Engine& engine) {
      const control::Membership* membership = engine.membership(communicator->id);
      for (size_t member = 0; membership && member < communicator->world_ranks.size(); ++member) {
        is_whole = is_whole && !membership->verdict() && !membership->isGone(static_cast<int>(member));
      }
      engine.destroyCommunicator(communicator->id);
    });
  }
  for (auto& native : communicator->natives) native->end(is_whole);
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
  {
    std::unique_lock<std::shared_mutex> lock(table_mutex_);
    for (auto& [name, communicator] : communicators_) communicator->closed.store(true);
  }
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
      runner->withEngine(
          [&](engine::Engine& engine) { busy = !engine.isIdle() || engine.hasOutput() || engine.hasUnacknowledged(); });
      if (busy) {
        timespec nap{0, kPollNs};
        nanosleep(&nap, nullptr);
      }
    }
    // Whoever does not drive an operation would wait for it for ever, and so would a device's stream.
    runner->withEngine([&](engine::Engine& engine) { engine.endAll(cause); });
  }
  if (paths_) paths_->stop();
  for (auto& runner : runners_) runner->stop();  // when all have ended: local ranks end together
  if (library_) library_->is_closing.store(true);
  for (auto& [name, communicator] : communicators_) {
    for (auto& native : communicator->natives) native->end();
  }
  if (!library_) return;
  closeLibrary(library_, std::max<int64_t>(deadline - clock_.nowNs(), 0));
  library_ = nullptr;
}

}  // namespace jhetcc::runtime
