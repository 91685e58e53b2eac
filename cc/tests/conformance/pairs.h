// SPDX-License-Identifier: Apache-2.0
// The transports the suite runs on.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <thread>

#include "conformance/harness.h"
#include "net/tls.h"
#include "rail/bundle.h"
#include "transport/shm/shm.h"
#include "transport/sim/sim.h"
#include "transport/tcp/tcp.h"

namespace jhetcc::transport::conformance {

class SimPair : public Pair {
 public:
  explicit SimPair(uint64_t seed = 1, const sim::Options& options = {})
      : SimPair(std::make_unique<sim::Network>(seed, options)) {}
  void tick() override { network->step(); }
  std::unique_ptr<sim::Network> network;

 private:
  explicit SimPair(std::unique_ptr<sim::Network> made) : Pair(made->connect(0, 1)), network(std::move(made)) {}
};

/// Fetches by reading the peer at once, as shared memory does.
class SimInstantPair : public SimPair {
 public:
  SimInstantPair() : SimPair(2, instant()) {}
  static sim::Options instant() {
    sim::Options options;
    options.instant_fetch_probability = 1;
    options.reads_need_peer = false;
    return options;
  }
};

inline const SystemClock& systemClock() {
  static const SystemClock clock;
  return clock;
}

inline EndpointPair makeShmLocal() {
  Result<EndpointPair> made = shm::createLocalPair({}, "rank 0 -> rank 1", "rank 1 -> rank 0", systemClock());
  REQUIRE_MESSAGE(made.isOk(), made.status().message());
  return std::move(made).value();
}
class ShmLocalPair : public Pair {
 public:
  ShmLocalPair() : Pair(makeShmLocal()) {}
};

/// Two ends in this process, made as two processes would.
inline EndpointPair makeShmSockets(const shm::Options& options) {
  int sockets[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
  const int64_t deadline_ns = systemClock().nowNs() + 10'000 * kNsPerMs;
  std::unique_ptr<Endpoint> joined;
  Status join_status;
  std::thread joiner([&] {
    auto made = shm::create(Fd(sockets[1]), false, options, "rank 1 -> rank 0", deadline_ns, systemClock());
    join_status = made.status();
    if (made.isOk()) joined = std::move(made).value();
  });
  auto created = shm::create(Fd(sockets[0]), true, options, "rank 0 -> rank 1", deadline_ns, systemClock());
  joiner.join();
  REQUIRE_MESSAGE(created.isOk(), created.status().message());
  REQUIRE_MESSAGE(join_status.isOk(), join_status.message());
  return {std::move(created).value(), std::move(joined)};
}
class ShmReadPair : public Pair {
 public:
  ShmReadPair() : Pair(makeShmSockets({})) {}
};
class ShmRingPair : public Pair {
 public:
  ShmRingPair() : Pair(makeShmSockets(options())) {}
  static shm::Options options() {
    shm::Options options;
    options.ring_bytes = 64 * 1024;
    options.allow_cma = false;
    return options;
  }
};

inline std::pair<Fd, Fd> connectLoopback() {
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(listen(listener.get(), 1) == 0);
  REQUIRE(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  Fd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(connect(client.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  Fd server(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(server.isOpen());
  return {std::move(client), std::move(server)};
}
inline std::unique_ptr<Endpoint> makeTcp(Fd socket, const std::string& description) {
  auto made = tcp::create(std::move(socket), {}, description);
  REQUIRE_MESSAGE(made.isOk(), made.status().message());
  return std::move(made).value();
}
inline EndpointPair makeTcpPair() {
  auto [client, server] = connectLoopback();
  return {makeTcp(std::move(client), "rank 0 -> rank 1"), makeTcp(std::move(server), "rank 1 -> rank 0")};
}
class TcpPair : public Pair {
 public:
  TcpPair() : Pair(makeTcpPair()) {}
};

/// Both ends of a connection whose ends proved a secret by TLS. `wire`: copies of both sockets, for whoever sits
/// between.
inline EndpointPair makeTlsPair(std::pair<Fd, Fd>* wire = nullptr) {
  static const net::Secret secret = net::Secret::create("a secret for tests only").value();
  static const std::shared_ptr<const net::Tls> tls = net::Tls::create(secret, "job").value();
  auto [client, server] = connectLoopback();
  for (const Fd* fd : {&client, &server}) REQUIRE(fcntl(fd->get(), F_SETFL, O_NONBLOCK) == 0);
  if (wire) *wire = {Fd(::dup(client.get())), Fd(::dup(server.get()))};
  std::shared_ptr<net::TlsSession> a = tls->open(client.get(), net::Tls::Side::kClient).value();
  std::shared_ptr<net::TlsSession> b = tls->open(server.get(), net::Tls::Side::kServer).value();
  for (bool is_done = false; !is_done;) {
    is_done = a->handshake().value() == net::TlsSession::Need::kNothing;
    is_done = b->handshake().value() == net::TlsSession::Need::kNothing && is_done;
  }
  auto first = tcp::create(std::move(client), {}, "rank 0 -> rank 1", std::move(a));
  auto second = tcp::create(std::move(server), {}, "rank 1 -> rank 0", std::move(b));
  return {std::move(first).value(), std::move(second).value()};
}
class TlsPair : public Pair {
 public:
  TlsPair() : Pair(makeTlsPair()) {}
};

/// Three paths as one endpoint.
inline EndpointPair makeBundles(const std::function<EndpointPair()>& make, const Clock& clock) {
  auto a = std::make_unique<rail::Bundle>("rank 0 -> rank 1", clock, rail::BundleOptions{});
  auto b = std::make_unique<rail::Bundle>("rank 1 -> rank 0", clock, rail::BundleOptions{});
  for (uint16_t path = 0; path < 3; ++path) {
    EndpointPair ends = make();
    a->addPath({path, 0, "a", "b"}, std::move(ends.first));
    b->addPath({path, 0, "b", "a"}, std::move(ends.second));
  }
  return {std::move(a), std::move(b)};
}
class RailTcpPair : public Pair {
 public:
  RailTcpPair() : Pair(makeBundles(makeTcpPair, systemClock())) {}
};
class RailSimPair : public Pair {
 public:
  RailSimPair() : RailSimPair(std::make_unique<sim::Network>(3)) {}
  void tick() override { network->step(); }
  std::unique_ptr<sim::Network> network;

 private:
  explicit RailSimPair(std::unique_ptr<sim::Network> made)
      : Pair(makeBundles([&] { return made->connect(0, 1); }, made->clock())), network(std::move(made)) {}
};

}  // namespace jhetcc::transport::conformance

#ifdef JHETCC_TEST_LAB  // the lab's program: the same suite on real adapters
#include "lab/verbs_pairs.h"
#else
#define JHETCC_TRANSPORTS \
  SimPair, SimInstantPair, ShmLocalPair, ShmReadPair, ShmRingPair, TcpPair, TlsPair, RailTcpPair, RailSimPair
#define JHETCC_SLEEPING_TRANSPORTS ShmLocalPair, ShmReadPair, ShmRingPair, TcpPair, TlsPair, RailTcpPair
#endif
