// SPDX-License-Identifier: Apache-2.0
#include "device/host/host.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace jhetcc::device::host {

namespace {

constexpr size_t kPage = 4096;

class HostDevice final : public Device {
 public:
  HostDevice() { capabilities_ = {.name = "host", .host_reads_device = true, .stream_values = false}; }
  ~HostDevice() override {
    for (const auto& [memory, bytes] : memory_) std::free(memory);
  }
  const Capabilities& capabilities() const override { return capabilities_; }

  Result<void*> allocate(size_t bytes, MemoryKind) override {
    const size_t whole = bytes > SIZE_MAX - kPage ? 0 : (bytes + kPage - 1) / kPage * kPage;
    void* memory = whole == 0 && bytes > 0 ? nullptr : std::aligned_alloc(kPage, whole == 0 ? kPage : whole);
    if (memory == nullptr) {
      return Status(Kind::kResource, Scope::kCall, "resource",
                    "no host memory for " + std::to_string(bytes) + " bytes");
    }
    const std::lock_guard lock(mutex_);
    memory_[memory] = bytes;
    return memory;
  }

  Status free(void* memory) override {
    const std::lock_guard lock(mutex_);
    if (memory_.erase(memory) == 0) return unknown("memory");
    std::free(memory);
    return Status::ok();
  }

  /// Every address of the host is one that its NICs can be given.
  Result<void*> alias(const void* memory, size_t) override { return const_cast<void*>(memory); }

  Result<Stream> createStream(Queue) override { return create(streams_); }
  Status destroyStream(Stream stream) override { return destroy(streams_, stream, "stream"); }
  Result<Event> createEvent() override { return create(events_); }
  Status destroyEvent(Event event) override { return destroy(events_, event, "event"); }

  Status copy(void* target, const void* source, size_t bytes, Stream stream) override {
    JHETCC_RETURN_IF_ERROR(known(streams_, stream, "stream"));
    if (bytes > 0) std::memmove(target, source, bytes);
    return Status::ok();
  }
  Status zero(void* target, size_t bytes, Stream stream) override {
    JHETCC_RETURN_IF_ERROR(known(streams_, stream, "stream"));
    if (bytes > 0) std::memset(target, 0, bytes);
    return Status::ok();
  }
  Status record(Event event, Stream stream) override {
    JHETCC_RETURN_IF_ERROR(known(events_, event, "event"));
    return known(streams_, stream, "stream");
  }
  Status wait(Event event, Stream stream) override { return record(event, stream); }
  Status callback(Callback function, void* context, Stream stream) override {
    JHETCC_RETURN_IF_ERROR(known(streams_, stream, "stream"));
    function(context);
    return Status::ok();
  }
  Status writeValue(uint64_t*, uint64_t, Stream) override { return noValues(); }
  Status waitValue(const uint64_t*, uint64_t, Stream) override { return noValues(); }
  Result<bool> isDone(Event event) override {
    JHETCC_RETURN_IF_ERROR(known(events_, event, "event"));
    return true;
  }
  Status synchronize(Stream stream, int64_t) override { return known(streams_, stream, "stream"); }

 private:
  using Handles = std::set<void*>;

  static Status noValues() {
    return Status(Kind::kUnavailable, Scope::kCall, "unavailable",
                  "streams of the host do everything at once: they neither write nor wait for values");
  }
  static Status unknown(const std::string& what) {
    return Status(Kind::kBadArgument, Scope::kCall, "bad_argument",
                  "no " + what + " of this device: made by another one, or destroyed");
  }
  Result<void*> create(Handles& handles) {
    const std::lock_guard lock(mutex_);
    return *handles.insert(reinterpret_cast<void*>(++last_handle_)).first;  // a number, never dereferenced
  }
  Status destroy(Handles& handles, void* handle, const char* what) {
    const std::lock_guard lock(mutex_);
    return handles.erase(handle) == 0 ? unknown(what) : Status::ok();
  }
  Status known(const Handles& handles, void* handle, const char* what) {
    const std::lock_guard lock(mutex_);
    return handles.count(handle) == 0 ? unknown(what) : Status::ok();
  }

  Capabilities capabilities_;
  std::mutex mutex_;
  std::map<void*, size_t> memory_;
  Handles streams_, events_;
  uintptr_t last_handle_ = 0;
};

}  // namespace

std::unique_ptr<Device> create() { return std::make_unique<HostDevice>(); }

}  // namespace jhetcc::device::host
