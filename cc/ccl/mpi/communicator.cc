// SPDX-License-Identifier: Apache-2.0
#include "ccl/mpi/communicator.h"

#include "ccl/mpi/world.h"

namespace jhetcc::ccl::mpi {
namespace {

Count counted(size_t count) { return static_cast<Count>(count); }
/// MPI wants the same memory as source and target said in its own way.
const void* sourceFor(const void* source, const void* target) { return source == target ? inPlace() : source; }

}  // namespace

Status Vendor::failed(const Abi& abi, const std::string& what, Code code, Comm) { return mpi::failed(abi, what, code); }

void Vendor::lose() {
  World::ofProcess().markLost();
  armExit();
}

Status MpiCommunicator::reduce(const void* source, void* target, size_t count, schedule::DataType type,
                               schedule::ReduceOp op, int32_t root, Stream) {
  return reduceWith("reduce", count, type, op, [&](State& s, Type t, Op o) {
    const void* const from = s.rank == root ? sourceFor(source, target) : source;
    return s.abi.reduce(from, s.rank == root ? target : nullptr, counted(count), t, o, root, s.comm);
  });
}

Status MpiCommunicator::allReduce(const void* source, void* target, size_t count, schedule::DataType type,
                                  schedule::ReduceOp op, Stream) {
  return reduceWith("all_reduce", count, type, op, [&](State& s, Type t, Op o) {
    return s.abi.allReduce(sourceFor(source, target), target, counted(count), t, o, s.comm);
  });
}

Status MpiCommunicator::reduceScatter(const void* source, void* target, size_t count, schedule::DataType type,
                                      schedule::ReduceOp op, Stream) {
  return reduceWith("reduce_scatter", count, type, op, [&](State& s, Type t, Op o) {
    return s.abi.reduceScatter(sourceFor(source, target), target, counted(count), t, o, s.comm);
  });
}

Status MpiCommunicator::broadcast(const void* source, void* target, size_t bytes, int32_t root, Stream) {
  return moveWith("broadcast", bytes, [&](State& s) {
    return s.abi.broadcast(s.rank == root ? const_cast<void*>(source) : target, counted(bytes), kByte, root, s.comm);
  });
}

Status MpiCommunicator::allGather(const void* source, void* target, size_t bytes, Stream) {
  return moveWith("all_gather", bytes, [&](State& s) {
    return s.abi.allGather(source, counted(bytes), kByte, target, counted(bytes), kByte, s.comm);
  });
}

Status MpiCommunicator::allToAll(const void* source, void* target, size_t bytes, Stream) {
  return moveWith("all_to_all", bytes, [&](State& s) {
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

}  // namespace jhetcc::ccl::mpi
