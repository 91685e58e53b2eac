// SPDX-License-Identifier: Apache-2.0
#include "runtime/native.h"

#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "runtime/native_circles.h"
#include "runtime/native_threads.h"

namespace jhetcc::runtime {
namespace {

using engine::NativeCall;
using schedule::StepKind;

constexpr int64_t kYieldNs = 1'000'000;
constexpr int64_t kAbortedNs = 5000 * kNsPerMs;
constexpr auto kStreamLook = std::chrono::microseconds(50);

/// Memory of ours that a library may use as long as it likes.
class Staging {
 public:
  char* take(size_t bytes) {
    if (bytes > size_) {
      memory_.reset(new char[bytes]);
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<char[]> memory_;
  size_t size_ = 0;
};

}  // namespace

class NativeWorker::Loop {
 public:
  Loop(std::shared_ptr<const LibraryInUse> in_use, uint64_t communicator, std::vector<int32_t> world_ranks,
       int32_t world_rank, std::function<void()> wake, int64_t spin_ns, std::shared_ptr<device::Device> device)
      : in_use_(std::move(in_use)),
        device_(std::move(device)),
        key_("circle/" + std::to_string(communicator) + "/"),
        world_ranks_(std::move(world_ranks)),
        world_rank_(world_rank),
        spin_ns_(spin_ns),
        wake_(std::move(wake)),
        first_(in_use_->is_first_taken.exchange(true) ? nullptr : in_use_->first) {}

  // From the engine's thread.
  void push(NativeCall call, const std::shared_ptr<Loop>& self) {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(std::move(call));
    waiting_count_.fetch_add(1);
    if (!has_thread_) {
      const Status started = detachedThread("jhetcc-native", [self] { self->run(); });
      has_thread_ = started.isOk();
      if (!has_thread_) {
        ended_.emplace_back(waiting_.back().token, started);
        waiting_.clear();
        waiting_count_.store(0);
        has_ended_.store(true);
      }
    }
    if (is_asleep_) changed_.notify_one();
  }
  bool poll(engine::NativeSink& sink) {
    if (!has_ended_.load(std::memory_order_acquire)) return false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      told_.swap(ended_);
      has_ended_.store(false);
    }
    for (const auto& [token, status] : told_) sink.onNativeDone(token, status);
    told_.clear();
    return true;
  }
  /// `give_up`: a call under way is lost; else there is none.
  void close(bool give_up, bool is_whole) {
    if (!is_whole) has_lost_.store(true);
    {
      std::lock_guard<std::mutex> copying(copy_mutex_);  // a copy under way ends first, none begins any more
      is_closed_.store(true);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    wake_ = nullptr;
    waiting_.clear();
    waiting_count_.store(0);
    ended_.clear();
    if (!has_thread_) first_ = nullptr;  // never the last one: closeLibrary() comes later
    if (give_up && is_making_) {
      in_use_->is_given_up.store(true);
      in_use_->library->leave();
    }
    if (give_up && under_way_) giveUp();
    changed_.notify_all();
  }

 private:
  /// The call under way, whose memory belongs to others from now on.
  void giveUp() {
    Status ended = under_way_->abort();
    if (ended.isOk() && device_) ended = device_->synchronize(stream_, SystemClock().nowNs() + kAbortedNs);
    if (ended.isOk()) return;
    in_use_->is_given_up.store(true);
    under_way_->leave();
  }

  void run() {
    NativeCall call;
    while (take(&call)) {
      Status status;
      try {
        status = execute(call);
      } catch (const std::exception& failure) {
        status = Status(Kind::kInternal, Scope::kProcess, "internal", failure.what());
      }
      const uint64_t token = call.token;
      call = NativeCall{};
      std::lock_guard<std::mutex> lock(mutex_);
      if (is_closed_.load()) break;
      ended_.emplace_back(token, std::move(status));
      has_ended_.store(true, std::memory_order_release);
      if (wake_) wake_();
    }
    const bool leaves = has_lost_.load() || in_use_->is_closing.load();
    for (auto& [members, made] : circles_) {
      if (made && made != first_ && leaves && !in_use_->library->capabilities().destroys_alone) made->leave();
    }
    circles_.clear();
    first_ = nullptr;
    if (event_ != nullptr) (void)device_->destroyEvent(event_);
    if (stream_ != nullptr) (void)device_->destroyStream(stream_);
  }

  /// Spins briefly, then gives way, then sleeps until there is a call. False: closed.
  bool take(NativeCall* call) {
    const SystemClock clock;
    const int64_t begin = clock.nowNs();
    while (waiting_count_.load() == 0 && !is_closed_.load()) {
      const int64_t idle = clock.nowNs() - begin;
      if (idle > spin_ns_ + kYieldNs) break;
      if (idle > spin_ns_) sched_yield();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    is_asleep_ = true;
    changed_.wait(lock, [this] { return !waiting_.empty() || is_closed_.load(); });
    is_asleep_ = false;
    if (is_closed_.load()) return false;
    *call = std::move(waiting_.front());
    waiting_.pop_front();
    waiting_count_.fetch_sub(1);
    return true;
  }

  Status execute(const NativeCall& call) {
    if (call.bytes == 0) return Status::ok();  // for all members alike
    Result<std::shared_ptr<ccl::Communicator>> found = circle(*call.members);
    if (!found.isOk()) return sayWhere(*in_use_, found.status());
    const std::shared_ptr<ccl::Communicator> vendor = found.value();
    if (device_) return executeOnStream(*vendor, call);
    const bool is_root_of_broadcast = call.kind == StepKind::kNativeBroadcast && call.source;
    const void* source = call.source;
    void* target = call.target;
    const bool must_stage = !in_use_->library->capabilities().abortable;
    const bool stages_source = must_stage && source && !call.is_source_kept;
    const bool stages_target = must_stage && target && !is_root_of_broadcast && !call.is_target_kept;
    if (stages_source) {
      char* copy = source_staging_.take(call.bytes);
      std::lock_guard<std::mutex> copying(copy_mutex_);
      if (is_closed_.load()) return Status::ok();  // nobody is told
      std::memcpy(copy, source, call.bytes);
      source = copy;
    }
    if (is_root_of_broadcast) target = const_cast<void*>(source);  // where it also wants it elsewhere, that is a copy
    if (stages_target) target = target_staging_.take(call.bytes);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (is_closed_.load()) return Status::ok();
      under_way_ = vendor.get();
    }
    const Status status = callLibrary(*vendor, call, source, target, nullptr);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      under_way_ = nullptr;
    }
    if (status.isOk() && (stages_target || (is_root_of_broadcast && call.target != call.source))) {
      std::lock_guard<std::mutex> copying(copy_mutex_);
      if (!is_closed_.load()) std::memcpy(call.target, target, call.bytes);
    }
    return status.isOk() ? status : sayWhere(*in_use_, status);
  }

  /// Nothing is copied: the library works on the device's memory, and can be made to stop.
  Status executeOnStream(ccl::Communicator& vendor, const NativeCall& call) {
    const ccl::Capabilities& can = in_use_->library->capabilities();
    if (can.blocking || !can.abortable) {
      return sayWhere(*in_use_, Status(Kind::kUnavailable, Scope::kCall, "unavailable",
                                       "this library does not order its calls on a device's streams"));
    }
    JHETCC_RETURN_IF_ERROR(openStream());
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (is_closed_.load()) return Status::ok();
      under_way_ = &vendor;
    }
    Status status = callLibrary(vendor, call, call.source, call.target, stream_);
    if (status.isOk() && call.kind == StepKind::kNativeBroadcast && call.source && call.target &&
        call.target != call.source) {
      std::lock_guard<std::mutex> copying(copy_mutex_);
      if (!is_closed_.load()) status = device_->copy(call.target, call.source, call.bytes, stream_);
    }
    if (status.isOk()) status = awaitStream(vendor);
    std::lock_guard<std::mutex> lock(mutex_);
    // Failed, it may still stand on the stream, and write one day. Closed, that has been seen to.
    if (!status.isOk() && !is_closed_.load()) giveUp();
    under_way_ = nullptr;
    return status.isOk() ? status : sayWhere(*in_use_, status);
  }

  /// A queue of its own: kernels that wait for other ranks hold nothing that those ranks wait for.
  Status openStream() {
    if (stream_ != nullptr) return Status::ok();
    Result<device::Event> event = device_->createEvent();
    if (!event.isOk()) return event.status();
    event_ = event.value();
    Result<device::Stream> stream = device_->createStream(device::Queue::kPrivate);
    if (stream.isOk()) stream_ = stream.value();
    return stream.status();
  }

  /// Until the stream has passed the call, the library has found an error, or the call is given up.
  Status awaitStream(ccl::Communicator& vendor) {
    JHETCC_RETURN_IF_ERROR(device_->record(event_, stream_));
    const SystemClock clock;
    const int64_t begin = clock.nowNs();
    while (!is_closed_.load()) {
      const Result<bool> is_done = device_->isDone(event_);
      if (!is_done.isOk()) return is_done.status();
      if (is_done.value()) break;
      JHETCC_RETURN_IF_ERROR(vendor.asyncError());
      if (clock.nowNs() - begin < spin_ns_ + kYieldNs) {
        sched_yield();
      } else {
        std::this_thread::sleep_for(kStreamLook);
      }
    }
    return vendor.asyncError();
  }

  static Status callLibrary(ccl::Communicator& vendor, const NativeCall& call, const void* source, void* target,
                            ccl::Stream stream) {
    const size_t count = call.bytes / schedule::itemSize(call.type);
    switch (call.kind) {
      case StepKind::kNativeReduce:
        return vendor.reduce(source, target, count, call.type, call.op, call.root, stream);
      case StepKind::kNativeAllReduce:
        return vendor.allReduce(source, target, count, call.type, call.op, stream);
      default:
        return vendor.broadcast(source ? source : target, target, call.bytes, call.root, stream);
    }
  }

  /// Made with the other members when it is first needed: all come here by the same call.
  Result<std::shared_ptr<ccl::Communicator>> circle(const std::vector<int32_t>& members) {
    std::shared_ptr<ccl::Communicator>& known = circles_[members];
    if (known) return known;
    std::vector<int32_t> world_ranks;
    for (int32_t member : members) world_ranks.push_back(world_ranks_[static_cast<size_t>(member)]);
    if (first_ && world_ranks == in_use_->world_ranks) return known = first_;
    if (in_use_->is_given_up.load()) {
      return Status(Kind::kUnavailable, Scope::kProcess, "library_given_up",
                    "an earlier call never came back, so ranks " + listed(world_ranks) +
                        " cannot be joined any more: start the processes anew, or go on after shrink()");
    }
    if (!setMaking(true)) return Status(Kind::kAborted, Scope::kCall, "closed", "closed");  // nobody is told
    auto made = makeCommunicator(*in_use_, key_ + keyOf(world_ranks), world_ranks, world_rank_, false,
                                 [this] { return is_closed_.load(); });
    (void)setMaking(false);
    if (!made.isOk()) {
      return made.status().withContext("ranks " + listed(world_ranks) + " meet in the library before their first call");
    }
    return known = std::move(made).value();
  }

  /// False: closed.
  bool setMaking(bool is_making) {
    std::lock_guard<std::mutex> lock(mutex_);
    is_making_ = is_making && !is_closed_.load();
    return !is_closed_.load();
  }

  const std::shared_ptr<const LibraryInUse> in_use_;
  const std::shared_ptr<device::Device> device_;  ///< null: the host
  const std::string key_;
  const std::vector<int32_t> world_ranks_;
  const int32_t world_rank_;
  const int64_t spin_ns_;

  std::atomic<size_t> waiting_count_{0};
  std::atomic<bool> has_ended_{false};
  std::atomic<bool> has_lost_{false};   ///< a member, perhaps
  std::atomic<bool> is_closed_{false};  ///< set under copy_mutex_
  std::mutex copy_mutex_;               ///< held while the caller's memory is touched; never while a library is called
  std::mutex mutex_;                    ///< guards what follows
  std::condition_variable changed_;
  std::deque<NativeCall> waiting_;
  std::vector<std::pair<uint64_t, Status>> ended_;
  std::function<void()> wake_;
  ccl::Communicator* under_way_ = nullptr;
  bool has_thread_ = false, is_asleep_ = false, is_making_ = false;

  // Of the thread alone.
  std::map<std::vector<int32_t>, std::shared_ptr<ccl::Communicator>> circles_;
  std::shared_ptr<ccl::Communicator> first_;  ///< where this worker may use it; while there is no thread, under mutex_
  Staging source_staging_, target_staging_;
  device::Stream stream_ = nullptr;  ///< set before a call on it is under way
  device::Event event_ = nullptr;
  // Of the engine's thread alone.
  std::vector<std::pair<uint64_t, Status>> told_;
};

NativeWorker::NativeWorker(std::shared_ptr<const LibraryInUse> in_use, uint64_t communicator,
                           std::vector<int32_t> world_ranks, int32_t world_rank, std::function<void()> wake,
                           int64_t spin_ns, std::shared_ptr<device::Device> device)
    : loop_(std::make_shared<Loop>(std::move(in_use), communicator, std::move(world_ranks), world_rank, std::move(wake),
                                   spin_ns, std::move(device))) {}

NativeWorker::~NativeWorker() { end(); }

void NativeWorker::start(engine::NativeCall call) { loop_->push(std::move(call), loop_); }
bool NativeWorker::poll(engine::NativeSink& sink) { return loop_->poll(sink); }
void NativeWorker::drop() { loop_->close(true, false); }
void NativeWorker::end(bool is_whole) { loop_->close(false, is_whole); }

}  // namespace jhetcc::runtime
