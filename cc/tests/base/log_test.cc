// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace jhetcc {
namespace {

std::vector<LogLine> popAll() {
  std::vector<LogLine> lines;
  for (LogLine line; popLogLine(&line);) lines.push_back(line);
  return lines;
}

struct FreshLog {
  FreshLog() {
    CHECK(setLogSpec("warn").isOk());
    popAll();
  }
  ~FreshLog() {
    setLogSink({});
    CHECK(setLogSpec("warn").isOk());
    popAll();
  }
};

TEST_CASE("warnings only, unless the spec says more, by topic") {
  FreshLog fresh;
  CHECK(isLogged(LogLevel::kWarn, "net"));
  CHECK(!isLogged(LogLevel::kInfo, "net"));
  REQUIRE(setLogSpec(" info , rail=debug,net=off").isOk());
  CHECK(isLogged(LogLevel::kInfo, "engine"));
  CHECK(!isLogged(LogLevel::kDebug, "engine"));
  CHECK(isLogged(LogLevel::kDebug, "rail"));
  CHECK(!isLogged(LogLevel::kError, "net"));
  REQUIRE(setLogSpec("off").isOk());
  CHECK(!isLogged(LogLevel::kError, "engine"));
  REQUIRE(setLogSpec("rail=trace").isOk());
  CHECK(isLogged(LogLevel::kTrace, "rail"));
  CHECK(!isLogged(LogLevel::kInfo, "net"));
  CHECK(!isLogged(LogLevel::kOff, "rail"));
}

TEST_CASE("a wrong spec is refused with the part that is wrong, and changes nothing") {
  FreshLog fresh;
  REQUIRE(setLogSpec("error").isOk());
  for (const char* spec : {"loud", "rail=loud", "=debug", "info,debug", "rail="}) {
    const Status status = setLogSpec(spec);
    CHECK_MESSAGE(status.code() == "log_spec", spec);
  }
  CHECK(!isLogged(LogLevel::kWarn, "net"));
}

TEST_CASE("lines come out in order, with level and topic; repeats are counted") {
  FreshLog fresh;
  JHETCC_LOG(kWarn, "net", "one");
  JHETCC_LOG(kInfo, "net", "not wanted");
  for (int i = 0; i < 4; ++i) JHETCC_LOG(kError, "rail", "again");
  JHETCC_LOG(kWarn, "net", "two");
  JHETCC_LOG(kWarn, "net", "two");
  const std::vector<LogLine> lines = popAll();
  REQUIRE(lines.size() == 5);
  CHECK(lines[0].text == "one");
  CHECK(lines[0].topic == "net");
  CHECK(lines[0].time_ns > 0);
  CHECK(lines[1].level == LogLevel::kError);
  CHECK(lines[2].repeats == 3);
  CHECK(lines[3].text == "two");
  CHECK(lines[4].repeats == 1);  // told although nothing came after
}

TEST_CASE("a full queue drops and counts, and never blocks") {
  FreshLog fresh;
  const uint64_t before = droppedLogLines();
  for (size_t i = 0; i < kLogLinesMax + 10; ++i) JHETCC_LOG(kWarn, "net", "line " + std::to_string(i));
  CHECK(droppedLogLines() == before + 10);
  CHECK(popAll().size() == kLogLinesMax);
}

TEST_CASE("a sink takes the lines instead; several threads may log") {
  FreshLog fresh;
  std::atomic<int> taken{0};
  setLogSink([&](const LogLine& line) { taken += line.text.empty() ? 0 : 1; });
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 100; ++i) JHETCC_LOG(kWarn, "net", std::to_string(t) + "/" + std::to_string(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(taken == 300);
  setLogSink({});
  CHECK(popAll().empty());
}

}  // namespace
}  // namespace jhetcc
