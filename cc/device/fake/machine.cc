// SPDX-License-Identifier: Apache-2.0
#include "device/fake/machine.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "base/thread.h"

namespace jhetcc::device::fake {

namespace {

constexpr auto kPoll = std::chrono::microseconds(50);  // values and other devices' events do not notify
constexpr auto kSlice = std::chrono::milliseconds(1);

struct Tracks {
  std::mutex mutex;
  std::map<Stream, std::shared_ptr<Track>> by_handle;
};
Tracks& tracks() {
  static Tracks* const only = new Tracks;
  return *only;
}

}  // namespace

Result<std::shared_ptr<Track>> findTrack(Stream stream) {
  const std::lock_guard lock(tracks().mutex);
  const auto found = tracks().by_handle.find(stream);
  if (found != tracks().by_handle.end()) return found->second;
  return Status(Kind::kBadArgument, Scope::kCall, "bad_argument",
                "no stream of a virtual accelerator: null, or destroyed, or another device's");
}

Machine::Machine(const Options& options, std::shared_ptr<CallbackThread> callbacks)
    : options_(options),
      callbacks_(std::move(callbacks)),
      random_(options.seed),
      queues_(static_cast<size_t>(options.queues) + static_cast<size_t>(options.own_queues)) {}

Result<std::unique_ptr<Machine>> Machine::create(const Options& options) {
  if (options.queues < 1 || options.own_queues < 0) {
    return Status(Kind::kBadArgument, Scope::kCall, "bad_option",
                  "a virtual accelerator needs a hardware queue that streams share");
  }
  Result<std::shared_ptr<CallbackThread>> callbacks = CallbackThread::get();
  if (!callbacks.isOk()) return callbacks.status();
  std::unique_ptr<Machine> made(new Machine(options, std::move(callbacks).value()));
  if (options.manual) return made;
  Result<std::thread> thread = startThread("fake-device", [self = made.get()] { self->run(); });
  if (!thread.isOk()) return thread.status();
  made->thread_ = std::move(thread).value();
  return made;
}

Machine::~Machine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  // What callbacks of ours touch belongs to our user, who may go as soon as we have gone.
  callbacks_->waitIdle(clock_.nowNs() + options_.callback_limit_ns);
  const std::lock_guard lock(tracks().mutex);
  for (const std::shared_ptr<Track>& track : tracks_) tracks().by_handle.erase(track.get());
}

std::shared_ptr<Track> Machine::createStream(Queue queue) {
  auto track = std::make_shared<Track>();
  {
    const std::lock_guard lock(mutex_);
    track->machine = this;
    if (queue == Queue::kShared) {
      track->queue = streams_made_++ % static_cast<size_t>(options_.queues);
    } else {
      track->queue = static_cast<size_t>(options_.queues);
      const auto has_it = [&](const auto& other) { return other->queue == track->queue; };
      while (std::any_of(tracks_.begin(), tracks_.end(), has_it)) ++track->queue;
      if (track->queue == queues_.size()) return nullptr;
    }
    tracks_.push_back(track);
  }
  const std::lock_guard lock(tracks().mutex);
  tracks().by_handle[track.get()] = track;
  return track;
}

Status Machine::destroyStream(Stream stream) {
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(tracks_.begin(), tracks_.end(), [&](const auto& track) { return track.get() == stream; });
    if (found == tracks_.end()) {
      return Status(Kind::kBadArgument, Scope::kCall, "bad_argument", "no stream of this virtual accelerator");
    }
    tracks_.erase(found);
  }
  const std::lock_guard lock(tracks().mutex);
  tracks().by_handle.erase(stream);
  return Status::ok();
}

void Machine::enqueue(const std::shared_ptr<Track>& track, Work work) {
  {
    const std::lock_guard lock(mutex_);
    ++track->queued;
    queues_[track->queue].push_back({track, std::move(work)});
  }
  changed_.notify_all();
}

bool Machine::isEmpty() const {
  return std::all_of(queues_.begin(), queues_.end(), [](const auto& queue) { return queue.empty(); });
}

void Machine::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (runOne(lock)) continue;
    if (isEmpty()) {
      changed_.wait(lock, [this] { return stopping_ || !isEmpty(); });
    } else {
      changed_.wait_for(lock, kPoll);
    }
  }
}

bool Machine::runOne(std::unique_lock<std::mutex>& lock) {
  const size_t first = random_.below(queues_.size());
  for (size_t k = 0; k < queues_.size(); ++k) {
    std::deque<Entry>& queue = queues_[(first + k) % queues_.size()];
    if (queue.empty()) continue;
    Entry& head = queue.front();  // stays in its place: others only push at the end
    const auto ask = [&] {
      if (!callbacks_->enterStep()) return false;
      const bool is_done = head.work.step();
      callbacks_->leaveStep();
      return is_done;
    };
    lock.unlock();
    bool is_done = ask();
    if (!is_done && options_.manual) {  // a callback that this has just posted is part of the same step
      is_done = callbacks_->waitIdle(clock_.nowNs() + options_.callback_limit_ns) && ask();
    }
    lock.lock();
    if (!is_done) continue;
    Entry finished = std::move(head);
    queue.pop_front();
    // Pins and contexts go before anybody hears of the end, and their owners' code runs without our lock.
    lock.unlock();
    finished.work = {};
    lock.lock();
    ++finished.track->done;
    changed_.notify_all();
    return true;
  }
  return false;
}

bool Machine::step() {
  std::unique_lock lock(mutex_);
  return runOne(lock);
}

Status Machine::synchronize(const std::shared_ptr<Track>& track, int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  const uint64_t target = track->queued;
  while (track->done < target) {
    if (options_.manual && runOne(lock)) continue;
    if (clock_.nowNs() >= deadline_ns) {
      return Status(Kind::kTimeout, Scope::kCall, "device_timeout",
                    "a stream did not finish in time: " + std::to_string(track->done) + " of " +
                        std::to_string(target) +
                        " pieces of work are done, and the next, or another stream's on the "
                        "same hardware queue, still waits");
    }
    changed_.wait_for(lock, kSlice);
  }
  return Status::ok();
}

bool Machine::waitWhile(const std::function<bool()>& is_so, int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  while (is_so()) {
    if (options_.manual || clock_.nowNs() >= deadline_ns) return false;
    changed_.wait_for(lock, kSlice);
  }
  return true;
}

}  // namespace jhetcc::device::fake
