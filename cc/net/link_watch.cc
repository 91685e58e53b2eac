// SPDX-License-Identifier: Apache-2.0
#include "net/link_watch.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/system_text.h"

namespace jhetcc::net {

Result<LinkWatch> LinkWatch::create() {
  Fd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE));
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (!fd.isOpen() || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return Status(Kind::kUnavailable, Scope::kProcess, "netlink",
                  "the kernel tells nothing of links here: " + systemText(errno));
  }
  return LinkWatch(std::move(fd));
}

void LinkWatch::clear() {
  char buffer[8192];
  // Too many messages came at once (ENOBUFS): the next read goes on behind those that were dropped.
  while (::recv(fd_.get(), buffer, sizeof(buffer), 0) > 0 || errno == ENOBUFS || errno == EINTR) {
  }
}

}  // namespace jhetcc::net
