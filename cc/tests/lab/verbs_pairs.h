// SPDX-License-Identifier: Apache-2.0
// Pairs of endpoints over RDMA devices, for the lab: ranks of one host on the addresses that LAB_ADDRESSES lists.
#pragma once

#include <atomic>
#include <cstdlib>
#include <iterator>
#include <sstream>

#include "conformance/harness.h"
#include "net/socket.h"
#include "transport/verbs/ring.h"
#include "transport/verbs/verbs.h"

namespace jhetcc::transport::conformance {

inline net::Address labAddress(size_t number) {
  const char* listed = std::getenv("LAB_ADDRESSES");
  REQUIRE_MESSAGE(listed != nullptr, "LAB_ADDRESSES names no RDMA addresses, e.g. '10.9.0.1 10.9.1.1'");
  std::istringstream words(listed);
  const std::vector<std::string> all{std::istream_iterator<std::string>(words), {}};
  const Result<net::Address> made = net::Address::fromHost(all.at(number % all.size()), 0);
  REQUIRE_MESSAGE(made.isOk(), made.status().message());
  return made.value();
}

/// Connected sockets from one address to the other.
inline std::pair<Fd, Fd> connectBetween(const net::Address& from, const net::Address& to) {
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(bind(listener.get(), to.native(), to.nativeSize()) == 0);
  REQUIRE(listen(listener.get(), 1) == 0);
  const net::Address there = net::localAddress(listener.get()).value();
  Fd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(bind(client.get(), from.native(), from.nativeSize()) == 0);
  REQUIRE(connect(client.get(), there.native(), there.nativeSize()) == 0);
  Fd server(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(server.isOpen());
  return {std::move(client), std::move(server)};
}

inline EndpointPair makeVerbsPair(const verbs::Options& options = {}) {
  static const SystemClock clock;
  static std::atomic<size_t> next{0};
  const size_t number = next++;
  auto [left, right] = connectBetween(labAddress(number), labAddress(number));
  const int64_t deadline_ns = clock.nowNs() + 10'000 * kNsPerMs;
  std::unique_ptr<Endpoint> joined;
  Status join_status;
  std::thread joiner([&, fd = std::move(right)]() mutable {
    auto made = verbs::create(std::move(fd), options, "rank 1 -> rank 0", deadline_ns, clock);
    join_status = made.status();
    if (made.isOk()) joined = std::move(made).value();
  });
  auto created = verbs::create(std::move(left), options, "rank 0 -> rank 1", deadline_ns, clock);
  joiner.join();
  REQUIRE_MESSAGE(created.isOk(), created.status().message());
  REQUIRE_MESSAGE(join_status.isOk(), join_status.message());
  return {std::move(created).value(), std::move(joined)};
}

class VerbsPair : public Pair {
 public:
  VerbsPair() : Pair(makeVerbsPair()) {}
};

/// A small ring, and every payload gathered from where it lies, as it has to be where only NICs reach it.
class VerbsGatheringPair : public Pair {
 public:
  VerbsGatheringPair() : Pair(makeVerbsPair({verbs::kRingBytesMin, 0})) {}
};

}  // namespace jhetcc::transport::conformance

#define JHETCC_TRANSPORTS VerbsPair, VerbsGatheringPair
#define JHETCC_SLEEPING_TRANSPORTS VerbsPair, VerbsGatheringPair
