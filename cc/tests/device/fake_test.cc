// SPDX-License-Identifier: Apache-2.0
// What the virtual accelerator adds: streams share queues, order by seed, callbacks on one strict thread, counters.
#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "device/devices.h"

namespace jhetcc::device::tests {

namespace {

using Error = jhetcc::Kind;

/// Which streams' callbacks came, in order.
struct Order {
  std::vector<int> seen;
  struct Entry {
    Order* order;
    int name;
  };
  std::vector<std::unique_ptr<Entry>> entries;
  void note(Device& device, int name, Stream stream) {
    entries.push_back(std::make_unique<Entry>(Entry{this, name}));
    must(device.callback(
        [](void* context) {
          auto* entry = static_cast<Entry*>(context);
          entry->order->seen.push_back(entry->name);
        },
        entries.back().get(), stream));
  }
};

}  // namespace

TEST_CASE("a held stream holds those behind it on its hardware queue, and no other") {
  const auto device = makeFake({.queues = 2, .manual = true});
  Stream streams[4];
  for (Stream& stream : streams) stream = must(device->createStream());
  const std::unique_ptr<Gate> gate = must(Gate::create(*device));
  Event events[4];
  must(gate->hold(1, streams[0]));
  for (int k = 0; k < 4; ++k) {
    events[k] = must(device->createEvent());
    must(device->record(events[k], streams[k]));
  }
  while (device->step()) {
  }
  CHECK_FALSE(must(device->isDone(events[0])));
  CHECK(must(device->isDone(events[1])));
  CHECK_FALSE(must(device->isDone(events[2])));  // unrelated, on the same queue
  CHECK(must(device->isDone(events[3])));
  gate->open(1);
  while (device->step()) {
  }
  CHECK(must(device->isDone(events[0])));
  CHECK(must(device->isDone(events[2])));
}

TEST_CASE("a stream with a queue of its own goes on whatever waits elsewhere, and such queues run out") {
  const auto device = makeFake({.queues = 1, .own_queues = 2, .manual = true});
  const std::unique_ptr<Gate> gate = must(Gate::create(*device));
  const Stream first = must(device->createStream(Queue::kPrivate));
  must(gate->hold(1, must(device->createStream())));
  const Stream second = must(device->createStream(Queue::kPrivate));
  const Event event = must(device->createEvent());
  for (const Stream stream : {first, second}) {
    must(device->record(event, stream));
    while (device->step()) {
    }
    CHECK(must(device->isDone(event)));
  }
  const Status refused = device->createStream(Queue::kPrivate).status();
  CHECK(refused.kind() == jhetcc::Kind::kResource);
  CHECK_MESSAGE(refused.message().find("all 2 queues") != std::string::npos, refused.message());
  must(device->destroyStream(first));
  (void)must(device->createStream(Queue::kPrivate));
  (void)must(device->createStream());
  gate->open(1);
}

TEST_CASE("a stream that waits for one behind it on its queue never ends, and the deadline tells") {
  for (const int queues : {1, 2}) {
    const auto device = makeFake({.queues = queues});
    const Stream first = must(device->createStream()), second = must(device->createStream());
    auto* word = static_cast<uint64_t*>(must(device->allocate(8, MemoryKind::kPinned)));
    must(device->waitValue(word, 1, first));
    must(device->writeValue(word, 1, second));
    if (queues == 2) {
      must(device->synchronize(first, soonNs()));
      continue;
    }
    const Status status = device->synchronize(first, soonNs(50));
    CHECK(status.code() == "device_timeout");
    CHECK(status.message().find("hardware queue") != std::string::npos);
    std::atomic_ref<uint64_t>(*word).store(1);
    must(device->synchronize(second, soonNs()));
  }
}

TEST_CASE("work before and after a gate keeps the stream's order, for every seed") {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    const auto device = makeFake({.queues = 3, .manual = true, .seed = seed});
    const std::unique_ptr<Gate> gate = must(Gate::create(*device));
    Order order;
    std::vector<Stream> streams;
    for (int s = 0; s < 3; ++s) {
      streams.push_back(must(device->createStream()));
      order.note(*device, s, streams[s]);
      must(gate->hold(1, streams[s]));
      order.note(*device, s + 10, streams[s]);
    }
    while (device->step()) {
    }
    REQUIRE(order.seen.size() == 3);
    CHECK(*std::max_element(order.seen.begin(), order.seen.end()) == 2);
    gate->open(1);
    for (const Stream stream : streams) must(device->synchronize(stream, soonNs()));
    CHECK(order.seen.size() == 6);
  }
}

TEST_CASE("a seed gives one order, and seeds give several") {
  const auto play = [](uint64_t seed) {
    const auto device = makeFake({.queues = 4, .manual = true, .seed = seed});
    Order order;
    for (int s = 0; s < 4; ++s) {
      const Stream stream = must(device->createStream());
      for (int k = 0; k < 3; ++k) order.note(*device, s, stream);
    }
    while (device->step()) {
    }
    return order.seen;
  };
  std::set<std::vector<int>> orders;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CHECK(play(seed) == play(seed));
    orders.insert(play(seed));
  }
  CHECK(orders.size() > 10);
}

TEST_CASE("callbacks of all devices come on one foreign thread") {
  const auto first = makeFake(), second = makeFake({.stream_values = false});
  struct Seen {
    std::mutex mutex;
    std::set<std::thread::id> threads;
    int count = 0;
  } seen;
  const auto note = [](void* context) {
    auto* kept = static_cast<Seen*>(context);
    const std::lock_guard lock(kept->mutex);
    kept->threads.insert(std::this_thread::get_id());
    ++kept->count;
  };
  for (fake::FakeDevice* device : {first.get(), second.get()}) {
    for (int s = 0; s < 3; ++s) {
      const Stream stream = must(device->createStream());
      for (int k = 0; k < 5; ++k) must(device->callback(note, &seen, stream));
      must(device->synchronize(stream, soonNs()));
    }
  }
  CHECK(seen.count == 30);
  CHECK(seen.threads.size() == 1);
  CHECK(seen.threads.count(std::this_thread::get_id()) == 0);
  CHECK(first->counters().callbacks == 15);
  CHECK(first->counters().callbacks_waited + second->counters().callbacks_waited == 0);
}

TEST_CASE("a callback that calls a device is refused, and counted") {
  const auto device = makeFake();
  struct Context {
    fake::FakeDevice* device;
    Stream stream;
    Event event;
    std::vector<Status> statuses;
  } context{device.get(), must(device->createStream()), must(device->createEvent()), {}};
  must(device->callback(
      [](void* raw) {
        auto* kept = static_cast<Context*>(raw);
        kept->statuses = {kept->device->synchronize(kept->stream, soonNs()),
                          kept->device->wait(kept->event, kept->stream), kept->device->isDone(kept->event).status(),
                          kept->device->allocate(8, MemoryKind::kPinned).status()};
      },
      &context, context.stream));
  must(device->synchronize(context.stream, soonNs()));
  CHECK(context.statuses.size() == 4);
  for (const Status& status : context.statuses) CHECK(status.code() == "callback_calls_device");
  CHECK(device->counters().callbacks_refused == 4);
}

TEST_CASE("a callback that waits for another stream's work is found out, on its own device or another") {
  for (const bool is_same : {true, false}) {
    CAPTURE(is_same);
    const auto device = makeFake({.callback_limit_ns = 50 * kNsPerMs});
    const auto other = makeFake({.callback_limit_ns = 50 * kNsPerMs});
    fake::FakeDevice& writer = is_same ? *device : *other;
    const Stream stream = must(device->createStream()), writing = must(writer.createStream());
    struct Context {
      std::atomic<bool> began{false};
      Gate* gate;
      bool was_reached = false;
    } context;
    const std::unique_ptr<Gate> gate = must(Gate::create(writer));
    context.gate = gate.get();
    must(device->callback(
        [](void* raw) {
          auto* kept = static_cast<Context*>(raw);
          kept->began.store(true);
          const int64_t deadline_ns = soonNs();
          while (kept->gate->reached() == 0 && nowNs() < deadline_ns) std::this_thread::yield();
          kept->was_reached = kept->gate->reached() == 1;
        },
        &context, stream));
    const int64_t deadline_ns = soonNs();
    while (!context.began.load() && nowNs() < deadline_ns) std::this_thread::yield();
    REQUIRE(context.began.load());
    must(gate->signal(1, writing));
    must(device->synchronize(stream, soonNs()));
    must(writer.synchronize(writing, soonNs()));
    CHECK(context.was_reached);  // past its limit, streams go on, so that a test ends
    CHECK(device->counters().callbacks_waited == 1);
  }
}

TEST_CASE("copies reach memory of devices and pinned memory only, within its bounds") {
  const auto device = makeFake();
  const Stream stream = must(device->createStream());
  Bytes bytes(*device, 100);
  std::vector<uint8_t> pageable(100);
  for (const Status& status :
       {device->copy(bytes.there(), pageable.data(), 100, stream),
        device->copy(pageable.data(), bytes.there(), 1, stream),
        device->copy(bytes.there() + 1, bytes.here(), 100, stream),
        device->copy(bytes.there(), bytes.here(), 101, stream), device->alias(bytes.there() + 50, 51).status(),
        device->writeValue(reinterpret_cast<uint64_t*>(bytes.there()), 1, stream),
        device->waitValue(reinterpret_cast<uint64_t*>(bytes.here() + 4), 1, stream)}) {
    CHECK(status.kind() == Error::kBadArgument);
  }
  const Status unregistered = makeFake({.registrable = false})->alias(bytes.there(), 1).status();
  CHECK(unregistered.kind() == Error::kUnavailable);
}

TEST_CASE("copies between two devices' memory go by either's streams") {
  const auto first = makeFake(), second = makeFake();
  const Stream stream = must(second->createStream());
  Bytes from(*first, 5000), to(*second, 5000);
  from.here()[4999] = 9;
  must(second->copy(from.there(), from.here(), 5000, stream));
  must(second->copy(to.there(), from.there(), 5000, stream));
  to.down(stream);
  must(second->synchronize(stream, soonNs()));
  CHECK(to.here()[4999] == 9);
  CHECK(second->counters().bytes_on_device == 5000);
  CHECK(second->counters().bytes_from_host == 5000);
  CHECK(second->counters().bytes_to_host == 5000);
}

TEST_CASE("memory that queued work uses is not freed under it") {
  const auto device = makeFake({.manual = true});
  const Stream stream = must(device->createStream());
  void* memory = must(device->allocate(64, MemoryKind::kDevice));
  Bytes bytes(*device, 64);
  must(device->copy(memory, bytes.here(), 64, stream));
  CHECK(device->free(memory).kind() == Error::kBadArgument);
  must(device->synchronize(stream, soonNs()));
  must(device->free(memory));
  CHECK(device->copy(memory, bytes.here(), 64, stream).kind() == Error::kBadArgument);
}

TEST_CASE("free waits for work that ends") {
  const auto device = makeFake();
  const Stream stream = must(device->createStream());
  for (int round = 0; round < 20; ++round) {
    void* memory = must(device->allocate(1 << 16, MemoryKind::kDevice));
    Bytes bytes(*device, 1 << 16);
    must(device->copy(memory, bytes.here(), 1 << 16, stream));
    must(device->free(memory));
  }
}

TEST_CASE("after warm-up, an operation's calls allocate nothing and synchronize no device") {
  const auto device = makeFake();
  const Stream stream = must(device->createStream());
  const std::unique_ptr<Gate> gate = must(Gate::create(*device));
  const Event event = must(device->createEvent());
  Bytes bytes(*device, 4096);
  const fake::Counters before = device->counters();
  for (uint64_t value = 1; value <= 20; value += 2) {
    bytes.up(stream);
    must(gate->signal(value, stream));
    must(gate->hold(value + 1, stream));
    must(device->record(event, stream));
    gate->open(value + 1);
    must(device->synchronize(stream, soonNs()));
  }
  const fake::Counters after = device->counters();
  CHECK(after.allocations == before.allocations);
  CHECK(after.device_synchronisations == before.device_synchronisations);
  CHECK(after.copies == before.copies + 10);
  CHECK(after.values == before.values + 20);
  CHECK(after.callbacks == 0);
}

TEST_CASE("a device with held work goes at once, and its streams are known no more") {
  Stream stream;
  {
    const auto device = makeFake();
    stream = must(device->createStream());
    void* word = must(device->allocate(8, MemoryKind::kPinned));
    must(device->waitValue(static_cast<uint64_t*>(word), 1, stream));
    must(device->callback([](void*) {}, nullptr, stream));
  }
  CHECK(makeFake()->synchronize(stream, soonNs()).kind() == Error::kBadArgument);
}

TEST_CASE("many threads use a device at once") {
  const auto device = makeFake({.queues = 2});
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const Result<Stream> stream = device->createStream();
      const Result<void*> there = device->allocate(1000, MemoryKind::kDevice);
      const Result<void*> here = device->allocate(1000, MemoryKind::kPinned);
      if (!stream.isOk() || !there.isOk() || !here.isOk()) return;
      auto* bytes = static_cast<uint8_t*>(here.value());
      for (int round = 0; round < 30; ++round) {
        std::memset(bytes, t * 50 + round, 1000);
        if (!device->copy(there.value(), bytes, 1000, stream.value()).isOk()) return;
        if (!device->synchronize(stream.value(), soonNs()).isOk()) return;
        bytes[500] = 0;
        if (!device->copy(bytes, there.value(), 1000, stream.value()).isOk()) return;
        if (!device->synchronize(stream.value(), soonNs()).isOk()) return;
        if (bytes[500] == static_cast<uint8_t>(t * 50 + round)) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 120);
}

}  // namespace jhetcc::device::tests
