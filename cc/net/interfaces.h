// SPDX-License-Identifier: Apache-2.0
// The machine's network interfaces, and which of them the user means. Any thread.
#pragma once

#include <string>
#include <vector>

#include "net/address.h"

namespace jhetcc::net {

/// One address of one interface.
struct Interface {
  std::string name;
  Address address;        ///< port 0
  int prefix_length = 0;  ///< of its subnet
  bool is_up = false;
  bool is_running = false;  ///< has a carrier
  bool is_loopback = false;
  bool isUsable() const { return is_up && is_running; }
};

Result<std::vector<Interface>> listInterfaces();
bool isInSubnet(const Address& address, const Address& subnet, int prefix_length);
/// "lo 127.0.0.1/8 (loopback), eth0 10.0.0.3/24, eth1 10.1.0.3/24 (down)"
std::string describe(const std::vector<Interface>& interfaces);

/// The parts of what the user names, by commas.
std::vector<std::string> partsOf(const std::string& spec);
/// What one part means: a name, a pattern with *, a subnet or an address; link-local ones last. An address of
/// loopback's subnet that is asked for by itself is there though nobody lists it.
std::vector<Interface> interfacesMeant(const std::string& part, const std::vector<Interface>& interfaces);
/// Says what there is instead.
Status noInterface(const std::string& spec, const std::vector<Interface>& interfaces);

/// What the user names: "eth0,en1", "eth*", "10.0.0.0/8" or "10.0.0.3", by commas, in the order of preference. Names
/// are exact without a *. Usable addresses (up, with carrier) of the first part that has any; link-local ones last. An
/// error lists what there is.
Result<std::vector<Address>> selectInterfaces(const std::string& spec, const std::vector<Interface>& interfaces);

}  // namespace jhetcc::net
