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

/// Their ends have not met yet.
inline EndpointPair makeVerbsStrangers(const verbs::Options& options = {}) {
  static const SystemClock clock;
  static std::atomic<size_t> next{0};
  const size_t number = next++;
  auto [left, right] = connectBetween(labAddress(number), labAddress(number));
  auto a = verbs::create(std::move(left), options, "rank 0 -> rank 1", clock);
  auto b = verbs::create(std::move(right), options, "rank 1 -> rank 0", clock);
  REQUIRE_MESSAGE(a.isOk(), a.status().message());
  REQUIRE_MESSAGE(b.isOk(), b.status().message());
  return {std::move(a).value(), std::move(b).value()};
}
inline EndpointPair makeVerbsPair(const verbs::Options& options = {}) {
  Pair meeting(makeVerbsStrangers(options));
  REQUIRE(meeting.until([&] { return !meeting.a->wantsWrite() && !meeting.b->wantsWrite(); }));
  return {std::move(meeting.a), std::move(meeting.b)};
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

/// Three queue pairs as one endpoint.
class RailVerbsPair : public Pair {
 public:
  RailVerbsPair() : Pair(makeBundles([] { return makeVerbsPair(); }, systemClock())) {}
};

}  // namespace jhetcc::transport::conformance

#define JHETCC_TRANSPORTS VerbsPair, VerbsGatheringPair, RailVerbsPair
#define JHETCC_SLEEPING_TRANSPORTS VerbsPair, VerbsGatheringPair
