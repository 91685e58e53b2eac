// SPDX-License-Identifier: Apache-2.0
// What the engine asks of a cluster's vendor library: calls in one order, which end later. Handed in like clock and
// rails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "schedule/schedule.h"

namespace jhetcc::engine {

struct NativeCall {
  schedule::StepKind kind;
  schedule::DataType type;
  schedule::ReduceOp op;
  const std::vector<int32_t>*
      members;         ///< indexes within the communicator, in the order of the vendor's; kept by `program`
  int32_t root;        ///< place in `members`; -1 for all_reduce
  const void* source;  ///< null where this member gives nothing
  void* target;        ///< null where it gets nothing; may be the source
  size_t bytes;
  /// In scratch of the host, which lives as long as `scratch`: the library may use it even after drop(). All other
  /// memory belongs to the caller, or is a device's that others use next, and must not be touched after drop().
  bool is_source_kept, is_target_kept;
  std::shared_ptr<const void> program, scratch;
  uint64_t token;
};

class NativeSink {
 public:
  virtual ~NativeSink() = default;
  virtual void onNativeDone(uint64_t token, const Status& status) = 0;
};

/// One rank's native calls on one communicator. The engine's thread calls it; nothing here blocks.
class NativePort {
 public:
  virtual ~NativePort() = default;
  /// Calls are made one after the other, in the order they come.
  virtual void start(NativeCall call) = 0;
  /// Tells the sink what has ended. True if anything had.
  virtual bool poll(NativeSink& sink) = 0;
  /// Forgets what has not begun and gives up what has; nobody is told. Nothing can be started here any more.
  virtual void drop() = 0;
};

}  // namespace jhetcc::engine
