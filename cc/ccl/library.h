// SPDX-License-Identifier: Apache-2.0
// A vendor's collective library and its communicators, as the engine's native stages need them. Loaded late; one folder
// a vendor. Nothing here waits for the engine; calls of a library that blocks belong on a thread of their own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "schedule/schedule.h"

namespace jhetcc::ccl {

/// What a loaded library can do, found by version and by trying, never assumed.
struct Capabilities {
  std::string name;                ///< "oneccl", "mpi", "nccl"
  std::string version;             ///< as the library says it; ranks of one cluster have equal ones
  bool abortable = false;          ///< Communicator::abort() frees a call that waits for a lost member
  bool blocking = true;            ///< calls return when done; else they are ordered on the stream
  bool uniform = false;            ///< promises the same bits of an all-reduce to all members
  bool one_rank_a_process = true;  ///< several ranks of one process cannot be members
  bool one_world = false;          ///< all first communicators of a process have the same members, in the same order
  bool create_ends = false;        ///< leave() ends a create() that waits for members; else its thread is given up
  /// Destroying a communicator needs no other member. Where it does, what may have lost one is left behind instead.
  bool destroys_alone = true;
  /// Reductions that it cannot do; owner add does them. Everything moves as bytes.
  std::vector<std::pair<schedule::ReduceOp, schedule::DataType>> refuses;

  bool reduces(schedule::ReduceOp op, schedule::DataType type) const {
    return std::find(refuses.begin(), refuses.end(), std::pair(op, type)) == refuses.end();
  }
};

/// Who forms a communicator. All members pass equal values except `rank`.
struct Group {
  std::string token;           ///< from the first member's Library::makeToken(); any length
  int32_t rank = 0, size = 0;  ///< within the new communicator
  /// The members by their ranks in this library's first communicator, in order. Empty: this is the first one, which
  /// holds every process that will ever take part (MPI's world is made once in a process).
  std::vector<int32_t> of_first;
};

/// Device stream that calls are ordered on; null on CPUs.
using Stream = void*;

/// One rank's part of a communicator. One thread at a time, all members in one order of calls. Memory belongs to the
/// caller and stays until a blocking call has returned, or the stream has passed a call that does not block.
class Communicator {
 public:
  /// Destroys it with the other members where that is safe; after an error or leave() it is left behind, and this waits
  /// for nobody. A call that was given up may still be inside the library then: it touches nothing of this object any
  /// more.
  virtual ~Communicator() = default;

  /// `count` elements; the mean is never asked for (sums are divided once, at the owner). Target only at the root.
  virtual Status reduce(const void* source, void* target, size_t count, schedule::DataType type, schedule::ReduceOp op,
                        int32_t root, Stream stream) = 0;
  virtual Status allReduce(const void* source, void* target, size_t count, schedule::DataType type,
                           schedule::ReduceOp op, Stream stream) = 0;
  /// `count` elements of the result on each rank; the source has size() times as many.
  virtual Status reduceScatter(const void* source, void* target, size_t count, schedule::DataType type,
                               schedule::ReduceOp op, Stream stream) = 0;
  /// Source at the root, target elsewhere; at the root the target is the source, and is not written.
  virtual Status broadcast(const void* source, void* target, size_t bytes, int32_t root, Stream stream) = 0;
  /// `bytes` of each rank, in rank order.
  virtual Status allGather(const void* source, void* target, size_t bytes, Stream stream) = 0;
  virtual Status allToAll(const void* source, void* target, size_t bytes, Stream stream) = 0;
  struct Transfer {
    int32_t peer;
    const void* source;  ///< not null: a send
    void* target;        ///< not null: a receive
    size_t bytes;
  };
  /// All at once, in any order among them.
  virtual Status exchange(const std::vector<Transfer>& transfers, Stream stream) = 0;

  /// An error that the library found by itself since the last call; ok where it tells none.
  virtual Status asyncError() { return Status::ok(); }
  /// From any thread: calls under way and later ones fail. kUnavailable where the library cannot.
  virtual Status abort() = 0;
  /// From any thread, as soon as a member is lost or a call is given up: nothing here waits for the members any more,
  /// later calls fail, and the process can end while a thread is stuck in the library.
  virtual void leave() = 0;
};

class Library : public std::enable_shared_from_this<Library> {
 public:
  virtual ~Library() = default;
  virtual const Capabilities& capabilities() const = 0;
  /// By the first member, for a communicator of `size` ranks; the others get it by the control plane. What it started
  /// to serve them (a server's thread) lives as long as the library.
  virtual Result<std::string> makeToken(int32_t size, bool is_first) = 0;
  /// Collective; blocks until all members are there. Call it where it may block for ever.
  virtual Result<std::unique_ptr<Communicator>> create(const Group& group) = 0;
  /// As Communicator::leave(), for a create() that is given up.
  virtual void leave() = 0;
};

}  // namespace jhetcc::ccl
