// SPDX-License-Identifier: Apache-2.0
// TLS by the job's secret: who gets in, who does not and what he is told, and what a changed byte does.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "net/crypto.h"
#include "net/framing.h"
#include "net/listener.h"
#include "net/net_fixtures.h"

namespace jhetcc::net {
namespace {

std::shared_ptr<const Tls> tls(const Secret& secret = testSecret(), const std::string& job = "job") {
  return must(Tls::create(secret, job));
}

std::unique_ptr<Acceptor> tlsAcceptor(const Secret& secret = testSecret(), size_t pending_max = 64) {
  AcceptorConfig config;
  config.address = loopback();
  config.secret = secret;
  config.mine = identity(0);
  config.tls = tls(secret);
  config.pending_max = pending_max;
  return must(Acceptor::create(std::move(config)));
}

Result<Connection> call(const Acceptor& server, const Secret& secret, const std::shared_ptr<const Tls>& with,
                        int32_t rank = 1) {
  return connect(server.address(), secret, identity(rank), 0, inSeconds(10), std::nullopt, with);
}

/// Passes bytes on between a client and a server, and keeps or changes them.
class Eavesdropper {
 public:
  explicit Eavesdropper(const Address& server) : server_(server), listener_(must(Listener::create(loopback()))) {}
  ~Eavesdropper() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  const Address& address() const { return listener_.address(); }
  void start() {
    thread_ = std::thread([this] { run(); });
  }
  /// Of what the client says from now on, the next byte is changed.
  void spoilNext() { spoil_ = true; }
  /// What the client said, and the server; after the connections ended.
  std::array<std::string, 2> heard() {
    stop_ = true;
    thread_.join();
    return heard_;
  }

 private:
  void run() {
    REQUIRE(waitFor(listener_.descriptor(), POLLIN, inSeconds(10), "eavesdropper").isOk());
    Fd client = std::move(must(listener_.accept())->fd);
    Stranger server(server_);
    const int fds[2] = {client.get(), server.fd()};
    while (!stop_) {
      pollfd entries[2] = {{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}};
      ::poll(entries, 2, 10);
      for (int side = 0; side < 2; ++side) {
        char bytes[4096];
        const ssize_t got = entries[side].revents ? ::recv(fds[side], bytes, sizeof(bytes), 0) : -1;
        if (got == 0) ::shutdown(fds[1 - side], SHUT_WR);
        if (got == 0) return;
        if (got < 0) continue;
        if (side == 0 && spoil_.exchange(false)) bytes[got - 1] ^= 1;
        heard_[static_cast<size_t>(side)].append(bytes, static_cast<size_t>(got));
        (void)sendAll(fds[1 - side], bytes, static_cast<size_t>(got), inSeconds(5), "eavesdropper");
      }
    }
  }

  Address server_;
  Listener listener_;
  std::array<std::string, 2> heard_;
  std::atomic<bool> spoil_{false}, stop_{false};
  std::thread thread_;
};

TEST_CASE("both ends meet in TLS; messages of all sizes go both ways at once; nothing of them is seen on the wire") {
  auto server = tlsAcceptor();
  Eavesdropper ear(server->address());
  ear.start();
  Connection a = must(connect(ear.address(), testSecret(), identity(1), 0, inSeconds(10), std::nullopt, tls()));
  Connection b = must(server->take({Role::kData, 1, 0, 0}, inSeconds(10)));
  REQUIRE(a.tls);
  REQUIRE(b.tls);
  CHECK(must(a.tls->binding()) == must(b.tls->binding()));
  CHECK(b.peer == identity(1));
  const std::vector<std::string> messages = {"", "a word that is seen", std::string(300'000, 'x'), "last"};
  const auto send = [&](Connection& from) {
    for (const std::string& message : messages) CHECK(sendMessage(from, message, inSeconds(20), "test").isOk());
  };
  const auto receive = [&](Connection& at) {
    MessageReader reader(1 << 20);
    std::vector<std::string> got;
    while (got.size() < messages.size()) {
      REQUIRE(waitFor(at.fd.get(), POLLIN, inSeconds(20), "test").isOk());
      REQUIRE(reader.readSome(at, "test").isOk());
      for (auto message = must(reader.next()); message; message = must(reader.next())) got.push_back(*message);
    }
    CHECK(got == messages);
  };
  std::thread there([&] { send(a); }), back([&] { send(b); }), heard([&] { receive(a); });
  receive(b);
  for (std::thread* thread : {&there, &back, &heard}) thread->join();
  for (const std::string& bytes : ear.heard()) {
    CHECK(bytes.size() > 300'000);
    for (const char* word : {"a word", "xxxxxxxxxxxx", "JHN1"}) CHECK(!contains(bytes, word));
  }
}

TEST_CASE("a byte that is changed on the way ends the connection and is never handed out") {
  auto server = tlsAcceptor();
  Eavesdropper ear(server->address());
  ear.start();
  Connection a = must(connect(ear.address(), testSecret(), identity(1), 0, inSeconds(10), std::nullopt, tls()));
  Connection b = must(server->take({Role::kData, 1, 0, 0}, inSeconds(10)));
  ear.spoilNext();
  CHECK(sendMessage(a, "abort: no", inSeconds(5), "test").isOk());
  const Status status = receiveMessage(b, 100, inSeconds(5), "reading").status();
  CHECK(status.kind() == Kind::kDisconnected);
  CHECK_MESSAGE(contains(status.message(), "Bad message"), status.message());
}

TEST_CASE("what a client said once gets nobody in a second time") {
  auto server = tlsAcceptor();
  Eavesdropper ear(server->address());
  ear.start();
  {
    Connection a = must(connect(ear.address(), testSecret(), identity(1), 0, inSeconds(10), std::nullopt, tls()));
    CHECK(sendMessage(a, "word", inSeconds(5), "test").isOk());
    Connection b = must(server->take({Role::kData, 1, 0, 0}, inSeconds(10)));
    CHECK(must(receiveMessage(b, 100, inSeconds(5), "test")) == "word");
  }
  const std::string said = ear.heard()[0];
  Stranger thief(server->address());
  CHECK(thief.say(said).isOk());
  std::string answer(1 << 16, '\0');
  while (::recv(thief.fd(), answer.data(), answer.size(), 0) != 0) {
    if (!waitFor(thief.fd(), POLLIN, inSeconds(5), "thief").isOk()) break;
  }
  CHECK(waitForDrops(*server, 1));
  CHECK(server->counts().accepted == 1);
  CHECK(contains(server->recentDrops().back(), "does not have the job secret"));
}

TEST_CASE("another secret, none, TLS on one side only: each is named on both sides, and never retried") {
  const Secret other = testSecret("quite another secret");
  auto server = tlsAcceptor();
  uint64_t drops = 0;
  const auto check = [&](Acceptor& at, const Status& status, const char* code, const char* here, const char* there) {
    CHECK_MESSAGE(status.code() == code, status.message());
    CHECK_MESSAGE(contains(status.message(), here), status.message());
    REQUIRE(waitForDrops(at, ++drops));
    CHECK_MESSAGE(contains(at.recentDrops().back(), there), at.recentDrops().back());
  };
  check(*server, call(*server, other, tls(other)).status(), "secret_mismatch", "JHETCC_SECRET_FILE",
        "the caller does not have the job secret (TLS: ");
  check(*server, call(*server, testSecret(), nullptr).status(), "tls_mismatch", "JHETCC_TLS",
        "this process speaks TLS and the other end does not");
  check(*server, call(*server, Secret::none(), nullptr).status(), "secret_missing", "this process has none",
        "this process speaks TLS and the other end does not");
  auto plain = acceptor(testSecret(), identity(0));
  drops = 0;
  check(*plain, call(*plain, testSecret(), tls()).status(), "tls_mismatch", "JHETCC_TLS",
        "the other end speaks TLS and this process does not");
  auto open = acceptor(Secret::none(), identity(0));
  drops = 0;
  check(*open, call(*open, testSecret(), tls()).status(), "secret_missing", "so it is not trusted",
        "this process has none");
  CHECK(call(*server, testSecret(), tls(testSecret(), "another job's hint")).isOk());  // proves nothing, spoils nothing
}

TEST_CASE("inside TLS the handshake still judges job, role, rank and epoch") {
  auto server = tlsAcceptor();
  server->leaveBehind(3, {4});
  Identity mine = identity(1);
  const auto why = [&](const Identity& who, int32_t wanted) {
    return connect(server->address(), testSecret(), who, wanted, inSeconds(10), std::nullopt, tls()).status().code();
  };
  CHECK(why(identity(4), 0) == "stale_epoch");
  mine.epoch = 3;
  CHECK(why(mine, 5) == "wrong_rank");
  mine.job = "other";
  CHECK(why(mine, 0) == "job_mismatch");
  mine = identity(1, Role::kControl);
  mine.epoch = 3;
  CHECK(why(mine, 0) == "role_mismatch");
}

TEST_CASE("a handshake is bound to its TLS session: between two sessions it does not pass") {
  const auto answer = [](const std::string& clients, const std::string& servers) {
    ClientHandshake client(testSecret(), identity(1), 0, must(randomNonce()));
    ServerHandshake server(testSecret(), identity(0), must(randomNonce()));
    client.bindTo(clients);
    server.bindTo(servers);
    return client.onFrame(decodeFrame(server.onFrame(decodeFrame(client.hello())).reply)).status.code();
  };
  CHECK(answer("one session", "one session") == "ok");
  for (const char* other : {"another", "", "one sessio"}) CHECK(answer("one session", other) == "secret_mismatch");
}

TEST_CASE("a machine without libssl is told what to install and how to do without") {
  const Status missing = Tls::create(testSecret(), "job", "/nowhere/libssl.so").status();
  CHECK(missing.kind() == Kind::kUnavailable);
  for (const char* part : {"/nowhere/libssl.so (", "libssl3", "JHETCC_TLS=off"})
    CHECK(contains(missing.message(), part));
  CHECK(Tls::create(testSecret(), "job", "libc.so.6").status().code() == "library_unsuitable");
}

}  // namespace
}  // namespace jhetcc::net
