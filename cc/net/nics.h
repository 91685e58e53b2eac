// SPDX-License-Identifier: Apache-2.0
// Which local addresses a process offers to the others, one a NIC, and whether such an address can still be used.
// Any thread.
#pragma once

#include <string>
#include <vector>

#include "net/interfaces.h"

namespace jhetcc::net {

struct Nic {
  std::string name;        ///< of its interface
  Address address;         ///< port 0
  int prefix_length = 0;   ///< of its subnet
  int64_t mbit_per_s = 0;  ///< of the link, as its driver says; 0: unknown
  /// Another NIC here is in its subnet, so that the system's routes do not tell them apart...
  bool shares_subnet = false;
  /// ...but sockets that are bound to its interface are: nobody else here answers for its address.
  bool is_bound = false;
  std::string device() const { return is_bound ? name : std::string(); }
};

/// What an interface's driver says of it.
struct LinkFacts {
  std::string driver;          ///< "bridge", "veth", "mlx5_core"; empty: it does not say
  int64_t mbit_per_s = 0;      ///< 0: unknown
  bool answers_alone = false;  ///< other interfaces do not answer ARP for its addresses (arp_ignore)
  bool may_bind = false;       ///< this process may bind sockets to it
};
LinkFacts linkFacts(const std::string& interface);
using AskLink = LinkFacts (*)(const std::string& interface);

/// With a spec: one address of every usable interface it names, in its order, and all addresses that it names
/// themselves. Without: that of `towards`, the local address that reaches the coordinator, where it is one of
/// loopback; else one of every usable interface, of the family of `towards`, that leads out of this machine: no
/// loopback, no bridge or tunnel, link-local only if `towards` is. An error lists what there is.
Result<std::vector<Nic>> chooseNics(const std::string& spec, const Address& towards,
                                    const std::vector<Interface>& interfaces, AskLink ask = linkFacts);
/// "eth0 10.0.0.3 (25 Gbit/s), eth1 10.1.0.3"
std::string describe(const std::vector<Nic>& nics);

/// Why a NIC cannot be used now: its interface is gone, down or without carrier, or has lost the address.
Status nicState(const Nic& nic, const std::vector<Interface>& interfaces);

}  // namespace jhetcc::net
