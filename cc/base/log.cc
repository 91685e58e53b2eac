// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/bounded_queue.h"
#include "base/hash.h"

namespace jhetcc {
namespace {

constexpr const char* kLevelNames[] = {"off", "error", "warn", "info", "debug", "trace"};

struct Spec {
  LogLevel general = LogLevel::kWarn;
  std::map<std::string, LogLevel, std::less<>> by_topic;
};

struct Log {
  std::atomic<LogLevel> level_max{LogLevel::kWarn};  ///< the highest anybody wants
  std::atomic<const Spec*> spec;
  std::atomic<uint64_t> last_hash{0}, repeats{0}, dropped{0};
  BoundedQueue<LogLine> queue{kLogLinesMax};
  std::mutex mutex;                          ///< guards what follows; never taken while the sink runs
  std::vector<std::unique_ptr<Spec>> specs;  ///< every one ever set: readers hold no lock, so none is freed
  std::shared_ptr<const std::function<void(const LogLine&)>> sink;
  std::atomic<bool> has_sink{false};

  Log() {
    specs.push_back(std::make_unique<Spec>());
    spec.store(specs.back().get());
  }
};

/// Never destroyed: threads may log while the process exits.
Log& log() {
  static Log* const instance = new Log;
  return *instance;
}

int64_t realTimeNs() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

Result<LogLevel> parseLevel(std::string_view text) {
  for (size_t i = 0; i < std::size(kLevelNames); ++i) {
    if (text == kLevelNames[i]) return static_cast<LogLevel>(i);
  }
  return Status(Kind::kBadArgument, Scope::kCall, "log_spec",
                "log level '" + std::string(text) + "' is not one of off, error, warn, info, debug, trace");
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

void deliver(LogLine line) {
  Log& state = log();
  if (state.has_sink.load(std::memory_order_acquire)) {
    std::unique_lock lock(state.mutex);
    const auto sink = state.sink;
    lock.unlock();
    if (sink) return (*sink)(line);
  }
  if (!state.queue.push(std::move(line))) state.dropped.fetch_add(1, std::memory_order_relaxed);
}

LogLine repeatLine(uint64_t repeats) {
  return LogLine{LogLevel::kInfo, "log", "the line before came " + std::to_string(repeats) + " more times",
                 realTimeNs(), repeats};
}

}  // namespace

const char* levelName(LogLevel level) { return kLevelNames[static_cast<size_t>(level)]; }

Status setLogSpec(std::string_view text) {
  auto spec = std::make_unique<Spec>();
  LogLevel level_max = LogLevel::kOff;
  bool has_general = false;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view part = trimmed(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
    const size_t equals = part.find('=');
    const bool is_general = equals == std::string_view::npos;
    const std::string_view topic = is_general ? std::string_view() : trimmed(part.substr(0, equals));
    const Result<LogLevel> level = parseLevel(is_general ? part : trimmed(part.substr(equals + 1)));
    if (!level.isOk()) return level.status();
    if ((is_general && has_general) || (!is_general && topic.empty())) {
      return Status(Kind::kBadArgument, Scope::kCall, "log_spec",
                    "log spec part '" + std::string(part) +
                        "' is not understood; write one level and levels by topic, "
                        "as in info,rail=debug");
    }
    if (is_general) {
      spec->general = level.value();
      has_general = true;
    } else {
      spec->by_topic[std::string(topic)] = level.value();
    }
  }
  level_max = spec->general;
  for (const auto& [topic, level] : spec->by_topic) level_max = std::max(level_max, level);
  Log& state = log();
  std::lock_guard lock(state.mutex);
  state.specs.push_back(std::move(spec));
  state.spec.store(state.specs.back().get(), std::memory_order_release);
  state.level_max.store(level_max, std::memory_order_relaxed);
  return Status::ok();
}

bool isLogged(LogLevel level, std::string_view topic) {
  Log& state = log();
  if (level == LogLevel::kOff || level > state.level_max.load(std::memory_order_relaxed)) return false;
  const Spec* spec = state.spec.load(std::memory_order_acquire);
  const auto found = spec->by_topic.find(topic);
  return level <= (found == spec->by_topic.end() ? spec->general : found->second);
}

void logLine(LogLevel level, std::string_view topic, std::string text) {
  if (!isLogged(level, topic)) return;
  Log& state = log();
  const uint64_t hash = hashNumber(static_cast<uint64_t>(level), hashText(text, hashText(topic)));
  if (state.last_hash.exchange(hash, std::memory_order_relaxed) == hash) {
    state.repeats.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const uint64_t repeats = state.repeats.exchange(0, std::memory_order_relaxed);
  if (repeats > 0) deliver(repeatLine(repeats));
  deliver(LogLine{level, std::string(topic), std::move(text), realTimeNs(), 0});
}

void setLogSink(std::function<void(const LogLine&)> sink) {
  Log& state = log();
  std::lock_guard lock(state.mutex);
  state.has_sink.store(static_cast<bool>(sink), std::memory_order_release);
  state.sink = sink ? std::make_shared<const std::function<void(const LogLine&)>>(std::move(sink)) : nullptr;
}

bool popLogLine(LogLine* line) {
  Log& state = log();
  if (state.queue.pop(line)) return true;
  if (state.has_sink.load(std::memory_order_relaxed)) return false;
  // A line that repeats without end would otherwise never be told of.
  const uint64_t repeats = state.repeats.exchange(0, std::memory_order_relaxed);
  if (repeats == 0) return false;
  *line = repeatLine(repeats);
  return true;
}

uint64_t droppedLogLines() { return log().dropped.load(std::memory_order_relaxed); }

}  // namespace jhetcc
