// SPDX-License-Identifier: Apache-2.0
// Shared memory on one host: frames through two rings, offered payloads read straight from the peer where allowed.
// Each endpoint belongs to one thread at a time; the two ends of a pair may belong to different threads or processes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "transport/transport.h"

namespace jhetcc::transport::shm {

struct Options {
  uint32_t ring_bytes = 256 * 1024;  ///< per direction; a power of two from 64 KiB on; the creator's counts
  bool allow_cma = true;             ///< read the peer's memory (process_vm_readv); false on either side: neither does
};

/// One end between two processes of one host, over a connected and authenticated unix stream socket, which the endpoint
/// keeps: doorbells go over it, and its end is the peer's end. Both processes call this, one of them as `creator`.
/// `description` tells the two places, e.g. "rank 0 -> rank 1"; the transport's name and the mode are added.
/// `clock` must outlive the endpoint.
Result<std::unique_ptr<Endpoint>> create(Fd unix_socket, bool creator, const Options& options, std::string description,
                                         int64_t deadline_ns, const Clock& clock);

/// Both ends within this process; offered payloads are copied directly.
Result<std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>>> createLocalPair(
    const Options& options, const std::string& description_a, const std::string& description_b, const Clock& clock);

}  // namespace jhetcc::transport::shm
