// SPDX-License-Identifier: Apache-2.0
// The client side: connect, prove, be proven to. Blocking, on the caller's thread.
#pragma once

#include <optional>

#include "net/deadline.h"
#include "net/identity.h"
#include "net/secret.h"
#include "net/tls.h"

namespace jhetcc::net {

/// Tries again, with back-off, while nobody listens or the connection breaks; an answer that is final (other secret,
/// job, rank, epoch, protocol) ends it at once. `wanted_rank`: kAnyRank for whoever listens there. `from`: bind to this
/// local address (its port is ignored). `tls`: TLS first, and the handshake inside, bound to it. Errors name the
/// address, the attempts and the last system text.
Result<Connection> connect(const Address& address, const Secret& secret, const Identity& mine, int32_t wanted_rank,
                           const Deadline& deadline, const std::optional<Address>& from = std::nullopt,
                           const std::shared_ptr<const Tls>& tls = nullptr);

/// One attempt. kDisconnected ("refused" where the peer's host says that nobody listens) and kTimeout are worth another
/// one; other errors are final. `device`: as for createSocket().
Result<Connection> connectOnce(const Address& address, const Secret& secret, const Identity& mine, int32_t wanted_rank,
                               const Deadline& deadline, const std::optional<Address>& from = std::nullopt,
                               const std::string& device = {}, const std::shared_ptr<const Tls>& tls = nullptr);

/// One handshake gets at most this long.
constexpr int64_t kHandshakeNs = 10'000 * kNsPerMs;

}  // namespace jhetcc::net
