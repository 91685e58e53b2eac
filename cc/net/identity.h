// SPDX-License-Identifier: Apache-2.0
// Who is at an end of a connection. The handshake proves it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/fd.h"
#include "net/address.h"

namespace jhetcc::net {

class TlsSession;

enum class Role : uint8_t { kControl = 0, kData = 1 };
inline const char* roleName(Role role) { return role == Role::kControl ? "control" : "data"; }

constexpr int32_t kAnyRank = -1;  ///< as wanted rank: whoever listens there; as own rank: not numbered yet
constexpr size_t kJobBytesMax = 128;

struct Identity {
  std::string job;  ///< 1 to kJobBytesMax bytes
  Role role = Role::kControl;
  int32_t rank = kAnyRank;
  uint64_t incarnation = 0;  ///< random, one per start of a process
  uint32_t epoch = 0;        ///< membership epoch
  uint16_t path = 0;         ///< data: which path of the rank pair
  uint16_t caller_slot = 0;  ///< data: the pair's ranks, as their processes number them
  uint16_t called_slot = 0;
  uint32_t generation = 0;  ///< data: grows with every attempt to connect this path; an older one is stale

  friend bool operator==(const Identity&, const Identity&) = default;
};

/// "rank 3 of job 'x' (data, path 0, epoch 1)"
std::string describe(const Identity& identity);

/// An authenticated, connected, non-blocking socket.
struct Connection {
  Fd fd;
  std::shared_ptr<TlsSession> tls;  ///< null: what follows the handshake goes in the clear
  Identity peer;
  Address local, remote;
  std::string description;  ///< "rank 3 of job 'x' (...) at 10.0.0.2:4711 from 10.0.0.1:5000"
};

}  // namespace jhetcc::net
