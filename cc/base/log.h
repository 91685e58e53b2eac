// SPDX-License-Identifier: Apache-2.0
// Quiet logging: lines go into a bounded queue that nobody waits for (or to a sink), and only where a spec allows. Any
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace jhetcc {

enum class LogLevel : uint8_t { kOff = 0, kError, kWarn, kInfo, kDebug, kTrace };
const char* levelName(LogLevel level);

struct LogLine {
  LogLevel level = LogLevel::kOff;
  std::string topic;  ///< the room: "net", "rail"
  std::string text;
  int64_t time_ns = 0;   ///< CLOCK_REALTIME
  uint64_t repeats = 0;  ///< not 0: this line stands for so many further copies of the line before
};

constexpr size_t kLogLinesMax = 1024;

/// "info", "off", "info,rail=debug": one default and levels by topic. Before the first call: "warn".
Status setLogSpec(std::string_view spec);

/// Costs one relaxed load where nothing of that level is wanted.
bool isLogged(LogLevel level, std::string_view topic);

/// Never blocks on the queue: a line that finds it full is counted and lost. A copy of the line before is only counted.
void logLine(LogLevel level, std::string_view topic, std::string text);

/// Lines go to `sink` on the writer's thread instead of the queue; an empty one brings the queue back.
/// A sink must not log.
void setLogSink(std::function<void(const LogLine&)> sink);

/// The oldest line, or false. One reader at a time.
bool popLogLine(LogLine* line);

/// Lines lost to a full queue since the start.
uint64_t droppedLogLines();

}  // namespace jhetcc

/// JHETCC_LOG(kInfo, "net", "listening on " + address.text()): the text is built only if it is wanted.
#define JHETCC_LOG(level, topic, text)                           \
  do {                                                           \
    if (::jhetcc::isLogged(::jhetcc::LogLevel::level, topic))    \
      ::jhetcc::logLine(::jhetcc::LogLevel::level, topic, text); \
  } while (0)
