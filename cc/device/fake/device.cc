// SPDX-License-Identifier: Apache-2.0
// The face of a virtual accelerator: checks, counts and queues.
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "device/fake/fake.h"
#include "device/fake/machine.h"
#include "device/fake/memory.h"

namespace jhetcc::device::fake {

namespace {

constexpr int64_t kFreeLimitNs = 5'000'000'000;

Status badArgument(std::string text) {
  return Status(Kind::kBadArgument, Scope::kCall, "bad_argument", std::move(text));
}

/// What an event recorded: set by the stream when it comes there. Each record() makes its own.
using Mark = std::shared_ptr<std::atomic<bool>>;

class Fake final : public FakeDevice {
 public:
  Fake(const Options& options, std::unique_ptr<Machine> machine)
      : options_(options), number_(next_number++), machine_(std::move(machine)) {
    capabilities_ = {.name = "fake", .host_reads_device = false, .stream_values = options.stream_values};
  }
  ~Fake() override {
    for (const auto& [base, allocation] : memory_) allocation->forget();
  }
  const Capabilities& capabilities() const override { return capabilities_; }

  Result<void*> allocate(size_t bytes, MemoryKind kind) override {
    JHETCC_RETURN_IF_ERROR(mayCall("allocate"));
    Result<std::shared_ptr<Allocation>> made = Allocation::create(bytes, kind, number_);
    if (!made.isOk()) return made.status();
    ++allocations_;
    const std::lock_guard lock(mutex_);
    memory_[made.value()->base()] = made.value();
    return static_cast<void*>(made.value()->base());
  }

  Status free(void* memory) override {
    JHETCC_RETURN_IF_ERROR(mayCall("free"));
    ++synchronisations_;
    std::shared_ptr<Allocation> allocation;
    {
      const std::lock_guard lock(mutex_);
      const auto found = memory_.find(memory);
      if (found == memory_.end()) return badArgument("free: no memory of this device");
      allocation = found->second;
    }
    if (!machine_->waitWhile([&] { return allocation->isPinned(); }, clock_.nowNs() + kFreeLimitNs)) {
      return badArgument("free: " + std::to_string(allocation->bytes()) +
                         " bytes that work still queued uses; synchronize first");
    }
    allocation->forget();
    const std::lock_guard lock(mutex_);
    memory_.erase(memory);
    return Status::ok();
  }

  Result<void*> alias(const void* memory, size_t bytes) override {
    JHETCC_RETURN_IF_ERROR(mayCall("alias"));
    Result<Range> range = findRange(memory, bytes, "alias");
    if (!range.isOk()) return range.status();
    if (range.value().allocation->kind() == MemoryKind::kDevice && !options_.registrable) {
      return Status(Kind::kUnavailable, Scope::kCall, "unavailable",
                    "no NIC can register this virtual accelerator's memory; bounce through pinned memory");
    }
    return static_cast<void*>(range.value().alias);
  }

  Result<Stream> createStream(Queue queue) override {
    JHETCC_RETURN_IF_ERROR(mayCall("createStream"));
    const std::shared_ptr<Track> track = machine_->createStream(queue);
    if (!track) {
      return Status(Kind::kResource, Scope::kCall, "resource",
                    "all " + std::to_string(options_.own_queues) +
                        " queues of this virtual accelerator that a stream can have for itself are taken");
    }
    ++allocations_;
    return static_cast<Stream>(track.get());
  }
  Status destroyStream(Stream stream) override {
    JHETCC_RETURN_IF_ERROR(mayCall("destroyStream"));
    return machine_->destroyStream(stream);
  }

  Result<Event> createEvent() override {
    JHETCC_RETURN_IF_ERROR(mayCall("createEvent"));
    ++allocations_;
    auto made = std::make_unique<Mark>();
    const std::lock_guard lock(mutex_);
    const Event event = made.get();
    events_[event] = std::move(made);
    return event;
  }
  Status destroyEvent(Event event) override {
    JHETCC_RETURN_IF_ERROR(mayCall("destroyEvent"));
    const std::lock_guard lock(mutex_);
    return events_.erase(event) > 0 ? Status::ok() : noEvent();
  }

  Status copy(void* target, const void* source, size_t bytes, Stream stream) override {
    Result<Range> to = findRange(target, bytes, "the target of a copy");
    if (!to.isOk()) return to.status();
    Result<Range> from = findRange(source, bytes, "the source of a copy");
    if (!from.isOk()) return from.status();
    const bool is_to_host = to.value().allocation->kind() == MemoryKind::kPinned;
    const bool is_from_host = from.value().allocation->kind() == MemoryKind::kPinned;
    Work work;
    work.step = [target = to.value().alias, source = from.value().alias, bytes] {
      if (bytes > 0) std::memmove(target, source, bytes);
      return true;
    };
    work.pins = {to.value().allocation->pin(), from.value().allocation->pin()};
    JHETCC_RETURN_IF_ERROR(queue("copy", stream, std::move(work)));
    ++copies_;
    if (is_to_host) bytes_to_host_ += bytes;
    if (is_from_host) bytes_from_host_ += bytes;
    if (!is_to_host && !is_from_host) bytes_on_device_ += bytes;
    return Status::ok();
  }

  Status zero(void* target, size_t bytes, Stream stream) override {
    Result<Range> to = findRange(target, bytes, "the target of zeros");
    if (!to.isOk()) return to.status();
    Work work;
    work.step = [target = to.value().alias, bytes] {
      if (bytes > 0) std::memset(target, 0, bytes);
      return true;
    };
    work.pins = {to.value().allocation->pin()};
    return queue("zero", stream, std::move(work));
  }

  Status record(Event event, Stream stream) override {
    Result<Mark> last = lastMark(event);
    if (!last.isOk()) return last.status();
    auto mark = std::make_shared<std::atomic<bool>>(false);
    JHETCC_RETURN_IF_ERROR(queue("record", stream,
                                 {[mark] {
                                    mark->store(true, std::memory_order_release);
                                    return true;
                                  },
                                  {}}));
    const std::lock_guard lock(mutex_);
    const auto found = events_.find(event);
    if (found == events_.end()) return noEvent();
    *found->second = std::move(mark);
    return Status::ok();
  }

  Status wait(Event event, Stream stream) override {
    Result<Mark> mark = lastMark(event);
    if (!mark.isOk()) return mark.status();
    if (!mark.value()) return mayCall("wait");
    return queue("wait", stream, {[mark = mark.value()] { return mark->load(std::memory_order_acquire); }, {}});
  }

  Result<bool> isDone(Event event) override {
    JHETCC_RETURN_IF_ERROR(mayCall("isDone"));
    Result<Mark> mark = lastMark(event);
    if (!mark.isOk()) return mark.status();
    return !mark.value() || mark.value()->load(std::memory_order_acquire);
  }

  Status callback(Callback function, void* context, Stream stream) override {
    auto job = std::make_shared<CallbackJob>();
    job->function = function;
    job->context = context;
    job->limit_ns = options_.callback_limit_ns;
    job->waited = waited_;
    const auto step = [&thread = machine_->callbacks(), job, is_posted = false]() mutable {
      if (!is_posted) thread.post(job);
      is_posted = true;
      return job->done.load(std::memory_order_acquire);
    };
    JHETCC_RETURN_IF_ERROR(queue("callback", stream, {step, {}}));
    ++callbacks_;
    return Status::ok();
  }

  Status writeValue(uint64_t* word, uint64_t value, Stream stream) override {
    if (!options_.stream_values) return noValues();
    Result<Range> range = findWord(word);
    if (!range.isOk()) return range.status();
    Work work;
    work.step = [word, value] {
      std::atomic_ref<uint64_t>(*word).store(value, std::memory_order_release);
      return true;
    };
    work.pins = {range.value().allocation->pin()};
    JHETCC_RETURN_IF_ERROR(queue("writeValue", stream, std::move(work)));
    ++values_;
    return Status::ok();
  }

  Status waitValue(const uint64_t* word, uint64_t value, Stream stream) override {
    if (!options_.stream_values) return noValues();
    Result<Range> range = findWord(word);
    if (!range.isOk()) return range.status();
    Work work;
    work.step = [word = const_cast<uint64_t*>(word), value] {
      return std::atomic_ref<uint64_t>(*word).load(std::memory_order_acquire) >= value;
    };
    work.pins = {range.value().allocation->pin()};
    JHETCC_RETURN_IF_ERROR(queue("waitValue", stream, std::move(work)));
    ++values_;
    return Status::ok();
  }

  Status synchronize(Stream stream, int64_t deadline_ns) override {
    Result<std::shared_ptr<Track>> track = own("synchronize", stream);
    if (!track.isOk()) return track.status();
    return machine_->synchronize(track.value(), deadline_ns);
  }

  bool step() override { return options_.manual && !CallbackThread::isInside() && machine_->step(); }

  Counters counters() const override {
    Counters seen;
    seen.allocations = allocations_;
    seen.device_synchronisations = synchronisations_;
    seen.copies = copies_;
    seen.bytes_on_device = bytes_on_device_;
    seen.bytes_to_host = bytes_to_host_;
    seen.bytes_from_host = bytes_from_host_;
    seen.values = values_;
    seen.callbacks = callbacks_;
    seen.callbacks_refused = refused_;
    seen.callbacks_waited = *waited_;
    return seen;
  }

 private:
  using Counter = std::atomic<uint64_t>;

  static Status noValues() {
    return Status(Kind::kUnavailable, Scope::kCall, "unavailable",
                  "streams of this virtual accelerator neither write nor wait for values");
  }
  static Status noEvent() { return badArgument("no event of this device: made by another one, or destroyed"); }

  /// A callback must not call a device: on real ones it may deadlock, here it is refused.
  Status mayCall(const char* what) {
    if (!CallbackThread::isInside()) return Status::ok();
    ++refused_;
    return Status(Kind::kBadArgument, Scope::kCall, "callback_calls_device",
                  std::string(what) +
                      " was called out of a host callback, which may neither call a device nor wait "
                      "for one; leave it to another thread");
  }

  Result<std::shared_ptr<Track>> own(const char* what, Stream stream) {
    JHETCC_RETURN_IF_ERROR(mayCall(what));
    Result<std::shared_ptr<Track>> track = findTrack(stream);
    if (!track.isOk()) return track.status().withContext(what);
    if (track.value()->machine != machine_.get()) return badArgument(std::string(what) + ": another device's stream");
    return track;
  }

  Status queue(const char* what, Stream stream, Work work) {
    Result<std::shared_ptr<Track>> track = own(what, stream);
    if (!track.isOk()) return track.status();
    machine_->enqueue(track.value(), std::move(work));
    return Status::ok();
  }

  Result<Mark> lastMark(Event event) {
    const std::lock_guard lock(mutex_);
    const auto found = events_.find(event);
    if (found == events_.end()) return noEvent();
    return *found->second;
  }

  static Result<Range> findWord(const uint64_t* word) {
    Result<Range> range = findRange(word, sizeof(*word), "a word of a gate");
    if (range.isOk() && (range.value().allocation->kind() != MemoryKind::kPinned ||
                         reinterpret_cast<uintptr_t>(word) % sizeof(*word) != 0)) {
      return badArgument("a word of a gate must be aligned to 8 bytes in pinned memory");
    }
    return range;
  }

  static inline std::atomic<int> next_number{0};

  const Options options_;
  const int number_;
  const SystemClock clock_;
  Capabilities capabilities_;
  std::mutex mutex_;
  std::map<void*, std::shared_ptr<Allocation>> memory_;
  std::map<Event, std::unique_ptr<Mark>> events_;
  Counter allocations_{0}, synchronisations_{0}, copies_{0}, bytes_on_device_{0}, bytes_to_host_{0};
  Counter bytes_from_host_{0}, values_{0}, callbacks_{0}, refused_{0};
  std::shared_ptr<Counter> waited_ = std::make_shared<Counter>(0);
  std::unique_ptr<Machine> machine_;  // last: it stops before the rest goes
};

}  // namespace

Result<std::unique_ptr<FakeDevice>> create(const Options& options) {
  Result<std::unique_ptr<Machine>> machine = Machine::create(options);
  if (!machine.isOk()) return machine.status();
  return std::unique_ptr<FakeDevice>(new Fake(options, std::move(machine).value()));
}

}  // namespace jhetcc::device::fake
