// SPDX-License-Identifier: Apache-2.0
#include "net/address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <optional>

#include "base/system_text.h"

namespace jhetcc::net {
namespace {

const char kUnixPrefix[] = "unix:@";

Status badAddress(const std::string& text, const std::string& why) {
  return Status(Kind::kBadArgument, Scope::kCall, "address",
                "address '" + text + "' is not understood: " + why + "; write host:port, [ipv6]:port or unix:@name");
}

struct HostPort {
  std::string host;
  uint16_t port;
};

Result<HostPort> splitHostPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return badAddress(text, "it has no port");
  std::string host = text.substr(0, colon);
  if (!host.empty() && host.front() == '[') {
    if (host.back() != ']') return badAddress(text, "'[' without ']'");
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    return badAddress(text, "an IPv6 host needs brackets");
  }
  if (host.empty()) return badAddress(text, "it has no host");
  uint16_t port = 0;
  const char* begin = text.data() + colon + 1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(begin, end, port);
  if (error != std::errc() || stop != end) return badAddress(text, "the port is not a number from 0 to 65535");
  return HostPort{host, port};
}

Result<std::vector<Address>> lookUp(const std::string& host, uint16_t port, int flags) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (error != 0) {
    const std::string why = error == EAI_SYSTEM ? systemText(errno) : gai_strerror(error);
    return Status(Kind::kBadArgument, Scope::kCall, "host_unknown", "host '" + host + "' has no address: " + why);
  }
  std::vector<Address> addresses;
  for (const addrinfo* entry = found; entry; entry = entry->ai_next) {
    Result<Address> address = Address::fromNative(entry->ai_addr, entry->ai_addrlen);
    if (address.isOk()) addresses.push_back(address.value());
  }
  freeaddrinfo(found);
  return addresses;
}

}  // namespace

Result<Address> Address::parse(const std::string& text) {
  if (text.compare(0, sizeof(kUnixPrefix) - 1, kUnixPrefix) == 0) return unixName(text.substr(sizeof(kUnixPrefix) - 1));
  Result<HostPort> split = splitHostPort(text);
  if (!split.isOk()) return split.status();
  return fromHost(split.value().host, split.value().port);
}

Result<Address> Address::fromHost(const std::string& host, uint16_t port) {
  Result<std::vector<Address>> found = lookUp(host, port, AI_NUMERICHOST);
  if (!found.isOk() || found.value().empty()) return badAddress(host, "it is not a numeric address");
  return found.value().front();
}

Result<Address> Address::unixName(const std::string& name) {
  Address address;
  auto* native = reinterpret_cast<sockaddr_un*>(&address.storage_);
  if (name.empty() || name.size() > sizeof(native->sun_path) - 1 || name.find('\0') != std::string::npos) {
    return badAddress(kUnixPrefix + name, "a unix name has 1 to 107 bytes, none of them zero");
  }
  native->sun_family = AF_UNIX;
  std::memcpy(native->sun_path + 1, name.data(), name.size());  // a leading zero byte: abstract, no file
  address.size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<Address> Address::fromNative(const sockaddr* native, socklen_t size) {
  Address address;
  const bool known = native->sa_family == AF_INET || native->sa_family == AF_INET6 || native->sa_family == AF_UNIX;
  if (!known || size > sizeof(address.storage_)) {
    return badAddress("family " + std::to_string(native->sa_family), "only IPv4, IPv6 and unix are known");
  }
  std::memcpy(&address.storage_, native, size);
  address.size_ = size;
  return address;
}

Address::Family Address::family() const {
  if (size_ == 0) return Family::kNone;
  switch (storage_.ss_family) {
    case AF_INET:
      return Family::kIpv4;
    case AF_INET6:
      return Family::kIpv6;
    case AF_UNIX:
      return Family::kUnix;
    default:
      return Family::kNone;
  }
}

std::string Address::ipBytes() const {
  if (family() == Family::kIpv4) {
    const auto* native = reinterpret_cast<const sockaddr_in*>(&storage_);
    return std::string(reinterpret_cast<const char*>(&native->sin_addr), 4);
  }
  if (family() == Family::kIpv6) {
    const auto* native = reinterpret_cast<const sockaddr_in6*>(&storage_);
    return std::string(reinterpret_cast<const char*>(&native->sin6_addr), 16);
  }
  return {};
}

bool Address::isLoopback() const {
  if (isUnix()) return true;
  const std::string bytes = ipBytes();
  if (bytes.size() == 4) return bytes[0] == 127;
  if (bytes.size() != 16) return false;
  static const std::string kMapped = std::string(10, '\0') + "\xff\xff\x7f";  // ::ffff:127.0.0.0/104
  return bytes.compare(0, kMapped.size(), kMapped) == 0 || bytes == std::string(15, '\0') + '\1';
}

bool Address::isWildcard() const {
  const std::string bytes = ipBytes();
  return !bytes.empty() && bytes.find_first_not_of('\0') == std::string::npos;
}

bool Address::isLinkLocal() const {
  const std::string bytes = ipBytes();
  if (bytes.size() == 4) return bytes.compare(0, 2, "\xa9\xfe") == 0;  // 169.254.0.0/16
  return bytes.size() == 16 && bytes[0] == '\xfe' && (bytes[1] & 0xc0) == 0x80;
}

uint16_t Address::port() const {
  if (family() == Family::kIpv4) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  if (family() == Family::kIpv6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  return 0;
}

Address Address::withPort(uint16_t port) const {
  Address changed = *this;
  if (family() == Family::kIpv4) reinterpret_cast<sockaddr_in*>(&changed.storage_)->sin_port = htons(port);
  if (family() == Family::kIpv6) reinterpret_cast<sockaddr_in6*>(&changed.storage_)->sin6_port = htons(port);
  return changed;
}

std::string Address::host() const {
  if (isUnix()) {
    const auto* native = reinterpret_cast<const sockaddr_un*>(&storage_);
    const size_t prefix = offsetof(sockaddr_un, sun_path) + 1;
    return size_ > prefix ? std::string(native->sun_path + 1, size_ - prefix) : std::string("(unnamed)");
  }
  char name[NI_MAXHOST] = {};
  if (!isIp() || getnameinfo(native(), size_, name, sizeof(name), nullptr, 0, NI_NUMERICHOST) != 0) return "nowhere";
  return name;
}

std::string Address::text() const {
  if (isUnix()) return kUnixPrefix + host();
  if (family() == Family::kIpv4) return host() + ":" + std::to_string(port());
  if (family() == Family::kIpv6) return std::string("[") + host() + "]:" + std::to_string(port());
  return "nowhere";
}

bool operator==(const Address& a, const Address& b) {
  if (a.family() != b.family()) return false;
  if (!a.isIp()) return a.host() == b.host();
  return a.ipBytes() == b.ipBytes() && a.port() == b.port() && a.host() == b.host();
}

Result<std::vector<Address>> resolve(const std::string& text) {
  if (text.compare(0, sizeof(kUnixPrefix) - 1, kUnixPrefix) == 0) {
    Result<Address> address = Address::parse(text);
    if (!address.isOk()) return address.status();
    return std::vector<Address>{address.value()};
  }
  Result<HostPort> split = splitHostPort(text);
  if (!split.isOk()) return split.status();
  return lookUp(split.value().host, split.value().port, 0);
}

namespace {

using NameFunction = int (*)(int, sockaddr*, socklen_t*);

Result<Address> nameOf(int fd, NameFunction function, const char* name) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (function(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    return Status(Kind::kDisconnected, Scope::kEndpoint, "socket", std::string(name) + " failed: " + systemText(errno));
  }
  return Address::fromNative(reinterpret_cast<sockaddr*>(&storage), size);
}

}  // namespace

Result<Address> localAddress(int fd) { return nameOf(fd, ::getsockname, "getsockname"); }
Result<Address> remoteAddress(int fd) { return nameOf(fd, ::getpeername, "getpeername"); }

}  // namespace jhetcc::net
