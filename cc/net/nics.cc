// SPDX-License-Identifier: Apache-2.0
#include "net/nics.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string_view>

#include "base/fd.h"

namespace jhetcc::net {
namespace {

// Ways within this machine, or through another interface that is asked itself.
constexpr std::array<std::string_view, 13> kWithin = {"bridge", "openvswitch", "tun",      "wireguard", "dummy",
                                                      "vxlan",  "geneve",      "gre",      "ip_gre",    "ipip",
                                                      "sit",    "ip6tnl",      "ip_tunnel"};

bool leadsOut(const LinkFacts& facts) {
  return std::find(kWithin.begin(), kWithin.end(), facts.driver) == kWithin.end();
}

/// The larger of the interface's own value and the one for all counts.
bool answersAlone(const std::string& interface) {
  for (const std::string& name : {std::string("all"), interface}) {
    std::ifstream file("/proc/sys/net/ipv4/conf/" + name + "/arp_ignore");
    int value = 0;
    if (file >> value && value > 0) return true;
  }
  return false;
}

/// NICs of one subnet: each is bound to its interface where that tells them apart.
void bindNeighbours(std::vector<Nic>* nics, AskLink ask) {
  for (Nic& nic : *nics) {
    if (nic.address.isLoopback() || nic.name.empty()) continue;
    for (const Nic& other : *nics) {
      if (other.name == nic.name || other.address.family() != nic.address.family()) continue;
      nic.shares_subnet |= isInSubnet(other.address, nic.address, std::min(nic.prefix_length, other.prefix_length));
    }
    if (!nic.shares_subnet) continue;
    const LinkFacts facts = ask(nic.name);
    nic.is_bound = facts.may_bind && (facts.answers_alone || nic.address.family() == Address::Family::kIpv6);
  }
}

class Choice {
 public:
  explicit Choice(AskLink ask) : ask_(ask) {}
  bool hasInterface(const std::string& name) const {
    return std::any_of(nics.begin(), nics.end(), [&](const Nic& nic) { return nic.name == name; });
  }
  void add(const Interface& one) {
    const auto same = [&](const Nic& nic) { return nic.address == one.address; };
    if (std::any_of(nics.begin(), nics.end(), same)) return;
    nics.push_back({one.name, one.address, one.prefix_length, ask_(one.name).mbit_per_s});
  }
  std::vector<Nic> nics;

 private:
  AskLink ask_;
};

/// Of several addresses of an interface the first of this family is taken, else the first.
void addPart(const std::string& part, Address::Family family, const std::vector<Interface>& interfaces,
             Choice* choice) {
  std::vector<Interface> meant = interfacesMeant(part, interfaces);
  std::erase_if(meant, [](const Interface& one) { return !one.isUsable(); });
  const bool is_address = Address::fromHost(part, 0).isOk();
  std::stable_partition(meant.begin(), meant.end(), [&](const Interface& one) {
    return one.address.family() == family && !one.address.isLinkLocal();
  });
  for (const Interface& one : meant) {
    if (is_address || !choice->hasInterface(one.name)) choice->add(one);
  }
}

void addAll(const Address& towards, const std::vector<Interface>& interfaces, AskLink ask, Choice* choice) {
  const auto own = std::find_if(interfaces.begin(), interfaces.end(),
                                [&](const Interface& one) { return one.address == towards.withPort(0); });
  for (const Interface& one : interfaces) {
    const bool is_own = own != interfaces.end() && one.name == own->name;
    if (is_own) {
      if (&one == &*own) choice->add(one);
      continue;
    }
    if (!one.isUsable() || one.is_loopback || one.address.family() != towards.family()) continue;
    if (one.address.isLinkLocal() && !towards.isLinkLocal()) continue;
    if (!choice->hasInterface(one.name) && leadsOut(ask(one.name))) choice->add(one);
  }
  if (own == interfaces.end()) choice->nics.insert(choice->nics.begin(), {"", towards.withPort(0), 0, 0});
}

}  // namespace

LinkFacts linkFacts(const std::string& interface) {
  LinkFacts facts;
  Fd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.isOpen()) fd = Fd(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  if (!fd.isOpen() || interface.empty() || interface.size() >= sizeof(request.ifr_name)) return facts;
  std::memcpy(request.ifr_name, interface.c_str(), interface.size());
  ethtool_drvinfo driver{};
  driver.cmd = ETHTOOL_GDRVINFO;
  request.ifr_data = reinterpret_cast<char*>(&driver);
  if (::ioctl(fd.get(), SIOCETHTOOL, &request) == 0) {
    facts.driver.assign(driver.driver, ::strnlen(driver.driver, sizeof(driver.driver)));
  }
  ethtool_cmd link{};
  link.cmd = ETHTOOL_GSET;
  request.ifr_data = reinterpret_cast<char*>(&link);
  if (::ioctl(fd.get(), SIOCETHTOOL, &request) == 0) {
    const uint32_t speed = ethtool_cmd_speed(&link);
    if (speed != 0 && speed != static_cast<uint32_t>(SPEED_UNKNOWN)) facts.mbit_per_s = speed;
  }
  facts.answers_alone = answersAlone(interface);
  const auto size = static_cast<socklen_t>(interface.size());
  facts.may_bind = ::setsockopt(fd.get(), SOL_SOCKET, SO_BINDTODEVICE, interface.data(), size) == 0;
  return facts;
}

Result<std::vector<Nic>> chooseNics(const std::string& spec, const Address& towards,
                                    const std::vector<Interface>& interfaces, AskLink ask) {
  Choice choice(ask);
  if (!spec.empty()) {
    for (const std::string& part : partsOf(spec)) addPart(part, towards.family(), interfaces, &choice);
    if (choice.nics.empty()) return noInterface(spec, interfaces);
  } else if (towards.isLoopback()) {
    choice.nics.push_back({"lo", towards.withPort(0), 8, 0});
  } else {
    addAll(towards, interfaces, ask, &choice);
  }
  bindNeighbours(&choice.nics, ask);
  return std::move(choice.nics);
}

std::string describe(const std::vector<Nic>& nics) {
  std::string text;
  for (const Nic& nic : nics) {
    text += (text.empty() ? "" : ", ") + nic.name + (nic.name.empty() ? "" : " ") + nic.address.host();
    if (nic.mbit_per_s == 0) continue;
    char rate[32];
    std::snprintf(rate, sizeof(rate), " (%g Gbit/s)", static_cast<double>(nic.mbit_per_s) / 1e3);
    text += rate;
  }
  return text;
}

Status nicState(const Nic& nic, const std::vector<Interface>& interfaces) {
  const auto lost = [&](const std::string& why) {
    return Status(Kind::kDisconnected, Scope::kEndpoint, "nic_lost", "the system says: " + why);
  };
  for (const Interface& one : interfaces) {
    if (one.address != nic.address && !(one.is_loopback && nic.address.isLoopback())) continue;
    if (!one.is_up) return lost(one.name + " is down");
    if (!one.is_running) return lost(one.name + " has no carrier");
    return Status::ok();
  }
  return lost("the address " + nic.address.host() + " is gone" + (nic.name.empty() ? "" : " from " + nic.name));
}

}  // namespace jhetcc::net
