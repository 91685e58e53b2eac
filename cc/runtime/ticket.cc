// SPDX-License-Identifier: Apache-2.0
#include "runtime/ticket.h"

#include <algorithm>

#include "runtime/runner.h"

namespace jhetcc::runtime {

void Ticket::onDone(const Status& status) {
  if (join_) {
    const std::shared_ptr<LocalJoin> join = join_;  // delivery may end this ticket
    join->onDone(slot_, this, status);
  } else {
    deliver(status);
  }
}

void Ticket::deliver(const Status& status) {
  status_ = status;
  // After the exchange a watching caller may free the ticket: touch nothing of it then.
  Runner* runner = runner_;
  if (state_.exchange(kDone) == kLeft) {
    runner->enqueueCompletion(this);
  } else {
    runner->wakeWaiters();
  }
}

void Ticket::renew(Runner* runner, std::shared_ptr<LocalJoin> join, int32_t slot) {
  runner_ = runner;
  join_ = std::move(join);
  slot_ = slot;
  status_ = Status();
  state_.store(kPending, std::memory_order_release);
}

bool Ticket::leave() {
  int expected = kPending;
  return state_.compare_exchange_strong(expected, kLeft, std::memory_order_acq_rel);
}

LocalJoin::LocalJoin(std::vector<int32_t> slots) : slots_(std::move(slots)), next_(slots_.size(), 0) {}

void LocalJoin::onDone(int32_t slot, Ticket* ticket, const Status& status) {
  std::vector<Ticket*> ready;
  Status word = status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t position = static_cast<size_t>(std::find(slots_.begin(), slots_.end(), slot) - slots_.begin());
    const uint64_t number = next_[position]++;
    while (number - base_ >= entries_.size()) entries_.emplace_back();
    Entry& entry = entries_[number - base_];
    ++entry.arrived;
    entry.waiting.push_back(ticket);
    if (entry.failure.isOk()) entry.failure = status;
    word = entry.failure;
    if (entry.arrived == slots_.size() || !word.isOk()) ready.swap(entry.waiting);
    while (!entries_.empty() && entries_.front().arrived == slots_.size()) {
      entries_.pop_front();
      ++base_;
    }
  }
  for (Ticket* done : ready) done->deliver(word);
}

}  // namespace jhetcc::runtime
