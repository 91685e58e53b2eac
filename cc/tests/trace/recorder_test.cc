// SPDX-License-Identifier: Apache-2.0
#include "trace/recorder.h"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <thread>

#include "trace/counters.h"

namespace jhetcc::trace {
namespace {

std::unique_ptr<Recorder> recorder(size_t capacity) {
  Result<std::unique_ptr<Recorder>> created = Recorder::create(capacity);
  JHETCC_CHECK(created.isOk(), created.status().message());
  return std::move(created).value();
}

Record numbered(uint64_t number) {
  Record record;
  record.time_ns = static_cast<int64_t>(number);
  record.kind = EventKind::kMark;
  record.communicator = number ^ 0x5555;
  record.sequence = number * 3;
  record.bytes = ~number;
  record.argument = number;
  record.step = static_cast<int32_t>(number & 0xffff);
  record.peer = static_cast<int32_t>(number & 0xff);
  record.index = static_cast<uint32_t>(number);
  record.stream = static_cast<uint16_t>(number);
  return record;
}

/// All fields come from one write.
bool isWhole(const Record& r) {
  const Record wanted = numbered(r.argument);
  return r.time_ns == wanted.time_ns && r.communicator == wanted.communicator && r.sequence == wanted.sequence &&
         r.bytes == wanted.bytes && r.step == wanted.step && r.peer == wanted.peer && r.index == wanted.index &&
         r.stream == wanted.stream && r.kind == wanted.kind;
}

TEST_CASE("the last records come back, oldest first") {
  auto ring = recorder(8);
  CHECK(ring->snapshot().empty());
  for (uint64_t n = 0; n < 5; ++n) ring->write(numbered(n));
  CHECK(ring->snapshot().size() == 5);
  for (uint64_t n = 5; n < 21; ++n) ring->write(numbered(n));
  const std::vector<Record> records = ring->snapshot();
  REQUIRE(records.size() == 8);
  for (size_t i = 0; i < 8; ++i) {
    CHECK(records[i].argument == 13 + i);
    CHECK(isWhole(records[i]));
  }
  CHECK(ring->written() == 21);
  CHECK(ring->lost() == 0);
}

TEST_CASE("capacities that make no ring are refused") {
  for (size_t capacity : {size_t{0}, size_t{1}, size_t{3}, size_t{1} << 25}) {
    CHECK(Recorder::create(capacity).status().code() == "recorder_capacity");
  }
}

TEST_CASE("several writers and a reader: no torn record, none doubled, none missing but those counted") {
  auto ring = recorder(64);
  constexpr uint64_t kPerThread = 20'000;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> torn{0}, unordered{0}, seen{0};
  std::thread reader([&] {
    while (!stop || seen == 0) {
      std::set<uint64_t> arguments;
      const std::vector<Record> records = ring->snapshot();
      for (const Record& record : records) {
        if (!isWhole(record)) ++torn;
        if (!arguments.insert(record.argument).second) ++unordered;
      }
      seen += records.size();
    }
  });
  std::vector<std::thread> writers;
  for (uint64_t t = 0; t < 3; ++t) {
    writers.emplace_back([&, t] {
      for (uint64_t n = 0; n < kPerThread; ++n) ring->write(numbered(t * kPerThread + n));
    });
  }
  for (std::thread& writer : writers) writer.join();
  stop = true;
  reader.join();
  CHECK(torn == 0);
  CHECK(unordered == 0);
  CHECK(ring->written() == 3 * kPerThread);
  CHECK(ring->snapshot().size() == 64);
}

TEST_CASE("every event and counter has its own name") {
  std::set<std::string> names;
  for (uint16_t kind = 0; kind < static_cast<uint16_t>(EventKind::kKinds); ++kind) {
    names.insert(eventName(static_cast<EventKind>(kind)));
  }
  CHECK(names.size() == static_cast<size_t>(EventKind::kKinds));
  CHECK(std::string(eventName(EventKind::kKinds)) == "unknown");
  names.clear();
  for (size_t i = 0; i < kCounters; ++i) names.insert(counterName(static_cast<Counter>(i)));
  CHECK(names.size() == kCounters);
}

TEST_CASE("counters of several threads add up") {
  Counters counters;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) counters.add(Counter::kBytesMoved, 7);
    });
  }
  for (std::thread& thread : threads) thread.join();
  counters.add(Counter::kAborts);
  CHECK(counters.get(Counter::kBytesMoved) == 21'000);
  CHECK(counters.snapshot()[static_cast<size_t>(Counter::kAborts)] == 1);
  CHECK(counters.get(Counter::kSleeps) == 0);
}

}  // namespace
}  // namespace jhetcc::trace
