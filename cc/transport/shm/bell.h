// SPDX-License-Identifier: Apache-2.0
// Wakes a sleeping peer, and hears that it is gone. Each bell belongs to one endpoint.
#pragma once

#include <memory>
#include <string>

#include "base/fd.h"
#include "base/status.h"
#include "transport/shm/segment.h"

namespace jhetcc::transport::shm {

class Bell {
 public:
  virtual ~Bell() = default;
  /// Makes the peer's descriptor readable. Never blocks.
  virtual void ring() = 0;
  /// Takes what was rung; an error says that the peer is gone, with the system's text.
  virtual Status drain() = 0;
  virtual int descriptor() const = 0;
};

/// Between processes: single bytes over the unix socket, whose end is the peer's end.
std::unique_ptr<Bell> makeSocketBell(Fd socket);

/// Within a process: two eventfds, shared by both ends; SideControl::closed tells the peer's end.
struct LocalBells {
  Fd events[2];
};
std::unique_ptr<Bell> makeLocalBell(std::shared_ptr<LocalBells> bells, std::shared_ptr<Segment> segment, int side);

}  // namespace jhetcc::transport::shm
