// SPDX-License-Identifier: Apache-2.0
// Commands: looked up by text, planned in advance or asked from the planner's thread on a miss.
#include <charconv>

#include "base/hash.h"
#include "runtime/process.h"

namespace jhetcc::runtime {
namespace {

// The integer behind "key=" in an operation text, or `otherwise`.
int64_t numberOf(std::string_view text, std::string_view key, int64_t otherwise) {
  const std::string pattern = " " + std::string(key) + "=";
  const size_t found = text.find(pattern);
  if (found == std::string_view::npos) return otherwise;
  const char* begin = text.data() + found + pattern.size();
  int64_t value = otherwise;
  std::from_chars(begin, text.data() + text.size(), value);
  return value;
}

std::shared_ptr<engine::Command> makeCommand(std::string_view text) {
  auto command = std::make_shared<engine::Command>();
  command->text = text;
  command->text_hash = hashText(text);
  const std::string_view name = text.substr(0, text.find('('));
  command->point_to_point = name == "send" || name == "recv" || name == "sendrecv";
  if (command->point_to_point) {
    command->to = static_cast<int32_t>(numberOf(text, "to", -1));
    command->from = static_cast<int32_t>(numberOf(text, "from", -1));
    command->tag = static_cast<uint32_t>(numberOf(text, "tag", 0));
  }
  return command;
}

// Nobody waits for an answer to it.
bool isPlanned(const std::pair<const std::string_view, std::shared_ptr<const CommandSet>>& entry) {
  for (const auto& command : entry.second->by_slot) {
    if (command && !command->ready.load(std::memory_order_acquire)) return false;
  }
  return true;
}

}  // namespace

std::shared_ptr<const CommandSet> Process::commandSet(Communicator& communicator, std::string_view text, bool ask) {
  {
    std::shared_lock<std::shared_mutex> lock(table_mutex_);
    auto found = communicator.commands.find(text);
    if (found != communicator.commands.end()) return found->second;
  }
  std::unique_lock<std::shared_mutex> lock(table_mutex_);
  auto found = communicator.commands.find(text);
  if (found != communicator.commands.end()) return found->second;
  // Sizes that change for ever must not pile up: what is planned can be planned again.
  if (communicator.commands.size() >= kCommandsMax) std::erase_if(communicator.commands, isPlanned);
  auto commands = std::make_shared<CommandSet>();
  commands->text = text;
  for (int32_t member : communicator.member_of_slot) {
    commands->by_slot.push_back(member >= 0 ? makeCommand(text) : nullptr);
  }
  communicator.commands.emplace(std::string_view(commands->text), commands);
  if (ask) {
    std::lock_guard<std::mutex> plans_lock(plans_mutex_);
    plan_requests_.push_back({communicator.name, communicator.epoch,
                              static_cast<int32_t>(communicator.world_ranks.size()), std::string(text)});
    plans_changed_.notify_one();
  }
  return commands;
}

bool Process::hasPlan(const std::string& name, const std::string& text) {
  std::shared_ptr<Communicator> communicator = find(name);
  if (!communicator) return false;
  std::shared_lock<std::shared_mutex> lock(table_mutex_);
  return communicator->commands.count(text) > 0;
}

Status Process::answerPlan(const std::string& name, uint64_t epoch, const std::string& text,
                           const std::vector<std::pair<int32_t, std::string>>& schedules, const Status& failure) {
  std::shared_ptr<Communicator> communicator = find(name);
  if (!communicator || communicator->epoch != epoch) return unknownCommunicator(name);
  const std::shared_ptr<const CommandSet> commands = commandSet(*communicator, text, false);
  for (size_t slot = 0; slot < runners_.size(); ++slot) {
    engine::Command* command = commands->by_slot[slot].get();
    if (!command || command->ready.load(std::memory_order_acquire)) continue;
    Status mine = failure;
    std::shared_ptr<const engine::Program> program;
    if (mine.isOk()) {
      mine = Status(Kind::kInternal, Scope::kCall, "internal", text + ": the planner gave no schedule for this rank");
      for (const auto& [member, blob] : schedules) {
        if (member != communicator->member_of_slot[slot]) continue;
        auto schedule = schedule::decode(blob.data(), blob.size());
        mine = schedule.status();
        if (schedule.isOk()) program = engine::Program::make(std::move(schedule).value());
      }
    }
    {
      std::unique_lock<std::shared_mutex> lock(table_mutex_);
      if (command->ready.load(std::memory_order_relaxed)) continue;  // two answers to one request: the first counts
      command->program = std::move(program);
      command->failure = mine;
      command->ready.store(true, std::memory_order_release);
    }
    runners_[slot]->withEngine([](engine::Engine&) {});  // it may be waiting for this
  }
  return Status::ok();
}

std::optional<PlanRequest> Process::nextPlanRequest(int64_t timeout_ns) {
  std::unique_lock<std::mutex> lock(plans_mutex_);
  plans_changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                          [this] { return closing_ || !plan_requests_.empty(); });
  if (plan_requests_.empty()) return std::nullopt;
  PlanRequest request = std::move(plan_requests_.front());
  plan_requests_.pop_front();
  return request;
}

}  // namespace jhetcc::runtime
