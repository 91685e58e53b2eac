// SPDX-License-Identifier: Apache-2.0
// A vendor's collective library for members that are threads of one process: it blocks, cannot be aborted, and its
// calls meet in a hall that a test can hold shut. Any thread.
#pragma once

#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ccl/library.h"

namespace jhetcc::runtime::testing {

/// What the members of all communicators share, and what a test sees and decides.
class Hall {
 public:
  struct Meeting {
    std::map<int32_t, std::vector<char>> brought;
    int32_t gone = 0;
  };

  std::mutex mutex;
  std::condition_variable changed;
  bool is_shut = false;           ///< no call returns
  Status failure;                 ///< what every call ends with
  bool throws = false;            ///< every call does
  bool creates_for_ever = false;  ///< create() waits until leave()
  bool keeps_destroying = false;  ///< members that are destroyed wait until it is not so any more
  bool waits_for_members = true;  ///< create() returns when all are there
  size_t token_bytes = 20;        ///< of each token
  std::vector<std::string> made;  ///< tokens, in order
  std::vector<std::pair<std::string, ccl::Group>> created;  ///< with the token's first member's number
  std::vector<std::pair<const void*, const void*>> given;   ///< source and target of each call, as they came
  int tokens = 0, inside = 0, calls = 0, left = 0, destroyed = 0, crowded = 0;
  std::map<std::string, std::set<int32_t>> came;            ///< by circle
  std::map<std::pair<std::string, int>, Meeting> meetings;  ///< by circle and number of the call

  /// Tokens may be empty.
  static std::string circleOf(const ccl::Group& group) {
    std::string name = group.token;
    for (int32_t member : group.of_first) name += "/" + std::to_string(member);
    return name;
  }

  template <typename Change>
  void set(Change change) {
    std::lock_guard<std::mutex> lock(mutex);
    change();
    changed.notify_all();
  }
  /// False: not so at the deadline.
  template <typename Condition>
  bool await(Condition condition) {
    std::unique_lock<std::mutex> lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(20), condition);
  }
};

class MeetingLibrary final : public ccl::Library {
 public:
  explicit MeetingLibrary(std::shared_ptr<Hall> hall) : hall_(std::move(hall)) {
    capabilities_.name = "meeting";
    capabilities_.version = "7.1";
  }
  const ccl::Capabilities& capabilities() const override { return capabilities_; }
  void needsMembersToEnd() { capabilities_.destroys_alone = false; }

  Result<std::string> makeToken(int32_t, bool) override {
    std::lock_guard<std::mutex> lock(hall_->mutex);
    if (!hall_->failure.isOk()) return hall_->failure;
    std::string token = "token " + std::to_string(hall_->tokens++) + " ";
    for (size_t k = token.size(); k < hall_->token_bytes; ++k) token += static_cast<char>(k * 7 % 256);  // zeros, too
    if (hall_->token_bytes == 0) token.clear();
    hall_->made.push_back(token);
    return token;
  }

  Result<std::unique_ptr<ccl::Communicator>> create(const ccl::Group& group) override {
    std::unique_lock<std::mutex> lock(hall_->mutex);
    hall_->created.emplace_back(group.token, group);
    std::set<int32_t>& came = hall_->came[Hall::circleOf(group)];
    came.insert(group.rank);
    hall_->changed.notify_all();
    hall_->changed.wait(lock, [&] {
      if (has_left_) return true;
      if (hall_->creates_for_ever) return false;
      return !hall_->waits_for_members || came.size() == static_cast<size_t>(group.size);
    });
    if (has_left_) return Status(Kind::kAborted, Scope::kCommunicator, "left", "left while it was made");
    return std::unique_ptr<ccl::Communicator>(new Member(hall_, group));
  }

  void leave() override {
    hall_->set([this] { ++hall_->left, has_left_ = true; });
  }

 private:
  class Member final : public ccl::Communicator {
   public:
    Member(std::shared_ptr<Hall> hall, ccl::Group group) : hall_(std::move(hall)), group_(std::move(group)) {}
    ~Member() override {
      std::unique_lock<std::mutex> lock(hall_->mutex);
      if (is_left_) return;
      hall_->changed.wait(lock, [this] { return !hall_->keeps_destroying; });
      ++hall_->destroyed;
      hall_->changed.notify_all();
    }

    Status reduce(const void* source, void* target, size_t count, schedule::DataType type, schedule::ReduceOp,
                  int32_t root, ccl::Stream) override {
      return sum(source, group_.rank == root ? target : nullptr, count * schedule::itemSize(type));
    }
    Status allReduce(const void* source, void* target, size_t count, schedule::DataType type, schedule::ReduceOp,
                     ccl::Stream) override {
      return sum(source, target, count * schedule::itemSize(type));
    }
    Status broadcast(const void* source, void* target, size_t bytes, int32_t root, ccl::Stream) override {
      const bool is_root = group_.rank == root;
      return meet(is_root ? source : nullptr, is_root ? nullptr : target, bytes, [&](Hall::Meeting& meeting) {
        if (!is_root) std::memcpy(target, meeting.brought[root].data(), bytes);
      });
    }
    Status reduceScatter(const void*, void*, size_t, schedule::DataType, schedule::ReduceOp, ccl::Stream) override {
      return unused();
    }
    Status allGather(const void*, void*, size_t, ccl::Stream) override { return unused(); }
    Status allToAll(const void*, void*, size_t, ccl::Stream) override { return unused(); }
    Status exchange(const std::vector<Transfer>&, ccl::Stream) override { return unused(); }
    Status abort() override { return unused(); }
    void leave() override {
      hall_->set([this] { ++hall_->left, is_left_ = true; });
    }

   private:
    static Status unused() { return Status(Kind::kUnavailable, Scope::kCommunicator, "unavailable", "it cannot"); }

    /// Of floats, in the members' order.
    Status sum(const void* source, void* target, size_t bytes) {
      return meet(source, target, bytes, [&](Hall::Meeting& meeting) {
        if (!target) return;
        std::vector<float> total(bytes / sizeof(float), 0.0F);
        for (const auto& [rank, data] : meeting.brought) {
          for (size_t i = 0; i < total.size(); ++i) {
            float one = 0;
            std::memcpy(&one, data.data() + i * sizeof(float), sizeof(float));
            total[i] += one;
          }
        }
        std::memcpy(target, total.data(), bytes);
      });
    }

    template <typename Take>
    Status meet(const void* source, void* target, size_t bytes, Take take) {
      std::unique_lock<std::mutex> lock(hall_->mutex);
      if (is_busy_) ++hall_->crowded;  // two threads in one communicator
      is_busy_ = true;
      ++hall_->calls;
      ++hall_->inside;
      hall_->given.emplace_back(source, target);
      const auto key = std::make_pair(Hall::circleOf(group_), call_++);
      Hall::Meeting& meeting = hall_->meetings[key];
      const char* begin = static_cast<const char*>(source);
      meeting.brought[group_.rank] = source ? std::vector<char>(begin, begin + bytes) : std::vector<char>();
      hall_->changed.notify_all();
      hall_->changed.wait(lock, [&] {
        return !hall_->is_shut &&
               (meeting.brought.size() == static_cast<size_t>(group_.size) || !hall_->failure.isOk() || hall_->throws);
      });
      is_busy_ = false;
      --hall_->inside;
      if (hall_->throws) throw std::runtime_error("thrown by a library");
      if (!hall_->failure.isOk()) return hall_->failure;
      take(meeting);
      if (++meeting.gone == group_.size) hall_->meetings.erase(key);
      return Status::ok();
    }

    const std::shared_ptr<Hall> hall_;
    const ccl::Group group_;
    bool is_busy_ = false, is_left_ = false;  ///< guarded by the hall's mutex
    int call_ = 0;
  };

  const std::shared_ptr<Hall> hall_;
  ccl::Capabilities capabilities_;
  bool has_left_ = false;  ///< guarded by the hall's mutex
};

}  // namespace jhetcc::runtime::testing
