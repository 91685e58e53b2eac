// SPDX-License-Identifier: Apache-2.0
// Identities, secrets and a raw caller that breaks the rules, for the tests of net and control.
#pragma once

#include <poll.h>

#include <atomic>
#include <string>
#include <thread>

#include "base/random.h"
#include "net/acceptor.h"
#include "net/connect.h"
#include "net/handshake.h"
#include "net/socket.h"

namespace jhetcc::net {

inline const SystemClock kClock;
constexpr int64_t kSecond = 1'000 * kNsPerMs;

inline Deadline inSeconds(int64_t seconds, std::function<bool()> cancelled = {}) {
  return Deadline::after(kClock, seconds * kSecond, std::move(cancelled));
}

template <typename T>
T must(Result<T> result) {
  JHETCC_CHECK(result.isOk(), result.status().message());
  return std::move(result).value();
}

inline Secret testSecret(const std::string& bytes = "a secret for tests only") { return must(Secret::create(bytes)); }

inline Identity identity(int32_t rank, Role role = Role::kData, const std::string& job = "job") {
  return {job, role, rank, 100u + static_cast<uint64_t>(rank), 0, 0};
}

inline Address loopback(const std::string& host = "127.0.0.1") { return must(Address::fromHost(host, 0)); }

inline Address freshUnixName() {
  static std::atomic<int> count{0};
  return must(Address::unixName("jhetcc-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++)));
}

inline std::unique_ptr<Acceptor> acceptor(Secret secret, Identity mine, const Address& address = loopback()) {
  AcceptorConfig config;
  config.address = address;
  config.secret = std::move(secret);
  config.mine = std::move(mine);
  return must(Acceptor::create(std::move(config)));
}

/// A caller that speaks only as told.
class Stranger {
 public:
  explicit Stranger(const Address& address) : fd_(must(createSocket(address))) {
    if (::connect(fd_.get(), address.native(), address.nativeSize()) != 0) {
      JHETCC_CHECK(waitFor(fd_.get(), POLLOUT, inSeconds(5), "stranger").isOk(), address.text());
    }
  }
  Status say(const std::string& bytes) {
    return sendAll(fd_.get(), bytes.data(), bytes.size(), inSeconds(5), "stranger");
  }
  HandshakeFrame hear() {
    std::string received;
    for (size_t wanted = must(bytesWanted(received)); wanted > 0; wanted = must(bytesWanted(received))) {
      std::string piece(wanted, '\0');
      const Status status = receiveAll(fd_.get(), piece.data(), wanted, inSeconds(5), "stranger");
      JHETCC_CHECK(status.isOk(), status.message());
      received += piece;
    }
    return decodeFrame(received);
  }
  /// Whether the other end closes within the deadline, saying nothing more.
  bool isDropped(int64_t seconds = 5) {
    char byte;
    return receiveAll(fd_.get(), &byte, 1, inSeconds(seconds), "stranger").kind() == Kind::kDisconnected;
  }
  int fd() const { return fd_.get(); }

 private:
  Fd fd_;
};

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Until the acceptor has counted so many drops; false at the deadline.
inline bool waitForDrops(const Acceptor& acceptor, uint64_t drops, int64_t seconds = 5) {
  const Deadline deadline = inSeconds(seconds);
  while (acceptor.counts().dropped < drops && deadline.remainingNs() > 0) std::this_thread::yield();
  return acceptor.counts().dropped >= drops;
}

}  // namespace jhetcc::net
