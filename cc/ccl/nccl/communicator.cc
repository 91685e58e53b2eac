// SPDX-License-Identifier: Apache-2.0
#include "ccl/nccl/communicator.h"

#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/log.h"

namespace jhetcc::ccl::nccl {

namespace {

constexpr int64_t kAbortWaitNs = 1'000'000'000;
constexpr auto kPoll = std::chrono::microseconds(50);
constexpr int kYields = 200;

/// Broken by itself, not by our arguments: nothing works on such a communicator any more.
bool isFatal(const Status& status) { return !status.isOk() && status.kind() != Kind::kBadArgument; }

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<const Abi> abi, const Group& group, int64_t timeout_ns)
    : abi_(std::move(abi)), rank_(group.rank), size_(group.size), timeout_ns_(timeout_ns) {}

Result<std::unique_ptr<Communicator>> NcclCommunicator::create(std::shared_ptr<const Abi> abi, const Group& group,
                                                               int64_t timeout_ns, const std::atomic<bool>& is_left) {
  UniqueId id;
  if (group.token.size() != sizeof(id.bytes)) {
    return Status(Kind::kBadArgument, Scope::kCall, "bad_argument",
                  "a token of " + abi->name + " has " + std::to_string(sizeof(id.bytes)) + " bytes, this one " +
                      std::to_string(group.token.size()));
  }
  std::memcpy(id.bytes, group.token.data(), sizeof(id.bytes));
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(abi, group, timeout_ns));
  const char* what = "creating a communicator";
  Status status;
  if (abi->isNonBlocking()) {
    const Config config;
    const int result = abi->comm_init_rank_config(&made->comm_, group.size, id, group.rank, &config);
    status = made->settle(what, result, &is_left);
  } else {
    const int result = abi->comm_init_rank(&made->comm_, group.size, id, group.rank);
    if (result != kSuccess) status = made->failure(what, result);
  }
  if (status.isOk()) return std::unique_ptr<Communicator>(std::move(made));
  made->ended_ = status;
  return status;  // the destructor aborts what there is
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr) return;
  if (ended_.isOk()) {
    Status status;
    if (abi_->isNonBlocking()) {
      status = settle("finishing a communicator", abi_->comm_finalize(comm_));
    } else {
      int error = kSuccess;
      const int result = abi_->comm_get_async_error(comm_, &error);
      if (result != kSuccess || error != kSuccess) status = failure("finishing a communicator", error);
    }
    if (status.isOk()) {
      abi_->comm_destroy(comm_);
      return;
    }
    JHETCC_LOG(kWarn, "ccl", "a communicator is aborted instead of finished: " + status.message());
  }
  abi_->comm_abort(comm_);
}

Status NcclCommunicator::failure(const char* what, int result) const {
  std::string text = std::string(what) + " failed on rank " + std::to_string(rank_) + " of " + std::to_string(size_) +
                     " of a cluster: " + abi_->get_error_string(result) + " (" + std::to_string(result) + ")";
  if (abi_->get_last_error != nullptr) {
    const char* more = abi_->get_last_error(comm_);
    if (more != nullptr && *more != 0) text += ": " + std::string(more);
  }
  text += "; " + abi_->name + " " + abi_->version + " from " + abi_->library.name();
  if (result == kInvalidArgument || result == kInvalidUsage) {
    return Status(Kind::kBadArgument, Scope::kCall, "library_failed", text);
  }
  if (result == kRemoteError) return Status(Kind::kDisconnected, Scope::kCommunicator, "library_failed", text);
  if (text.find("NCCL_DEBUG") == std::string::npos) text += "; NCCL_DEBUG=INFO makes the library tell more";
  return Status(Kind::kUnavailable, Scope::kCommunicator, "library_failed", text);
}

Status NcclCommunicator::settle(const char* what, int result, const std::atomic<bool>* is_left) {
  const int64_t deadline_ns = clock_.nowNs() + timeout_ns_;
  for (int polls = 0; result == kInProgress; ++polls) {
    {
      const std::lock_guard lock(mutex_);
      if (!ended_.isOk()) return ended_;
    }
    if (is_left != nullptr && is_left->load()) {
      return Status(Kind::kAborted, Scope::kCommunicator, "aborted",
                    std::string(what) + " was given up on rank " + std::to_string(rank_) + " of " +
                        std::to_string(size_) + " of a cluster; " + abi_->name + " " + abi_->version);
    }
    if (polls < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPoll);
    }
    const bool is_late = clock_.nowNs() >= deadline_ns;  // before it is asked: whoever was held up asks once more
    int state = kSuccess;
    const int asked = abi_->comm_get_async_error(comm_, &state);
    result = asked == kSuccess ? state : asked;
    if (result == kInProgress && is_late) {
      return Status(Kind::kTimeout, Scope::kCommunicator, "library_timeout",
                    std::string(what) + " did not end in " + std::to_string(timeout_ns_ / kNsPerMs) + " ms on rank " +
                        std::to_string(rank_) + " of " + std::to_string(size_) +
                        " of a cluster: a member is missing, or hangs; " + abi_->name + " " + abi_->version);
    }
  }
  return result == kSuccess ? Status::ok() : failure(what, result);
}

Status NcclCommunicator::takeTurn() {
  std::unique_lock lock(mutex_);
  // Whoever else has it asks for an error, which is short.
  changed_.wait(lock, [this] { return !has_turn_ || !ended_.isOk(); });
  if (!ended_.isOk()) return ended_;
  has_turn_ = true;
  return Status::ok();
}

void NcclCommunicator::giveTurn(const Status& outcome) {
  {
    const std::lock_guard lock(mutex_);
    has_turn_ = false;
    if (isFatal(outcome) && ended_.isOk()) ended_ = outcome;
  }
  changed_.notify_all();
}

Status NcclCommunicator::call(const char* what, const std::function<int(Comm)>& function) {
  JHETCC_RETURN_IF_ERROR(takeTurn());
  const Status outcome = settle(what, function(comm_));
  giveTurn(outcome);
  return outcome;
}

Status NcclCommunicator::reduction(const char* what, size_t count, schedule::DataType type, schedule::ReduceOp op,
                                   const std::function<int(Comm, const Element&, size_t)>& function) {
  const std::optional<Element> element = elementOf(*abi_, type, op);
  if (!element) {
    return Status(Kind::kUnavailable, Scope::kCall, "unavailable",
                  std::string(what) + ": " + abi_->name + " " + abi_->version + " has no reduction " +
                      std::to_string(static_cast<int>(op)) + " of the element type " +
                      std::to_string(static_cast<int>(type)) + "; the owner reduces instead");
  }
  if (count == 0) return Status::ok();
  return call(what, [&](Comm comm) { return function(comm, *element, count * element->factor); });
}

Status NcclCommunicator::reduce(const void* source, void* target, size_t count, schedule::DataType type,
                                schedule::ReduceOp op, int32_t root, Stream stream) {
  return reduction("ncclReduce", count, type, op, [&](Comm comm, const Element& element, size_t elements) {
    return abi_->reduce(source, target, elements, element.type, element.op, root, comm, stream);
  });
}

Status NcclCommunicator::allReduce(const void* source, void* target, size_t count, schedule::DataType type,
                                   schedule::ReduceOp op, Stream stream) {
  return reduction("ncclAllReduce", count, type, op, [&](Comm comm, const Element& element, size_t elements) {
    return abi_->all_reduce(source, target, elements, element.type, element.op, comm, stream);
  });
}

Status NcclCommunicator::reduceScatter(const void* source, void* target, size_t count, schedule::DataType type,
                                       schedule::ReduceOp op, Stream stream) {
  return reduction("ncclReduceScatter", count, type, op, [&](Comm comm, const Element& element, size_t elements) {
    return abi_->reduce_scatter(source, target, elements, element.type, element.op, comm, stream);
  });
}

Status NcclCommunicator::broadcast(const void* source, void* target, size_t bytes, int32_t root, Stream stream) {
  if (bytes == 0) return Status::ok();
  // The library writes its target at the root as well, unless the two are one.
  void* to = rank_ == root ? const_cast<void*>(source) : target;
  const void* from = rank_ == root ? source : target;
  return call("ncclBroadcast", [&](Comm comm) { return abi_->broadcast(from, to, bytes, kUint8, root, comm, stream); });
}

Status NcclCommunicator::allGather(const void* source, void* target, size_t bytes, Stream stream) {
  if (bytes == 0) return Status::ok();
  return call("ncclAllGather",
              [&](Comm comm) { return abi_->all_gather(source, target, bytes, kUint8, comm, stream); });
}

Status NcclCommunicator::allToAll(const void* source, void* target, size_t bytes, Stream stream) {
  std::vector<Transfer> transfers;
  for (int32_t peer = 0; peer < size_; ++peer) {
    const size_t offset = static_cast<size_t>(peer) * bytes;
    transfers.push_back({peer, static_cast<const char*>(source) + offset, nullptr, bytes});
    transfers.push_back({peer, nullptr, static_cast<char*>(target) + offset, bytes});
  }
  return exchange(transfers, stream);
}

Status NcclCommunicator::exchange(const std::vector<Transfer>& transfers, Stream stream) {
  return call("a group of ncclSend and ncclRecv", [&](Comm comm) {
    int result = abi_->group_start();
    if (result != kSuccess) return result;
    for (const Transfer& transfer : transfers) {
      if (transfer.bytes == 0) continue;
      const int queued = transfer.source != nullptr
                             ? abi_->send(transfer.source, transfer.bytes, kUint8, transfer.peer, comm, stream)
                             : abi_->recv(transfer.target, transfer.bytes, kUint8, transfer.peer, comm, stream);
      if (queued != kSuccess && queued != kInProgress && result == kSuccess) result = queued;
    }
    // The group is ended even if a call in it failed: the thread would stay inside it.
    const int ended = abi_->group_end();
    return result != kSuccess ? result : ended;
  });
}

Status NcclCommunicator::asyncError() {
  {
    const std::lock_guard lock(mutex_);
    if (!ended_.isOk()) return ended_;
    if (has_turn_) return Status::ok();  // the call under way will tell
    has_turn_ = true;
  }
  int state = kSuccess;
  const int asked = abi_->comm_get_async_error(comm_, &state);
  const int result = asked == kSuccess ? state : asked;
  const Status status =
      result == kSuccess || result == kInProgress ? Status::ok() : failure("work on the stream", result);
  giveTurn(status);
  return status;
}

Status NcclCommunicator::abort() {
  Comm comm = nullptr;
  {
    std::unique_lock lock(mutex_);
    if (ended_.isOk()) {
      ended_ = Status(Kind::kAborted, Scope::kCommunicator, "aborted",
                      "the communicator of a cluster was aborted; " + abi_->name + " " + abi_->version);
    }
    changed_.notify_all();
    const int64_t deadline_ns = clock_.nowNs() + kAbortWaitNs;
    while (has_turn_) {
      const int64_t left_ns = deadline_ns - clock_.nowNs();
      if (left_ns <= 0) {
        return Status(Kind::kTimeout, Scope::kCommunicator, "library_timeout",
                      "a call hangs inside " + abi_->name + " " + abi_->version + " from " + abi_->library.name() +
                          ", so its communicator cannot be aborted and is left behind");
      }
      changed_.wait_for(lock, std::chrono::nanoseconds(left_ns));
    }
    comm = std::exchange(comm_, nullptr);
    if (comm == nullptr) return Status::ok();
  }
  const int result = abi_->comm_abort(comm);  // frees the handle
  if (result == kSuccess || result == kInProgress) return Status::ok();
  return Status(
      Kind::kUnavailable, Scope::kCommunicator, "library_failed",
      std::string("ncclCommAbort: ") + abi_->get_error_string(result) + "; " + abi_->name + " " + abi_->version);
}

}  // namespace jhetcc::ccl::nccl
