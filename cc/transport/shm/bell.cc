// SPDX-License-Identifier: Apache-2.0
// Doorbells over a unix socket or an eventfd. Each bell belongs to one endpoint.
#include "transport/shm/bell.h"

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace jhetcc::transport::shm {

namespace {

Status gone(const std::string& why) { return Status(Kind::kDisconnected, Scope::kEndpoint, "peer_lost", why); }

class SocketBell final : public Bell {
 public:
  explicit SocketBell(Fd socket) : socket_(std::move(socket)) {}
  void ring() override {
    // A full socket already holds bytes that wake the peer; a dead one is noticed by drain().
    const char byte = 1;
    while (::send(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EINTR) {
    }
  }
  Status drain() override {
    char bytes[256];
    for (;;) {
      const ssize_t count = recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (count > 0) continue;
      if (count == 0) return gone("peer process is gone: connection closed");
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Status::ok();
      return gone(std::string("peer process is gone: connection closed: ") + strerror(errno));
    }
  }
  int descriptor() const override { return socket_.get(); }

 private:
  Fd socket_;
};

class LocalBell final : public Bell {
 public:
  LocalBell(std::shared_ptr<LocalBells> bells, std::shared_ptr<Segment> segment, int side)
      : bells_(std::move(bells)), segment_(std::move(segment)), side_(side) {}
  ~LocalBell() override {
    segment_->layout().sides[side_].closed.store(1, std::memory_order_seq_cst);
    ring();
  }
  void ring() override { (void)eventfd_write(bells_->events[1 - side_].get(), 1); }
  Status drain() override {
    eventfd_t rung = 0;
    (void)eventfd_read(bells_->events[side_].get(), &rung);
    if (segment_->layout().sides[1 - side_].closed.load(std::memory_order_seq_cst) == 0) return Status::ok();
    return gone("peer endpoint of this process is gone: connection closed");
  }
  int descriptor() const override { return bells_->events[side_].get(); }

 private:
  std::shared_ptr<LocalBells> bells_;
  std::shared_ptr<Segment> segment_;
  int side_;
};

}  // namespace

std::unique_ptr<Bell> makeSocketBell(Fd socket) { return std::make_unique<SocketBell>(std::move(socket)); }

std::unique_ptr<Bell> makeLocalBell(std::shared_ptr<LocalBells> bells, std::shared_ptr<Segment> segment, int side) {
  return std::make_unique<LocalBell>(std::move(bells), std::move(segment), side);
}

}  // namespace jhetcc::transport::shm
