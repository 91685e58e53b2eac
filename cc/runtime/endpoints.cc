// SPDX-License-Identifier: Apache-2.0
#include "runtime/endpoints.h"

#include <poll.h>

#include "net/socket.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"
#include "transport/verbs/verbs.h"

namespace jhetcc::runtime {
namespace {

std::string way(int32_t from, int32_t to) { return "rank " + std::to_string(from) + " -> rank " + std::to_string(to); }

}  // namespace

Status addConnection(Process& process, size_t slot, int32_t peer, net::Connection connection, bool creator,
                     const EndpointOptions& options, const net::Deadline& deadline) {
  const std::string names = way(process.runner(slot).worldRank(), peer);
  transport::shm::Options shm;
  shm.allow_cma = options.allow_cma;
  // The creator speaks when it comes to this pair, which may be never: that wait can be ended, the contact's cannot.
  if (!creator) JHETCC_RETURN_IF_ERROR(net::waitFor(connection.fd.get(), POLLIN, deadline, "shm " + names));
  auto endpoint =
      transport::shm::create(std::move(connection.fd), creator, shm, names, deadline.at_ns, process.clock());
  if (!endpoint.isOk()) return endpoint.status();
  process.addEndpoint(slot, peer, std::move(endpoint).value());
  return Status::ok();
}

Result<std::unique_ptr<transport::Endpoint>> tcpEndpoint(Process& process, size_t slot, int32_t peer,
                                                         net::Connection connection, const EndpointOptions& options) {
  net::TcpTuning tuning;
  tuning.congestion = options.congestion;
  Result<net::TcpTuned> tuned = net::tuneTcp(connection.fd.get(), tuning);
  if (!tuned.isOk()) return tuned.status();
  const std::string text = way(process.runner(slot).worldRank(), peer) + " " + connection.local.text() + " -> " +
                           connection.remote.text() + " " + tuned.value().congestion + (connection.tls ? " TLS" : "");
  return transport::tcp::create(std::move(connection.fd), transport::tcp::Options{}, text, std::move(connection.tls));
}

Result<std::unique_ptr<transport::Endpoint>> verbsEndpoint(Process& process, size_t slot, int32_t peer,
                                                           net::Connection connection) {
  const Result<net::TcpTuned> tuned = net::tuneTcp(connection.fd.get(), {});
  if (!tuned.isOk()) return tuned.status();
  return transport::verbs::create(std::move(connection.fd), {}, way(process.runner(slot).worldRank(), peer),
                                  process.clock());
}

Result<std::string> rdmaDevice(const net::Address& local) { return transport::verbs::deviceOf(local); }

Status addLocalPair(Process& process, size_t slot_a, size_t slot_b) {
  const int32_t rank_a = process.runner(slot_a).worldRank(), rank_b = process.runner(slot_b).worldRank();
  auto pair = transport::shm::createLocalPair({}, way(rank_a, rank_b), way(rank_b, rank_a), process.clock());
  if (!pair.isOk()) return pair.status();
  process.addEndpoint(slot_a, rank_b, std::move(pair.value().first));
  process.addEndpoint(slot_b, rank_a, std::move(pair.value().second));
  return Status::ok();
}

}  // namespace jhetcc::runtime
