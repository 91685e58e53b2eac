// SPDX-License-Identifier: Apache-2.0
#include "ccl/mpi/communicator.h"

#include "base/log.h"
#include "ccl/mpi/world.h"

namespace jhetcc::ccl::mpi {
namespace {

Count counted(size_t count) { return static_cast<Count>(count); }
/// MPI wants the same memory as source and target said in its own way.
const void* sourceFor(const void* source, const void* target) { return source == target ? inPlace() : source; }

}  // namespace

MpiCommunicator::MpiCommunicator(const Abi& abi, Comm comm, const Group& group) : state_(std::make_shared<State>()) {
  state_->abi = abi;
  state_->comm = comm;
  state_->rank = group.rank;
  state_->size = group.size;
  state_->where = "rank " + std::to_string(group.rank) + " of " + std::to_string(group.size);
}

MpiCommunicator::~MpiCommunicator() {
  if (state_->is_left.load()) return;
  if (state_->is_broken.load()) {
    World::ofProcess().markLost();
    armExit();
    return;
  }
  if (const Code code = state_->abi.commFree(&state_->comm); code != 0) {
    JHETCC_LOG(kWarn, "ccl", failed(state_->abi, "destroying a communicator, " + state_->where, code).message());
  }
}

template <typename Call>
Status MpiCommunicator::run(const char* what, Call call) {
  const std::shared_ptr<State> state = state_;  // `this` may be gone when a call that was given up comes back
  const auto left = [&] {
    return Status(Kind::kAborted, Scope::kCommunicator, "aborted",
                  std::string(what) + ", " + state->where + ": the communicator was given up");
  };
  if (state->is_left.load()) return left();
  const Code code = call(*state);
  if (state->is_left.load()) return left();
  if (code == 0) return Status::ok();
  state->is_broken.store(true);
  return failed(state->abi, std::string(what) + ", " + state->where, code);
}

template <typename Call>
Status MpiCommunicator::reduceWith(const char* what, schedule::DataType type, schedule::ReduceOp op, Call call) {
  const Type type_handle = typeHandle(type);
  const Op op_handle = opHandle(op, type);
  if (op_handle == kNone) {
    return Status(Kind::kUnavailable, Scope::kCall, "unavailable",
                  std::string(what) + ": MPI has no such reduction of such elements; its capabilities say so");
  }
  return run(what, [&](State& s) { return call(s, type_handle, op_handle); });
}

Status MpiCommunicator::reduce(const void* source, void* target, size_t count, schedule::DataType type,
                               schedule::ReduceOp op, int32_t root, Stream) {
  if (count == 0) return Status::ok();
  return reduceWith("reduce", type, op, [&](State& s, Type t, Op o) {
    const void* const from = s.rank == root ? sourceFor(source, target) : source;
    return s.abi.reduce(from, s.rank == root ? target : nullptr, counted(count), t, o, root, s.comm);
  });
}

Status MpiCommunicator::allReduce(const void* source, void* target, size_t count, schedule::DataType type,
                                  schedule::ReduceOp op, Stream) {
  if (count == 0) return Status::ok();
  return reduceWith("all_reduce", type, op, [&](State& s, Type t, Op o) {
    return s.abi.allReduce(sourceFor(source, target), target, counted(count), t, o, s.comm);
  });
}

Status MpiCommunicator::reduceScatter(const void* source, void* target, size_t count, schedule::DataType type,
                                      schedule::ReduceOp op, Stream) {
  if (count == 0) return Status::ok();
  return reduceWith("reduce_scatter", type, op, [&](State& s, Type t, Op o) {
    return s.abi.reduceScatter(sourceFor(source, target), target, counted(count), t, o, s.comm);
  });
}

Status MpiCommunicator::broadcast(const void* source, void* target, size_t bytes, int32_t root, Stream) {
  if (bytes == 0) return Status::ok();
  return run("broadcast", [&](State& s) {
    return s.abi.broadcast(s.rank == root ? const_cast<void*>(source) : target, counted(bytes), kByte, root, s.comm);
  });
}

Status MpiCommunicator::allGather(const void* source, void* target, size_t bytes, Stream) {
  if (bytes == 0) return Status::ok();
  return run("all_gather", [&](State& s) {
    return s.abi.allGather(source, counted(bytes), kByte, target, counted(bytes), kByte, s.comm);
  });
}

Status MpiCommunicator::allToAll(const void* source, void* target, size_t bytes, Stream) {
  if (bytes == 0) return Status::ok();
  return run("all_to_all", [&](State& s) {
    return s.abi.allToAll(source, counted(bytes), kByte, target, counted(bytes), kByte, s.comm);
  });
}

Status MpiCommunicator::exchange(const std::vector<Transfer>& transfers, Stream) {
  return run("exchange", [&](State& s) {
    std::vector<Request> requests;
    requests.reserve(2 * transfers.size());
    Code first = 0;
    for (const Transfer& transfer : transfers) {
      if (transfer.bytes == 0) continue;
      const Count bytes = counted(transfer.bytes);
      if (transfer.target && first == 0) {
        first = s.abi.receive(transfer.target, bytes, kByte, transfer.peer, 0, s.comm,
                              &requests.emplace_back(kRequestNull));
      }
      if (transfer.source && first == 0) {
        first =
            s.abi.send(transfer.source, bytes, kByte, transfer.peer, 0, s.comm, &requests.emplace_back(kRequestNull));
      }
    }
    // What was begun before an error may never end: it is left behind with the communicator.
    return first != 0 ? first : s.abi.waitAll(static_cast<int>(requests.size()), requests.data(), nullptr);
  });
}

Status MpiCommunicator::abort() {
  return Status(Kind::kUnavailable, Scope::kCommunicator, "unavailable",
                "MPI cannot free a call that waits; give it up and leave the communicator behind");
}

void MpiCommunicator::leave() {
  if (state_->is_left.exchange(true)) return;
  World::ofProcess().markLost();
  armExit();
}

}  // namespace jhetcc::ccl::mpi
