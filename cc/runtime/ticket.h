// SPDX-License-Identifier: Apache-2.0
// One call waiting for its operation, and the join of all local ranks of a communicator: they end together.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.h"

namespace jhetcc::runtime {

class Runner;
class LocalJoin;

/// The caller polls done(), or leaves: then resolve() is called on the rank's completion thread.
class Ticket : public engine::Completion {
 public:
  Ticket(Runner* runner, std::shared_ptr<LocalJoin> join, int32_t slot)
      : runner_(runner), join_(std::move(join)), slot_(slot) {}

  void onDone(const Status& status) final;  ///< from the engine; goes through the join, if there is one
  void deliver(const Status& status);       ///< the final word

  bool done() const { return state_.load() == kDone; }
  const Status& status() const { return status_; }
  /// The caller stops watching. False: it is done already, take the status.
  bool leave();

  /// Before leave(), by the caller: what resolve() will need.
  virtual void prepareToLeave() {}
  /// After leave(): called once on the completion thread.
  virtual void resolve() = 0;

 protected:
  /// Makes a ticket that is done and was not left new again, for another call.
  void renew(Runner* runner, std::shared_ptr<LocalJoin> join, int32_t slot);

 private:
  enum State : int { kPending, kLeft, kDone };
  Runner* runner_;
  std::shared_ptr<LocalJoin> join_;  ///< outlives its communicator for the calls still queued
  int32_t slot_;
  std::atomic<int> state_{kPending};
  Status status_;
};

/// A ticket whose caller waits for it: it never leaves.
class BlockingTicket final : public Ticket {
 public:
  using Ticket::Ticket;
  void resolve() override {}
};

/// Local ranks of one communicator succeed together; a failure is everybody's at once.
/// Why: a device that goes on into XLA's own collective while its neighbour failed would hang the process there.
class LocalJoin {
 public:
  explicit LocalJoin(std::vector<int32_t> slots);
  void onDone(int32_t slot, Ticket* ticket, const Status& status);

 private:
  struct Entry {
    size_t arrived = 0;
    Status failure;
    std::vector<Ticket*> waiting;
  };
  std::mutex mutex_;
  const std::vector<int32_t> slots_;
  std::vector<uint64_t> next_;  ///< per slot: its k-th operation
  uint64_t base_ = 0;
  std::deque<Entry> entries_;
};

}  // namespace jhetcc::runtime
