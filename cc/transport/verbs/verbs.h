// SPDX-License-Identifier: Apache-2.0
// RDMA by libibverbs: one reliable connected queue pair that writes into a registered ring of the peer's. Each endpoint
// belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "net/address.h"
#include "transport/transport.h"

namespace jhetcc::transport::verbs {

struct Options {
  uint32_t ring_bytes =
      1024 * 1024;  ///< what the peer writes into; a power of two, 256 KiB to 2 MiB, equal at both ends
  /// Payloads from this length on are sent from the offered memory, registered until they are there. Shorter ones are
  /// copied: that costs less than a registration. 0: all of them, for memory that only NICs reach.
  uint64_t registered_from_bytes = 256 * 1024;
  /// Packets without an answer are sent again after 4.096 us * 2^ack_timeout, so often; then the path is dead.
  uint8_t ack_timeout = 14;
  uint8_t retries = 6;  ///< at most 6: to soft-RoCE, 7 means for ever
};

/// The device that carries this local address; it was opened, and memory registered with it, to see whether that works.
Result<std::string> deviceOf(const net::Address& local, const Options& options = {});

/// One end over a connected and authenticated TCP socket between the two NICs' addresses, which the endpoint keeps: its
/// end is the peer's end. Both sides call this. It does not wait: what this end's queue pair is goes out on the socket,
/// and polls take the other end's; what is sent before waits. Where this end cannot, the other one hears why.
/// `description` tells the two places: "rank 0 -> rank 1"; the transport's name, device and addresses are added.
/// `clock` must outlive the endpoint.
Result<std::unique_ptr<Endpoint>> create(Fd socket, const Options& options, const std::string& description,
                                         const Clock& clock);

}  // namespace jhetcc::transport::verbs
