// SPDX-License-Identifier: Apache-2.0
// Which RDMA device and entry of its GID table stand for a local address, as sysfs says now. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "net/address.h"

namespace jhetcc::transport::verbs {

using Gid = std::array<uint8_t, 16>;

struct Place {
  std::string device;
  uint8_t port = 0;
  uint8_t gid_index = 0;
  Gid gid{};
};

/// An IPv6 address as it is, an IPv4 one as ::ffff:a.b.c.d.
Gid gidOf(const net::Address& address);

/// The RoCE v2 entry for this address. kUnavailable: no device has it; the text lists the devices there are. The
/// table changes whenever an address comes or goes, so nothing found here may be kept for a later connection.
Result<Place> findPlace(const net::Address& address, const std::string& sysfs = "/sys");

/// Whether the entry is still this one.
bool isStill(const Place& place, const std::string& sysfs = "/sys");

}  // namespace jhetcc::transport::verbs
