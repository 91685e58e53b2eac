// SPDX-License-Identifier: Apache-2.0
// What the flight recorder is told: operations, and the steps of those in chunks.
#include "engine/communicator.h"

namespace jhetcc::engine {

int64_t Engine::note(trace::EventKind kind, const Communicator& communicator, uint64_t sequence, uint64_t bytes,
                     uint64_t argument) {
  trace::Record record;
  record.time_ns = clock_.nowNs();
  record.communicator = communicator.spec.id;
  record.sequence = sequence;
  record.bytes = bytes;
  record.argument = argument;
  record.peer = world_rank_;
  record.kind = kind;
  trace_.recorder->write(record);
  return record.time_ns;
}

void Engine::noteStep(trace::EventKind kind, int32_t step, int64_t iteration, int64_t bytes) {
  const schedule::Step& of = active_->command().program->schedule->steps[static_cast<size_t>(step)];
  trace::Record record;
  record.time_ns = clock_.nowNs();
  record.communicator = active_->communicator->spec.id;
  record.sequence = active_->sequence;
  record.bytes = static_cast<uint64_t>(bytes);
  record.argument = static_cast<uint64_t>(of.kind);
  record.step = step;
  record.peer = world_rank_;
  record.index = static_cast<uint32_t>(iteration);
  record.stream = of.stream;
  record.kind = kind;
  trace_.recorder->write(record);
}

}  // namespace jhetcc::engine
