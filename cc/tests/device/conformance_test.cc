// SPDX-License-Identifier: Apache-2.0
// What every device does, run on all of them.
#include <atomic>

#include "device/devices.h"

namespace jhetcc::device::tests {

TEST_CASE("bytes go to the device, within it and back in the order of the stream") {
  for (Kind& kind : allKinds()) {
    CAPTURE(kind.name);
    Device& device = *kind.device;
    const Stream stream = must(device.createStream());
    for (const size_t size : {size_t{1}, size_t{4095}, size_t{4096}, size_t{100'001}}) {
      Bytes first(device, size), second(device, size);
      for (size_t k = 0; k < size; ++k) first.here()[k] = static_cast<uint8_t>(k * 31 + size);
      first.up(stream);
      must(device.copy(second.there(), first.there(), size, stream));
      must(device.copy(second.there() + size / 2, first.there(), size - size / 2, stream));
      second.down(stream);
      must(device.synchronize(stream, soonNs()));
      bool right = true;
      for (size_t k = 0; k < size; ++k) right &= second.here()[k] == first.here()[k < size / 2 ? k : k - size / 2];
      CHECK(right);
    }
    must(device.destroyStream(stream));
  }
}

TEST_CASE("copies of nothing are allowed up to the end of memory") {
  for (Kind& kind : allKinds()) {
    CAPTURE(kind.name);
    const Stream stream = must(kind.device->createStream());
    Bytes bytes(*kind.device, 10), none(*kind.device, 0);
    CHECK(kind.device->copy(bytes.there() + 10, bytes.there(), 0, stream).isOk());
    CHECK(kind.device->copy(none.there(), none.here(), 0, stream).isOk());
    must(kind.device->synchronize(stream, soonNs()));
  }
}

TEST_CASE("a stream waits for what an event recorded on another") {
  for (Kind& kind : allKinds()) {
    CAPTURE(kind.name);
    Device& device = *kind.device;
    const Stream first = must(device.createStream()), second = must(device.createStream());
    const Event event = must(device.createEvent());
    CHECK(must(device.isDone(event)));
    must(device.wait(event, second));  // recorded nothing: nothing to wait for
    Bytes bytes(device, 1 << 20), other(device, 1 << 20);
    for (int round = 1; round <= 5; ++round) {
      std::memset(bytes.here(), round, bytes.size());
      bytes.up(first);
      must(device.record(event, first));
      must(device.wait(event, second));
      must(device.copy(other.there(), bytes.there(), bytes.size(), second));
      other.down(second);
      must(device.synchronize(second, soonNs()));
      CHECK(must(device.isDone(event)));
      CHECK(other.here()[0] == round);
      CHECK(other.here()[other.size() - 1] == round);
    }
    must(device.destroyEvent(event));
  }
}

TEST_CASE("a gate tells the host how far a stream has come") {
  for (Kind& kind : allKinds()) {
    CAPTURE(kind.name);
    Device& device = *kind.device;
    const Stream stream = must(device.createStream());
    const std::unique_ptr<Gate> gate = must(Gate::create(device));
    CHECK(gate->reached() == 0);
    Bytes bytes(device, 4096);
    for (uint64_t value = 1; value <= 10; ++value) {
      bytes.here()[5] = static_cast<uint8_t>(value);
      bytes.up(stream);
      bytes.down(stream);
      must(gate->signal(value, stream));
      must(device.synchronize(stream, soonNs()));
      CHECK(gate->reached() == value);
      CHECK(bytes.here()[5] == value);
    }
  }
}

TEST_CASE("a gate holds a stream where streams wait for values, and says so where they do not") {
  for (Kind& kind : allKinds()) {
    CAPTURE(kind.name);
    Device& device = *kind.device;
    const Stream stream = must(device.createStream());
    const std::unique_ptr<Gate> gate = must(Gate::create(device));
    const Status held = gate->hold(3, stream);
    CHECK(held.isOk() == device.capabilities().stream_values);
    if (!held.isOk()) {
      CHECK(held.kind() == jhetcc::Kind::kUnavailable);
      continue;
    }
    const Event event = must(device.createEvent());
    must(device.record(event, stream));
    gate->open(2);
    const Status early = device.synchronize(stream, soonNs(30));
    CHECK(early.kind() == jhetcc::Kind::kTimeout);
    CHECK(early.code() == "device_timeout");
    CHECK_FALSE(must(device.isDone(event)));
    gate->open(3);
    must(device.synchronize(stream, soonNs()));
    CHECK(must(device.isDone(event)));
  }
}

TEST_CASE("a gate that is opened early stays open, whatever the stream signals after") {
  for (Kind& kind : allKinds()) {
    CAPTURE(kind.name);
    Device& device = *kind.device;
    if (!device.capabilities().stream_values) continue;
    const Stream stream = must(device.createStream());
    const std::unique_ptr<Gate> gate = must(Gate::create(device));
    gate->open(2);
    must(gate->signal(1, stream));
    must(gate->hold(2, stream));
    must(device.synchronize(stream, soonNs()));
    CHECK(gate->reached() == 1);
  }
}

TEST_CASE("a gate's callbacks have a limit, which is an error and not a wait") {
  const auto device = makeFake({.stream_values = false, .manual = true});
  const Stream stream = must(device->createStream());
  const std::unique_ptr<Gate> gate = must(Gate::create(*device));
  uint64_t sent = 0;
  Status status;
  while ((status = gate->signal(sent + 1, stream)).isOk()) ++sent;
  CHECK(sent == 64);
  CHECK(status.kind() == jhetcc::Kind::kResource);
  must(device->synchronize(stream, soonNs()));
  CHECK(gate->reached() == sent);
  must(gate->signal(sent + 1, stream));
  must(device->synchronize(stream, soonNs()));
  CHECK(gate->reached() == sent + 1);
}

TEST_CASE("callbacks come once each, in the order of the stream") {
  for (Kind& kind : allKinds()) {
    CAPTURE(kind.name);
    const Stream stream = must(kind.device->createStream());
    struct Seen {
      std::vector<int> order;
      int next = 0;
    } seen;
    const auto note = [](void* context) {
      auto* kept = static_cast<Seen*>(context);
      kept->order.push_back(kept->next++);
    };
    for (int k = 0; k < 20; ++k) must(kind.device->callback(note, &seen, stream));
    must(kind.device->synchronize(stream, soonNs()));
    CHECK(seen.order.size() == 20);
    CHECK(seen.order.back() == 19);
  }
}

TEST_CASE("zeros come in the order of the stream, and nowhere else") {
  for (Kind& kind : allKinds()) {
    CAPTURE(kind.name);
    Device& device = *kind.device;
    const Stream stream = must(device.createStream(Queue::kPrivate));
    Bytes bytes(device, 100);
    std::memset(bytes.here(), 9, 100);
    bytes.up(stream);
    must(device.zero(bytes.there() + 10, 20, stream));
    must(device.zero(bytes.there() + 50, 0, stream));
    bytes.down(stream);
    must(device.synchronize(stream, soonNs()));
    for (int k = 0; k < 100; ++k) CHECK(bytes.here()[k] == (k < 10 || k >= 30 ? 9 : 0));
    must(device.destroyStream(stream));
    CHECK(device.zero(bytes.there(), 1, stream).kind() == jhetcc::Kind::kBadArgument);
  }
}

TEST_CASE("handles that are not the device's are refused") {
  for (Kind& kind : allKinds()) {
    CAPTURE(kind.name);
    Device& device = *kind.device;
    const Stream stream = must(device.createStream());
    must(device.destroyStream(stream));
    const Event event = must(device.createEvent());
    must(device.destroyEvent(event));
    Bytes bytes(device, 8);
    int local = 0;
    for (const Status& status :
         {device.destroyStream(stream), device.destroyEvent(event), device.synchronize(stream, soonNs()),
          device.copy(bytes.there(), bytes.here(), 8, stream), device.record(event, stream), device.wait(event, stream),
          device.isDone(event).status(), device.callback([](void*) {}, nullptr, stream), device.free(&local),
          device.synchronize(nullptr, soonNs())}) {
      CHECK(status.kind() == jhetcc::Kind::kBadArgument);
    }
  }
}

TEST_CASE("an alias shows the device's bytes to who was given it") {
  for (Kind& kind : allKinds()) {
    CAPTURE(kind.name);
    const Stream stream = must(kind.device->createStream());
    Bytes bytes(*kind.device, 10'000);
    bytes.here()[9'000] = 42;
    bytes.up(stream);
    must(kind.device->synchronize(stream, soonNs()));
    auto* seen = static_cast<uint8_t*>(must(kind.device->alias(bytes.there() + 5'000, 5'000)));
    CHECK(seen[4'000] == 42);
    seen[4'999] = 7;  // as a NIC writes
    bytes.down(stream);
    must(kind.device->synchronize(stream, soonNs()));
    CHECK(bytes.here()[9'999] == 7);
  }
}

}  // namespace jhetcc::device::tests
