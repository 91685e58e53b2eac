// SPDX-License-Identifier: Apache-2.0
#include "net/listener.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/system_text.h"
#include "net/socket.h"

namespace jhetcc::net {

Result<Listener> Listener::create(const Address& address, const std::string& device) {
  if (address.family() == Address::Family::kNone || address.isWildcard()) {
    return Status(Kind::kBadArgument, Scope::kCall, "listen_wildcard",
                  "listening on " + address.text() + " would open every interface; name the address of one");
  }
  Result<Fd> fd = createSocket(address, device);
  if (!fd.isOk()) return fd.status();
  const int on = 1;
  // Connections of an earlier run may linger in TIME_WAIT; a second listener is still refused.
  if (address.isIp()) ::setsockopt(fd.value().get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd.value().get(), address.native(), address.nativeSize()) != 0 ||
      ::listen(fd.value().get(), SOMAXCONN) != 0) {
    const int error = errno;
    std::string hint;
    if (error == EADDRINUSE) hint = "; another process (another job?) has it: choose another port, or 0 for any";
    if (error == EADDRNOTAVAIL) hint = "; no interface of this machine has this address";
    return Status(error == EADDRINUSE ? Kind::kResource : Kind::kUnavailable, Scope::kCall, "listen",
                  "cannot listen on " + address.text() + ": " + systemText(error) + hint);
  }
  Result<Address> bound = localAddress(fd.value().get());
  if (!bound.isOk()) return bound.status();
  return Listener(std::move(fd).value(), bound.value());
}

Result<std::optional<Accepted>> Listener::accept() {
  for (;;) {
    sockaddr_storage storage{};
    socklen_t size = sizeof(storage);
    Fd fd(::accept4(fd_.get(), reinterpret_cast<sockaddr*>(&storage), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.isOpen()) {
      Result<Address> local = localAddress(fd.get());
      Result<Address> remote = Address::fromNative(reinterpret_cast<sockaddr*>(&storage), size);
      if (!local.isOk() || !remote.isOk()) continue;  // it vanished while it was being accepted
      return std::optional<Accepted>(Accepted{std::move(fd), local.value(), remote.value()});
    }
    switch (errno) {
      case EAGAIN:
        return std::optional<Accepted>();
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        return Status(Kind::kResource, Scope::kProcess, "accept",
                      "cannot accept on " + address_.text() + ": " + systemText(errno));
      case EBADF:
      case EINVAL:
      case ENOTSOCK:
      case EOPNOTSUPP:
        return Status(Kind::kInternal, Scope::kProcess, "accept",
                      "cannot accept on " + address_.text() + ": " + systemText(errno));
      default:
        continue;  // an error of that one connection (accept(2) lists them); the next one may be fine
    }
  }
}

}  // namespace jhetcc::net
