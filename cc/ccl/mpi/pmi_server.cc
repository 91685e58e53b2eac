// SPDX-License-Identifier: Apache-2.0
#include "ccl/mpi/pmi_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "base/system_text.h"
#include "base/thread.h"
#include "net/crypto.h"

namespace jhetcc::ccl::mpi {
namespace {

constexpr size_t kUnreadBytesMax = size_t{1} << 20;

bool wouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

Result<std::string> freshName() {
  uint8_t bytes[8];
  if (const Status status = net::fillRandom(bytes, sizeof(bytes)); !status.isOk()) return status;
  std::string name = "jhetcc_";
  for (const uint8_t byte : bytes) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

}  // namespace

PmiServer::PmiServer(Config config, std::string name, net::Wakeup wakeup)
    : config_(std::move(config)), name_(std::move(name)), wakeup_(std::move(wakeup)), table_(config_.size, name_) {}

Result<std::unique_ptr<PmiServer>> PmiServer::create(Config config) {
  Result<std::string> name = freshName();
  if (!name.isOk()) return name.status();
  Result<net::Wakeup> wakeup = net::Wakeup::create();
  if (!wakeup.isOk()) return wakeup.status();
  std::unique_ptr<PmiServer> server(
      new PmiServer(std::move(config), std::move(name).value(), std::move(wakeup).value()));
  net::AcceptorConfig acceptor;
  acceptor.address = server->config_.address;
  acceptor.secret = server->config_.secret;
  acceptor.mine.job = server->name_;
  acceptor.on_connection = [raw = server.get()](net::Connection connection) {
    std::lock_guard lock(raw->mutex_);
    raw->arrived_.push_back(std::move(connection));
    raw->wakeup_.signal();
  };
  Result<std::unique_ptr<net::Acceptor>> made = net::Acceptor::create(std::move(acceptor));
  if (!made.isOk()) return made.status();
  server->acceptor_ = std::move(made).value();
  Result<std::thread> thread = startThread("jhetcc-pmi", [raw = server.get()] { raw->run(); });
  if (!thread.isOk()) return thread.status();
  server->thread_ = std::move(thread).value();
  return server;
}

PmiServer::~PmiServer() {
  acceptor_.reset();
  stop_.store(true);
  wakeup_.signal();
  if (thread_.joinable()) thread_.join();
}

void PmiServer::run() {
  try {
    runUntilStopped();
  } catch (const std::exception& error) {
    JHETCC_LOG(kError, "ccl", std::string("the server of an MPI world ended: ") + error.what());
  }
}

void PmiServer::runUntilStopped() {
  std::vector<pollfd> entries;
  while (!stop_.load()) {
    entries.assign(1, {wakeup_.descriptor(), POLLIN, 0});
    int64_t next_ns = INT64_MAX;
    for (const Client& client : clients_) {
      const short wanted = static_cast<short>(client.to_send.empty() ? POLLIN : POLLIN | POLLOUT);
      entries.push_back({client.connection.fd.get(), wanted, 0});
      if (client.stuck_since_ns != 0) next_ns = std::min(next_ns, client.stuck_since_ns + config_.line_ns);
    }
    ::poll(entries.data(), entries.size(), net::pollTimeoutMs(clock_, next_ns));
    if (entries[0].revents != 0) wakeup_.clear();
    size_t place = 1;
    for (auto client = clients_.begin(); client != clients_.end();) {
      bool is_good = advance(*client, entries[place++].revents);
      if (client->stuck_since_ns != 0 && clock_.nowNs() >= client->stuck_since_ns + config_.line_ns) is_good = false;
      if (!is_good) {
        JHETCC_LOG(kInfo, "ccl", "an MPI world's server let go of " + client->connection.description);
        dropped_.fetch_add(1);
        table_.onGone(client->connection.peer.rank);
      }
      client = is_good ? std::next(client) : clients_.erase(client);
    }
    takeArrived();
  }
}

void PmiServer::takeArrived() {
  std::vector<net::Connection> arrived;
  {
    std::lock_guard lock(mutex_);
    arrived.swap(arrived_);
  }
  for (net::Connection& connection : arrived) {
    const int32_t rank = connection.peer.rank;
    if (rank < 0 || rank >= config_.size || clientOf(rank)) {
      dropped_.fetch_add(1);
    } else {
      clients_.push_back({std::move(connection), {}, {}, 0});
    }
  }
}

PmiServer::Client* PmiServer::clientOf(int32_t rank) {
  const auto found = std::find_if(clients_.begin(), clients_.end(),
                                  [rank](const Client& client) { return client.connection.peer.rank == rank; });
  return found == clients_.end() ? nullptr : &*found;
}

bool PmiServer::advance(Client& client, short events) {
  if ((events & (POLLIN | POLLERR | POLLHUP)) != 0) {
    char piece[4096];
    const ssize_t got = ::recv(client.connection.fd.get(), piece, sizeof(piece), 0);
    if (got == 0 || (got < 0 && !wouldBlock(errno))) return false;
    if (got > 0) client.received.append(piece, static_cast<size_t>(got));
    if (!takeLines(client)) return false;
  }
  if (!flush(client)) return false;
  const bool is_stuck = !client.received.empty() || !client.to_send.empty();
  if (!is_stuck) client.stuck_since_ns = 0;
  if (is_stuck && client.stuck_since_ns == 0) client.stuck_since_ns = clock_.nowNs();
  return true;
}

bool PmiServer::takeLines(Client& client) {
  std::vector<PmiTable::Reply> replies;
  bool is_good = true;
  size_t begin = 0;
  for (size_t end; is_good && (end = client.received.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line = std::string_view(client.received).substr(begin, end - begin);
    is_good = line.size() <= kPmiLineBytesMax && table_.onLine(client.connection.peer.rank, line, &replies);
  }
  client.received.erase(0, begin);
  for (const PmiTable::Reply& reply : replies) {
    if (Client* to = clientOf(reply.rank)) to->to_send += reply.line;
  }
  return is_good && client.received.size() <= kPmiLineBytesMax;
}

bool PmiServer::flush(Client& client) {
  while (!client.to_send.empty()) {
    const ssize_t sent = ::send(client.connection.fd.get(), client.to_send.data(), client.to_send.size(), MSG_NOSIGNAL);
    if (sent < 0) return wouldBlock(errno) && client.to_send.size() <= kUnreadBytesMax;
    client.to_send.erase(0, static_cast<size_t>(sent));
  }
  return true;
}

}  // namespace jhetcc::ccl::mpi
