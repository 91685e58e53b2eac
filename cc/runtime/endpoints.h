// SPDX-License-Identifier: Apache-2.0
// Which transport joins two ranks: shared memory over a unix socket or within the process, else tcp or verbs. Any
// thread.
#pragma once

#include <memory>
#include <string>

#include "net/deadline.h"
#include "net/identity.h"
#include "runtime/process.h"

namespace jhetcc::runtime {

struct EndpointOptions {
  bool allow_cma = true;             ///< shm may read the peer's memory
  std::string congestion = "cubic";  ///< of tcp; empty: the system's choice
};

/// Makes the endpoint of local rank `slot` to rank `peer` over shared memory, told on an authenticated connection. Of a
/// pair, one side is `creator`.
Status addConnection(Process& process, size_t slot, int32_t peer, net::Connection connection, bool creator,
                     const EndpointOptions& options, const net::Deadline& deadline);

/// The endpoint of local rank `slot` to rank `peer` over an authenticated tcp connection.
Result<std::unique_ptr<transport::Endpoint>> tcpEndpoint(Process& process, size_t slot, int32_t peer,
                                                         net::Connection connection, const EndpointOptions& options);

/// The same by RDMA, between the devices of the connection's two addresses. Both sides have to ask for it.
Result<std::unique_ptr<transport::Endpoint>> verbsEndpoint(Process& process, size_t slot, int32_t peer,
                                                           net::Connection connection);

/// The RDMA device of this local address, tried out. Code no_rdma_device: there is none.
Result<std::string> rdmaDevice(const net::Address& local);

/// Joins two ranks of this process.
Status addLocalPair(Process& process, size_t slot_a, size_t slot_b);

}  // namespace jhetcc::runtime
