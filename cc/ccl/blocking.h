// SPDX-License-Identifier: Apache-2.0
// What communicators have in common whose calls block and cannot be aborted. See library.h for the threads.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/log.h"
#include "ccl/library.h"

namespace jhetcc::ccl {

/// `Vendor` has the types Abi, Comm, Type and Op, and the functions
///   typeOf(type), opOf(op, type)    as the library says them; an op of kNone: it cannot do it, or not by our rules
///   destroy(Abi, Comm&)             0: done
///   failed(Abi, what, code, Comm)   what the library says of a code
///   lose()                          a member is lost, perhaps: the process must be able to end with a stuck thread
/// and a kName. A vendor's class adds the calls.
template <typename Vendor>
class BlockingCommunicator : public Communicator {
 public:
  using Abi = typename Vendor::Abi;
  using Comm = typename Vendor::Comm;

  BlockingCommunicator(const Abi& abi, Comm comm, const Group& group) : state_(std::make_shared<State>()) {
    state_->abi = abi;
    state_->comm = comm;
    state_->rank = group.rank;
    state_->size = group.size;
    state_->where = "rank " + std::to_string(group.rank) + " of " + std::to_string(group.size);
  }
  ~BlockingCommunicator() override {
    State& s = *state_;
    if (s.is_left.load()) return;
    if (s.is_broken.load()) {
      Vendor::lose();
      return;
    }
    if (const int code = Vendor::destroy(s.abi, s.comm); code != 0) {
      JHETCC_LOG(kWarn, "ccl", Vendor::failed(s.abi, "destroying a communicator, " + s.where, code, Comm{}).message());
    }
  }

  Status abort() final {
    return Status(
        Kind::kUnavailable, Scope::kCommunicator, "unavailable",
        std::string(Vendor::kName) + " cannot free a call that waits; give it up and leave the communicator behind");
  }
  void leave() final {
    if (!state_->is_left.exchange(true)) Vendor::lose();
  }

 protected:
  /// Outlives this object while a call that was given up is inside the library.
  struct State {
    Abi abi;
    Comm comm;
    int32_t rank, size;
    std::string where;  ///< "rank 1 of 4"
    std::atomic<bool> is_left{false}, is_broken{false};
  };

  /// The one way into the library: `call(State&)` returns its code.
  template <typename Call>
  Status run(const char* what, Call call) {
    const std::shared_ptr<State> state = state_;  // `this` may be gone when a call that was given up comes back
    const auto left = [&] {
      return Status(Kind::kAborted, Scope::kCommunicator, "aborted",
                    std::string(what) + ", " + state->where + ": the communicator was given up");
    };
    if (state->is_left.load()) return left();
    const int code = call(*state);
    if (state->is_left.load()) return left();
    if (code == 0) return Status::ok();
    state->is_broken.store(true);
    return Vendor::failed(state->abi, std::string(what) + ", " + state->where, code, state->comm);
  }
  /// `call(State&, type, op)`, where there are elements.
  template <typename Call>
  Status reduceWith(const char* what, size_t count, schedule::DataType type, schedule::ReduceOp op, Call call) {
    if (count == 0) return Status::ok();
    const auto its_type = Vendor::typeOf(type);
    const auto its_op = Vendor::opOf(op, type);
    if (its_op == Vendor::kNone) {
      return Status(Kind::kUnavailable, Scope::kCall, "unavailable",
                    std::string(what) + ": " + Vendor::kName +
                        " has no such reduction of such elements; its capabilities say so");
    }
    return run(what, [&](State& s) { return call(s, its_type, its_op); });
  }
  /// `call(State&)`, where there are bytes.
  template <typename Call>
  Status moveWith(const char* what, size_t bytes, Call call) {
    return bytes == 0 ? Status::ok() : run(what, call);
  }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace jhetcc::ccl
