// SPDX-License-Identifier: Apache-2.0
// A socket address as a value: TCP over IPv4 or IPv6, or an abstract unix name.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace jhetcc::net {

class Address {
 public:
  enum class Family : uint8_t { kNone, kIpv4, kIpv6, kUnix };

  Address() = default;  ///< Family::kNone: prints as "nowhere"
  /// "127.0.0.1:4711", "[::1]:4711", "[fe80::1%eth0]:4711", "unix:@name". Names of hosts: see resolve().
  static Result<Address> parse(const std::string& text);
  /// A numeric host without a port.
  static Result<Address> fromHost(const std::string& host, uint16_t port);
  static Result<Address> unixName(const std::string& name);
  static Result<Address> fromNative(const sockaddr* native, socklen_t size);

  Family family() const;
  bool isIp() const { return family() == Family::kIpv4 || family() == Family::kIpv6; }
  bool isUnix() const { return family() == Family::kUnix; }
  /// 127.0.0.0/8, ::1, or a unix name: the peer is on this machine.
  bool isLoopback() const;
  bool isWildcard() const;
  bool isLinkLocal() const;
  uint16_t port() const;
  Address withPort(uint16_t port) const;
  std::string host() const;  ///< without the port; for unix the name
  std::string text() const;  ///< parse() gives the same value back
  /// Address bytes in network order (4 or 16), for subnets; empty for unix.
  std::string ipBytes() const;

  const sockaddr* native() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t nativeSize() const { return size_; }
  friend bool operator==(const Address& a, const Address& b);

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

/// Addresses of "host:port", in the resolver's order; numeric ones need no resolver. May block as long as the resolver
/// does.
Result<std::vector<Address>> resolve(const std::string& text);

/// Of a socket: its own end, its peer's end.
Result<Address> localAddress(int fd);
Result<Address> remoteAddress(int fd);

}  // namespace jhetcc::net
