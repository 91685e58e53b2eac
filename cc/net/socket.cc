// SPDX-License-Identifier: Apache-2.0
#include "net/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <cerrno>

#include "base/system_text.h"
#include "net/tls.h"

namespace jhetcc::net {
namespace {

constexpr int kRetryMax = 44;  ///< TCP_RTO_MAX_MS, which older headers do not name

Status optionFailed(const char* name) {
  return Status(Kind::kDisconnected, Scope::kEndpoint, "socket_option",
                std::string("setting ") + name + " failed: " + systemText(errno));
}

Status setOption(int fd, int level, int option, int value, const char* name) {
  if (::setsockopt(fd, level, option, &value, sizeof(value)) != 0) return optionFailed(name);
  return Status::ok();
}

}  // namespace

Result<Fd> createSocket(const Address& address, const std::string& device) {
  Fd fd(::socket(address.native()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.isOpen()) {
    const int error = errno;
    return Status(error == EAFNOSUPPORT ? Kind::kUnavailable : Kind::kResource, Scope::kProcess, "socket",
                  "no socket for " + address.text() + ": " + systemText(error));
  }
  const auto size = static_cast<socklen_t>(device.size());
  if (size > 0 && ::setsockopt(fd.get(), SOL_SOCKET, SO_BINDTODEVICE, device.data(), size) != 0) {
    return Status(Kind::kUnavailable, Scope::kEndpoint, "bind",
                  "cannot bind a socket to interface " + device + ": " + systemText(errno));
  }
  return fd;
}

Result<TcpTuned> tuneTcp(int fd, const TcpTuning& tuning) {
  Result<Address> local = localAddress(fd);
  if (!local.isOk()) return local.status();
  if (!local.value().isIp()) return TcpTuned{};
  JHETCC_RETURN_IF_ERROR(setOption(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
  if (tuning.keepalive_idle_s > 0) {
    JHETCC_RETURN_IF_ERROR(setOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
    JHETCC_RETURN_IF_ERROR(setOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, tuning.keepalive_idle_s, "TCP_KEEPIDLE"));
    JHETCC_RETURN_IF_ERROR(setOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5, "TCP_KEEPINTVL"));
    JHETCC_RETURN_IF_ERROR(setOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 3, "TCP_KEEPCNT"));
  }
  if (tuning.user_timeout_ms > 0) {
    JHETCC_RETURN_IF_ERROR(
        setOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(tuning.user_timeout_ms), "TCP_USER_TIMEOUT"));
  }
  // Else tries grow rare, and a link that is back is found out late.
  (void)::setsockopt(fd, IPPROTO_TCP, kRetryMax, &tuning.retry_max_ms, sizeof(tuning.retry_max_ms));
  if (!tuning.congestion.empty()) {
    // Refused where the module is missing or not allowed to users: the answer below then names what is in force.
    (void)::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, tuning.congestion.data(),
                       static_cast<socklen_t>(tuning.congestion.size()));
  }
  char name[64] = {};
  socklen_t size = sizeof(name) - 1;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) != 0) return optionFailed("TCP_CONGESTION");
  return TcpTuned{std::string(name)};
}

Status disconnected(const std::string& what, int error_number) {
  return Status(
      Kind::kDisconnected, Scope::kEndpoint, "connection_lost",
      what + ": " + (error_number == 0 ? std::string("the peer closed the connection") : systemText(error_number)));
}

ssize_t Stream::receive(void* data, size_t size) const {
  return tls ? tls->receive(data, size) : ::recv(fd, data, size, 0);
}

ssize_t Stream::send(const void* data, size_t size) const {
  return tls ? tls->send(data, size) : ::send(fd, data, size, MSG_NOSIGNAL);
}

Status sendAll(const Stream& stream, const void* data, size_t size, const Deadline& deadline, const std::string& what) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = stream.send(bytes, size);
    if (sent >= 0) {
      bytes += sent;
      size -= static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      JHETCC_RETURN_IF_ERROR(waitFor(stream.fd, POLLOUT, deadline, what));
    } else if (errno != EINTR) {
      return disconnected(what, errno);
    }
  }
  return Status::ok();
}

Status receiveAll(const Stream& stream, void* data, size_t size, const Deadline& deadline, const std::string& what) {
  auto* bytes = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = stream.receive(bytes, size);
    if (got > 0) {
      bytes += got;
      size -= static_cast<size_t>(got);
    } else if (got == 0) {
      return disconnected(what, 0);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      JHETCC_RETURN_IF_ERROR(waitFor(stream.fd, POLLIN, deadline, what));
    } else if (errno != EINTR) {
      return disconnected(what, errno);
    }
  }
  return Status::ok();
}

}  // namespace jhetcc::net
