// SPDX-License-Identifier: Apache-2.0
// Streams of one virtual accelerator on its hardware queues: a queue does its work in the order it came, so a stream's
// wait at its head holds the other streams of that queue. One thread does the work, or the caller of step(). Any
// thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "device/device.h"
#include "device/fake/callbacks.h"
#include "device/fake/fake.h"

namespace jhetcc::device::fake {

class Machine;

/// A stream; its address is the handle.
struct Track {
  Machine* machine;
  size_t queue;
  uint64_t queued = 0, done = 0;  ///< under the machine's lock
};
/// kBadArgument unless it is a stream of a living virtual accelerator.
Result<std::shared_ptr<Track>> findTrack(Stream stream);

struct Work {
  std::function<bool()> step;  ///< true when done, false: later; asked again and again, and never waits
  std::vector<std::shared_ptr<const void>> pins;
};

class Machine {
 public:
  static Result<std::unique_ptr<Machine>> create(const Options& options);
  ~Machine();

  std::shared_ptr<Track> createStream(Queue queue);  ///< null: no queue of its own is left
  Status destroyStream(Stream stream);
  void enqueue(const std::shared_ptr<Track>& track, Work work);
  Status synchronize(const std::shared_ptr<Track>& track, int64_t deadline_ns);
  bool step();
  /// Waits while `is_so`; what it looks at changes with the end of work. False at the deadline, or at once if manual.
  bool waitWhile(const std::function<bool()>& is_so, int64_t deadline_ns);
  CallbackThread& callbacks() { return *callbacks_; }

 private:
  Machine(const Options& options, std::shared_ptr<CallbackThread> callbacks);
  void run();
  bool runOne(std::unique_lock<std::mutex>& lock);
  bool isEmpty() const;

  struct Entry {
    std::shared_ptr<Track> track;
    Work work;
  };
  const Options options_;
  const SystemClock clock_;
  const std::shared_ptr<CallbackThread> callbacks_;
  SeededRandom random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<Entry>> queues_;  ///< the shared ones, then those of one stream each
  std::vector<std::shared_ptr<Track>> tracks_;
  size_t streams_made_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace jhetcc::device::fake
