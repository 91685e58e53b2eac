// SPDX-License-Identifier: Apache-2.0
// A listening socket on one chosen address, never on all. One thread.
#pragma once

#include <optional>

#include "base/fd.h"
#include "net/address.h"

namespace jhetcc::net {

struct Accepted {
  Fd fd;
  Address local, remote;
};

class Listener {
 public:
  /// Port 0: the system picks one, address() tells. A wildcard address is refused.
  /// `device`: as for createSocket().
  static Result<Listener> create(const Address& address, const std::string& device = {});

  const Address& address() const { return address_; }
  int descriptor() const { return fd_.get(); }
  /// A waiting connection, or none. kResource: out of descriptors or memory; try later.
  Result<std::optional<Accepted>> accept();

 private:
  Listener(Fd fd, Address address) : fd_(std::move(fd)), address_(address) {}
  Fd fd_;
  Address address_;
};

}  // namespace jhetcc::net
