// SPDX-License-Identifier: Apache-2.0
#include "pretend_library.h"

#include <algorithm>
#include <cstring>

#include "engine/reduce.h"

namespace jhetcc::engine::testing {
namespace {

using schedule::StepKind;

constexpr int64_t kDelayNs = 30'000;

bool sameHead(const NativeCall& a, const NativeCall& b) {
  return a.kind == b.kind && a.type == b.type && a.op == b.op && a.root == b.root && a.bytes == b.bytes;
}

}  // namespace

class PretendLibrary::Port final : public NativePort, public std::enable_shared_from_this<Port> {
 public:
  Port(PretendLibrary& library, uint64_t communicator, int32_t world_rank, int32_t self)
      : library_(library), communicator_(communicator), world_rank_(world_rank), self_(self) {}

  void start(NativeCall call) override {
    if (is_dropped_) library_.fail_("a native call after drop()");
    waiting_.push_back(std::move(call));
    next();
  }
  bool poll(NativeSink& sink) override {
    if (is_dropped_) library_.fail_("poll() after drop()");
    std::vector<std::pair<uint64_t, Status>> ended;
    ended.swap(ended_);
    for (const auto& [token, status] : ended) sink.onNativeDone(token, status);
    return !ended.empty();
  }
  void drop() override {
    is_dropped_ = true;
    library_.calls_given_up_ += is_busy_;
    waiting_.clear();
    ended_.clear();
  }

  /// One call at a time: the library blocks.
  void next() {
    if (is_busy_ || waiting_.empty() || !library_.is_up_(world_rank_)) return;
    is_busy_ = true;
    NativeCall call = std::move(waiting_.front());
    waiting_.pop_front();
    library_.begin(*this, std::move(call));
  }
  void end(const NativeCall& call, const std::vector<char>& result, const Status& status) {
    is_busy_ = false;
    if (!is_dropped_) {
      const bool is_left_alone = call.kind == StepKind::kNativeBroadcast && call.target == call.source;
      if (call.target && !is_left_alone && status.isOk()) {
        std::copy(result.begin(), result.end(), static_cast<char*>(library_.see(call.target, call.bytes)));
      }
      ended_.emplace_back(call.token, status);
    } else if (call.target && call.is_target_kept) {
      std::memset(call.target, 0xee, call.bytes);  // whoever gave the call up left it this memory
    }
    next();
  }

  PretendLibrary& library_;
  const uint64_t communicator_;
  const int32_t world_rank_, self_;
  std::map<std::vector<int32_t>, uint64_t> made_;  ///< by circle: calls begun here

 private:
  std::deque<NativeCall> waiting_;
  std::vector<std::pair<uint64_t, Status>> ended_;
  bool is_busy_ = false, is_dropped_ = false;
};

PretendLibrary::PretendLibrary(uint64_t seed, transport::sim::Network& network, std::function<bool(int)> is_up,
                               std::function<void(const std::string&)> fail)
    : random_(seed ^ 0xca11),
      network_(network),
      is_up_(std::move(is_up)),
      fail_(std::move(fail)),
      is_eager_(random_.below(2) == 0) {}

std::shared_ptr<NativePort> PretendLibrary::port(uint64_t communicator, const std::vector<int32_t>& world_ranks,
                                                 int32_t self) {
  return std::make_shared<Port>(*this, communicator, world_ranks[static_cast<size_t>(self)], self);
}

void PretendLibrary::begin(Port& port, NativeCall call) {
  ++calls_begun_;
  const std::vector<int32_t>& members = *call.members;
  Meeting& meeting = meetings_[{{port.communicator_, members}, port.made_[members]++}];
  meeting.parts.resize(members.size());
  const auto place = std::find(members.begin(), members.end(), port.self_);
  if (place == members.end()) return fail_("a native call of a circle that the rank is not in");
  for (const Part& other : meeting.parts) {
    if (other.port && !sameHead(other.call, call)) fail_("members of a native circle make different calls");
  }
  Part& part = meeting.parts[static_cast<size_t>(place - members.begin())];
  part.port = &port;
  part.call = std::move(call);
  if (part.call.source) {
    const char* source = static_cast<const char*>(see(part.call.source, part.call.bytes));
    part.data.assign(source, source + part.call.bytes);
  }
  if (!next_failure_.isOk()) std::swap(meeting.failure, next_failure_);
  ++meeting.begun;
  endWhatCan(meeting);
}

bool PretendLibrary::canEnd(const Meeting& meeting, size_t member) const {
  if (meeting.begun == meeting.parts.size()) return true;
  const NativeCall& call = meeting.parts[member].call;
  if (!is_eager_ || call.root < 0) return false;
  const bool is_root = static_cast<size_t>(call.root) == member;
  if (call.kind == StepKind::kNativeReduce) return !is_root;
  return is_root || meeting.parts[static_cast<size_t>(call.root)].port != nullptr;
}

std::vector<char> PretendLibrary::result(const Meeting& meeting) const {
  const auto first =
      std::find_if(meeting.parts.begin(), meeting.parts.end(), [](const Part& part) { return part.port; });
  const NativeCall& call = first->call;
  if (call.kind == StepKind::kNativeBroadcast) return meeting.parts[static_cast<size_t>(call.root)].data;
  std::vector<char> result(call.bytes);
  if (meeting.begun < meeting.parts.size()) return result;  // nobody looks at it
  std::vector<const void*> sources;
  for (const Part& part : meeting.parts) sources.push_back(part.data.data());
  reduce({result.data(), sources.data(), static_cast<int>(sources.size()), call.bytes, call.type, call.op, 0});
  return result;
}

void PretendLibrary::endWhatCan(Meeting& meeting) {
  for (size_t member = 0; member < meeting.parts.size(); ++member) {
    Part& part = meeting.parts[member];
    if (!part.port || part.is_told || !canEnd(meeting, member)) continue;
    part.is_told = true;
    const auto delay = static_cast<int64_t>(random_.below(kDelayNs));
    network_.at(network_.clock().nowNs() + delay,
                [port = part.port->shared_from_this(), call = part.call, data = result(meeting),
                 status = meeting.failure] { port->end(call, data, status); });
  }
}

}  // namespace jhetcc::engine::testing
