// SPDX-License-Identifier: Apache-2.0
// A pair of endpoints within one process. Any thread.
#include <sys/eventfd.h>

#include <cerrno>

#include "base/system_text.h"
#include "transport/shm/endpoint.h"

namespace jhetcc::transport::shm {

Result<std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>>> createLocalPair(
    const Options& options, const std::string& description_a, const std::string& description_b, const Clock& clock) {
  Result<std::shared_ptr<Segment>> segment = Segment::createLocal(options.ring_bytes);
  if (!segment.isOk()) return segment.status();
  auto bells = std::make_shared<LocalBells>();
  for (Fd& event : bells->events) {
    event = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event.isOpen()) {
      return Status(Kind::kResource, Scope::kEndpoint, "no_descriptor",
                    std::string("shm local pair: eventfd: ") + systemText(errno));
    }
  }
  std::unique_ptr<Endpoint> ends[2];
  const std::string descriptions[2] = {description_a, description_b};
  for (int side = 0; side < 2; ++side) {
    Parts parts;
    parts.segment = segment.value();
    parts.side = side;
    parts.bell = makeLocalBell(bells, segment.value(), side);
    parts.reads = Reads::kLocal;
    parts.description = "shm " + descriptions[side] + " (same process)";
    parts.clock = &clock;
    ends[side] = std::make_unique<ShmEndpoint>(std::move(parts));
  }
  return std::make_pair(std::move(ends[0]), std::move(ends[1]));
}

}  // namespace jhetcc::transport::shm
