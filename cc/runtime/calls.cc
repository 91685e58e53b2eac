// SPDX-License-Identifier: Apache-2.0
// Calls on communicators: those of a device, found by text, and blocking ones. Any thread.
#include <algorithm>
#include <array>

#include "runtime/process.h"

namespace jhetcc::runtime {
namespace {

/// A result may take the place of its input, all of it or nothing: schedules know of no other overlap.
bool overlapsPartly(const engine::Buffers& buffers) {
  const auto input = reinterpret_cast<uintptr_t>(buffers.input), output = reinterpret_cast<uintptr_t>(buffers.output);
  if (input == output && buffers.input_bytes == buffers.output_bytes) return false;
  return input < output + buffers.output_bytes && output < input + buffers.input_bytes;
}

class Flag {
 public:
  explicit Flag(std::atomic<bool>& flag) : flag_(flag), taken_(!flag.exchange(true, std::memory_order_acquire)) {}
  ~Flag() {
    if (taken_) flag_.store(false, std::memory_order_release);
  }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;
  bool isTaken() const { return taken_; }

 private:
  std::atomic<bool>& flag_;
  const bool taken_;
};

// Grows whenever a name may mean another communicator than before; in all processes of this address space (tests have
// several).
std::atomic<uint64_t> table_generation{1};

/// The last calls of this thread, so that a program's operations are not looked up under locks each time.
struct RememberedCall {
  const Process* process = nullptr;
  uint64_t generation = 0;
  int64_t ordinal = 0;
  std::string communicator, text;
  Call call;
};
constexpr size_t kRememberedCalls = 16;
thread_local std::array<RememberedCall, kRememberedCalls> remembered_calls;

}  // namespace

Status Process::forkedStatus(const std::string& text) const {
  return Status(
      Kind::kUnavailable, Scope::kProcess, "forked",
      text +
          ": this process is a fork of the one that called jhetcc.init(); connections and threads do not survive a "
          "fork. Call init() after forking, or use the spawn start method");
}

void Process::forgetCalls() { table_generation.fetch_add(1); }

Call Process::callOf(const Communicator& communicator, const CommandSet& commands, int32_t slot) {
  Call call;
  call.runner = runners_[static_cast<size_t>(slot)].get();
  call.command = commands.by_slot[static_cast<size_t>(slot)];
  call.join = call.command->point_to_point ? nullptr : communicator.join;
  call.slot = slot;
  call.size = static_cast<int64_t>(communicator.world_ranks.size());
  call.communicator = communicator.id;
  return call;
}

Result<Call> Process::prepareCall(std::string_view name, std::string_view text, int64_t ordinal) {
  if (isForked()) return forkedStatus(std::string(text));
  // Where XLA keeps the text tells operations of one program apart; the text itself is what counts.
  const size_t place = (reinterpret_cast<uintptr_t>(text.data()) >> 4) + static_cast<size_t>(ordinal);
  RememberedCall& remembered = remembered_calls[place % kRememberedCalls];
  const uint64_t generation = table_generation.load(std::memory_order_acquire);
  if (remembered.generation == generation && remembered.process == this && remembered.ordinal == ordinal &&
      remembered.text == text && remembered.communicator == name) {
    return remembered.call;
  }
  std::shared_ptr<Communicator> communicator = find(name);
  if (!communicator) return unknownCommunicator(name);
  Result<int32_t> slot = slotOf(*communicator, ordinal);
  if (!slot.isOk()) return slot.status();
  remembered.call = callOf(*communicator, *commandSet(*communicator, text, true), slot.value());
  remembered.process = this;
  remembered.generation = generation;
  remembered.ordinal = ordinal;
  remembered.text = text;
  remembered.communicator = name;
  return remembered.call;
}

Result<Prepared> Process::prepareBlocking(std::string_view name, std::string_view text) {
  std::shared_ptr<Communicator> communicator = find(name);
  if (!communicator || communicator->closed.load()) return unknownCommunicator(name);
  std::shared_ptr<const CommandSet> commands = commandSet(*communicator, text, true);
  return Prepared{std::move(communicator), std::move(commands)};
}

/// The ticket lives on the caller's stack: the operation must end first, which takes a bounded time.
void Process::endInterrupted(const Call& call) {
  const Status cause(Kind::kAborted, Scope::kCommunicator, "interrupted",
                     call.command->text + " was interrupted by the user");
  call.runner->withEngine([&](engine::Engine& engine) { engine.abortCommunicator(call.communicator, cause, {}); });
}

/// What a call can be refused for before anything is started.
Status Process::mayRun(const Prepared& prepared, const engine::Buffers& buffers) const {
  if (isForked()) return forkedStatus(prepared.commands->text);
  if (prepared.communicator->closed.load(std::memory_order_acquire)) {
    return Status(Kind::kAborted, Scope::kCommunicator, "closed",
                  prepared.commands->text + ": \"" + prepared.communicator->name +
                      "\" was closed or replaced by shrink(); use the new one");
  }
  if (!overlapsPartly(buffers)) return Status::ok();
  return Status(Kind::kBadArgument, Scope::kCall, "overlap",
                prepared.commands->text +
                    ": out= shares part of its memory with the input. Give an array of its own, "
                    "or, where both have the same size, the input itself");
}

Status Process::secondThread(const Prepared& prepared) {
  return Status(Kind::kBadArgument, Scope::kCall, "second_thread",
                prepared.commands->text + ": another thread is in an operation on \"" + prepared.communicator->name +
                    "\"; operations of one rank have one order, so one thread must issue them");
}

Status Process::run(const Prepared& prepared, const engine::Buffers* buffers, size_t count,
                    const std::function<bool()>& interrupted) {
  Communicator& communicator = *prepared.communicator;
  for (size_t k = 0; k < count; ++k) JHETCC_RETURN_IF_ERROR(mayRun(prepared, buffers[k]));
  const Flag flag(communicator.in_blocking_call);
  if (!flag.isTaken()) return secondThread(prepared);
  if (communicator.only_slot < 0 || count != 1) return runMany(prepared, buffers, count, interrupted);
  Call call = callOf(communicator, *prepared.commands, communicator.only_slot);
  BlockingTicket ticket(call.runner, nullptr, call.slot);
  if (!call.runner->drive({call.communicator, call.command, buffers[0], &ticket, {}}, ticket, interrupted)) {
    endInterrupted(call);
    call.runner->driveOn(ticket, [] { return false; });
  }
  return ticket.status();
}

Result<std::vector<Call>> Process::callsOf(const Prepared& prepared, size_t count) {
  const Communicator& communicator = *prepared.communicator;
  std::vector<Call> calls;
  for (size_t slot = 0; slot < runners_.size(); ++slot) {
    if (communicator.member_of_slot[slot] < 0) continue;
    calls.push_back(callOf(communicator, *prepared.commands, static_cast<int32_t>(slot)));
  }
  if (!calls.empty() && calls.size() == count) return calls;
  return Status(Kind::kBadArgument, Scope::kCall, "bad_argument",
                prepared.commands->text + ": " + std::to_string(count) + " buffers for " +
                    std::to_string(calls.size()) + " local ranks of \"" + communicator.name + "\"; give one a rank");
}

Status Process::runMany(const Prepared& prepared, const engine::Buffers* buffers, size_t count,
                        const std::function<bool()>& interrupted) {
  const Result<std::vector<Call>> found = callsOf(prepared, count);
  if (!found.isOk()) return found.status();
  const std::vector<Call>& calls = found.value();
  std::deque<BlockingTicket> tickets;
  for (const Call& call : calls) tickets.emplace_back(call.runner, call.join, call.slot);
  for (size_t k = 1; k < calls.size(); ++k) {
    engine::Request request{calls[k].communicator, calls[k].command, buffers[k], &tickets[k], {}};
    calls[k].runner->withEngine([&](engine::Engine& engine) { engine.start(std::move(request)); });
  }
  engine::Request request{calls[0].communicator, calls[0].command, buffers[0], &tickets[0], {}};
  const bool done = calls[0].runner->drive(std::move(request), tickets[0], interrupted);
  return awaitAll(calls, tickets, !done, interrupted);
}

/// Drives until all have ended; once interrupted, until they have ended for that.
Status Process::awaitAll(const std::vector<Call>& calls, std::deque<BlockingTicket>& tickets, bool is_interrupted,
                         const std::function<bool()>& interrupted) {
  const std::function<bool()> never = [] { return false; };
  bool is_told = false;
  Status status;
  for (size_t k = 0; k < calls.size(); ++k) {
    while (!tickets[k].done()) {
      if (!is_interrupted) is_interrupted = !calls[k].runner->driveOn(tickets[k], interrupted);
      if (!is_interrupted) continue;
      if (!is_told) {
        for (const Call& call : calls) endInterrupted(call);
      }
      is_told = true;
      calls[k].runner->driveOn(tickets[k], never);
    }
    if (status.isOk()) status = tickets[k].status();
  }
  return status;
}

Status Process::useDevice(size_t slot, std::shared_ptr<device::Device> device, engine::Lane::Reducer reducer) {
  Result<std::unique_ptr<engine::Lane>> lane = engine::Lane::create(std::move(device), std::move(reducer));
  if (!lane.isOk()) return lane.status();
  runners_[slot]->withEngine([&](engine::Engine& engine) { engine.useDevice(std::move(lane).value()); });
  return Status::ok();
}

Result<std::unique_ptr<Process::StreamCall>> Process::start(const Prepared& prepared, const DeviceBuffers* buffers,
                                                            size_t count, const std::function<bool()>& interrupted) {
  for (size_t k = 0; k < count; ++k) JHETCC_RETURN_IF_ERROR(mayRun(prepared, buffers[k].buffers));
  const Flag flag(prepared.communicator->in_blocking_call);
  if (!flag.isTaken()) return secondThread(prepared);
  Result<std::vector<Call>> calls = callsOf(prepared, count);
  if (!calls.isOk()) return calls.status();
  std::unique_ptr<StreamCall> made(new StreamCall(shared_from_this(), std::move(calls).value()));
  bool must_wait = false;
  for (size_t k = 0; k < count; ++k) {
    const Call& call = made->calls_[k];
    Status entered;
    call.runner->withEngine([&](engine::Engine& engine) {
      if (engine.lane() == nullptr) {
        entered = Status(Kind::kBadArgument, Scope::kCall, "bad_argument",
                         "this rank has no device: give it one before it starts");
        return;
      }
      Result<engine::Turn> turn = engine.lane()->enter(buffers[k].stream);
      entered = turn.status();
      must_wait |= engine.lane()->mustWait();
      if (!entered.isOk()) return;
      BlockingTicket& ticket = made->tickets_.emplace_back(call.runner, call.join, call.slot);
      engine.start({call.communicator, call.command, buffers[k].buffers, &ticket, turn.value()});
    });
    if (entered.isOk()) continue;
    const Status cause = entered.withContext(call.command->text);
    if (!made->tickets_.empty()) {  // some have begun: all end
      call.runner->withEngine([&](engine::Engine& engine) { engine.abortCommunicator(call.communicator, cause, {}); });
    }
    made->calls_.resize(made->tickets_.size());
    return cause;
  }
  if (must_wait) (void)made->wait(interrupted);
  return made;
}

Status Process::StreamCall::wait(const std::function<bool()>& interrupted) {
  return process_->awaitAll(calls_, tickets_, false, interrupted);
}

bool Process::StreamCall::isDone() const {
  return std::all_of(tickets_.begin(), tickets_.end(), [](const BlockingTicket& ticket) { return ticket.done(); });
}

Process::StreamCall::~StreamCall() {
  (void)wait([] { return false; });
}

}  // namespace jhetcc::runtime
