// SPDX-License-Identifier: Apache-2.0
#include "net/interfaces.h"

#include <fnmatch.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>

#include "base/fd.h"
#include "base/system_text.h"

namespace jhetcc::net {

bool isInSubnet(const Address& address, const Address& subnet, int prefix_length) {
  const std::string a = address.ipBytes(), b = subnet.ipBytes();
  if (a.size() != b.size()) return false;
  for (int bit = 0; bit < prefix_length; ++bit) {
    const int mask = 0x80 >> (bit % 8);
    if ((a[static_cast<size_t>(bit / 8)] & mask) != (b[static_cast<size_t>(bit / 8)] & mask)) return false;
  }
  return true;
}

namespace {

int prefixLength(const sockaddr* netmask, socklen_t size) {
  if (netmask == nullptr) return 0;
  Result<Address> mask = Address::fromNative(netmask, size);
  if (!mask.isOk()) return 0;
  int bits = 0;
  for (char byte : mask.value().ipBytes()) bits += std::popcount(static_cast<unsigned char>(byte));
  return bits;
}

/// One part of a spec: a name, a pattern of names with *, a subnet or an address.
bool isMeant(const Interface& interface, const std::string& part) {
  if (interface.name == part) return true;
  if (part.find('*') != std::string::npos) return fnmatch(part.c_str(), interface.name.c_str(), 0) == 0;
  const size_t slash = part.find('/');
  Result<Address> subnet = Address::fromHost(part.substr(0, slash), 0);
  if (!subnet.isOk()) return false;
  int bits = static_cast<int>(subnet.value().ipBytes().size() * 8);
  if (slash != std::string::npos) {
    const char* end = part.data() + part.size();
    int wanted = -1;
    const auto [stop, error] = std::from_chars(part.data() + slash + 1, end, wanted);
    if (error != std::errc() || stop != end || wanted < 0 || wanted > bits) return false;
    bits = wanted;
  }
  return isInSubnet(interface.address, subnet.value(), bits);
}

/// All of loopback's subnet is this machine's, though only one address of it is listed.
Interface asAsked(Interface interface, const std::string& part) {
  if (!interface.is_loopback) return interface;
  Result<Address> asked = Address::fromHost(part, 0);
  if (asked.isOk() && isInSubnet(asked.value(), interface.address, interface.prefix_length))
    interface.address = asked.value();
  return interface;
}

}  // namespace

std::vector<std::string> partsOf(const std::string& spec) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= spec.size();) {
    const size_t end = std::min(spec.find(',', begin), spec.size());
    std::string part = spec.substr(begin, end - begin);
    std::erase(part, ' ');
    if (!part.empty()) parts.push_back(std::move(part));
    begin = end + 1;
  }
  return parts;
}

Result<std::vector<Interface>> listInterfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    const bool has_run_out = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
    return Status(has_run_out ? Kind::kResource : Kind::kUnavailable, Scope::kProcess, "interfaces",
                  "cannot list the interfaces: " + systemText(errno));
  }
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = first; entry; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const bool is_ipv4 = entry->ifa_addr->sa_family == AF_INET;
    if (!is_ipv4 && entry->ifa_addr->sa_family != AF_INET6) continue;
    const socklen_t size = is_ipv4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    Result<Address> address = Address::fromNative(entry->ifa_addr, size);
    if (!address.isOk()) continue;
    interfaces.push_back({entry->ifa_name, address.value(), prefixLength(entry->ifa_netmask, size),
                          (entry->ifa_flags & IFF_UP) != 0, (entry->ifa_flags & IFF_RUNNING) != 0,
                          (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  ::freeifaddrs(first);
  return interfaces;
}

std::string describe(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& interface : interfaces) {
    text += (text.empty() ? "" : ", ") + interface.name + " " + interface.address.host() + "/" +
            std::to_string(interface.prefix_length);
    if (!interface.is_up)
      text += " (down)";
    else if (!interface.is_running)
      text += " (no carrier)";
    else if (interface.is_loopback)
      text += " (loopback)";
  }
  return text.empty() ? "none" : text;
}

std::vector<Interface> interfacesMeant(const std::string& part, const std::vector<Interface>& interfaces) {
  std::vector<Interface> found;
  for (const Interface& interface : interfaces) {
    const Interface asked = asAsked(interface, part);
    if (isMeant(asked, part)) found.push_back(asked);
  }
  std::stable_partition(found.begin(), found.end(), [](const Interface& one) { return !one.address.isLinkLocal(); });
  return found;
}

Status noInterface(const std::string& spec, const std::vector<Interface>& interfaces) {
  std::string unusable;
  for (const std::string& part : partsOf(spec)) {
    for (const Interface& one : interfacesMeant(part, interfaces)) {
      if (!one.isUsable()) unusable += " " + one.name + " is down or has no carrier;";
    }
  }
  return Status(Kind::kBadArgument, Scope::kProcess, "no_interface",
                "no usable interface '" + spec + "';" + unusable + " available: " + describe(interfaces));
}

Result<std::vector<Address>> selectInterfaces(const std::string& spec, const std::vector<Interface>& interfaces) {
  for (const std::string& part : partsOf(spec)) {
    std::vector<Address> usable;
    for (const Interface& one : interfacesMeant(part, interfaces)) {
      if (one.isUsable()) usable.push_back(one.address);
    }
    if (!usable.empty()) return usable;
  }
  return noInterface(spec, interfaces);
}

}  // namespace jhetcc::net
