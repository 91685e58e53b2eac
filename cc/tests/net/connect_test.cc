// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <vector>

#include "net/listener.h"
#include "net/net_fixtures.h"

namespace jhetcc::net {
namespace {

void checkMeeting(const Address& address, const Secret& secret) {
  auto server = acceptor(secret, identity(0), address);
  Identity mine = identity(3);
  mine.path = 2;
  mine.epoch = 5;
  Connection client = must(connect(server->address(), secret, mine, 0, inSeconds(10)));
  CHECK(client.peer == identity(0));
  CHECK(client.remote == server->address());
  Connection taken = must(server->take({Role::kData, 3, 2, 5}, inSeconds(10)));
  CHECK(taken.peer == mine);
  CHECK(contains(taken.description, "rank 3 of job 'job' (data, path 2, epoch 5)"));
  for (const auto& [from, to] : {std::pair(&client, &taken), std::pair(&taken, &client)}) {
    CHECK(sendAll(from->fd.get(), "hello", 5, inSeconds(5), "test").isOk());
    std::string got(5, '\0');
    CHECK(receiveAll(to->fd.get(), got.data(), 5, inSeconds(5), "test").isOk());
    CHECK(got == "hello");
  }
}

TEST_CASE("two ends meet and carry bytes, over TCP and unix sockets, with a secret and without") {
  checkMeeting(loopback(), testSecret());
  checkMeeting(loopback("127.0.0.2"), testSecret());
  checkMeeting(freshUnixName(), testSecret());
  checkMeeting(loopback(), Secret::none());
  checkMeeting(freshUnixName(), Secret::none());
}

TEST_CASE("a client may come before its server, and binds to the address it is told") {
  const Address address = must(Listener::create(loopback())).address();  // free again at once
  Result<Connection> client = Status(Kind::kInternal, Scope::kCall, "test", "not run");
  std::thread early(
      [&] { client = connect(address, testSecret(), identity(1), 0, inSeconds(20), loopback("127.0.0.3")); });
  auto server = acceptor(testSecret(), identity(0), address);
  Connection taken = must(server->take({Role::kData, 1, 0, 0}, inSeconds(20)));
  early.join();
  REQUIRE(client.isOk());
  CHECK(client.value().local.host() == "127.0.0.3");
  CHECK(taken.remote == client.value().local);
}

TEST_CASE("nobody listens: the error names rank, address, attempts, elapsed time and the system's words") {
  const Address address = must(Listener::create(loopback())).address();
  const Result<Connection> client =
      connect(address, testSecret(), identity(1), 7, Deadline::after(kClock, 200 * kNsPerMs));
  REQUIRE(!client.isOk());
  CHECK(client.status().kind() == Kind::kTimeout);
  CHECK(client.status().code() == "connect_timeout");
  for (const char* part : {"rank 7 at ", "attempts", "Connection refused", "It is a loopback address"}) {
    CHECK_MESSAGE(contains(client.status().message(), part), client.status().message());
  }
  const size_t told = client.status().message().find("gave up after ");
  REQUIRE_MESSAGE(told != std::string::npos, client.status().message());
  double seconds = 0;
  int attempts = 0;
  CHECK(std::sscanf(client.status().message().c_str() + told, "gave up after %lf s and %d attempts", &seconds,
                    &attempts) == 2);
  CHECK(seconds >= 0.2);
  CHECK(seconds < 20);
  CHECK(attempts >= 2);
  CHECK(contains(client.status().message(), address.text()));
}

TEST_CASE("a server that is silent, or closes at once, does not hold the client past its deadline") {
  Listener silent = must(Listener::create(loopback()));
  Result<Connection> client =
      connect(silent.address(), testSecret(), identity(1), 0, Deadline::after(kClock, 200 * kNsPerMs));
  CHECK(client.status().code() == "connect_timeout");

  std::atomic<bool> stop{false};
  std::thread closer([&] {
    while (!stop) {
      (void)waitFor(silent.descriptor(), POLLIN, Deadline::after(kClock, 20 * kNsPerMs), "closer");
      (void)silent.accept();
    }
  });
  client = connect(silent.address(), testSecret(), identity(1), 0, Deadline::after(kClock, 300 * kNsPerMs));
  stop = true;
  closer.join();
  CHECK(client.status().code() == "connect_timeout");
  CHECK_MESSAGE(contains(client.status().message(), "the last one: handshake: "), client.status().message());
}

TEST_CASE("waits can be cancelled") {
  const Address address = must(Listener::create(loopback())).address();
  CHECK(connect(address, testSecret(), identity(1), 0, inSeconds(60, [] { return true; })).status().kind() ==
        Kind::kAborted);
  auto server = acceptor(testSecret(), identity(0));
  int asked = 0;
  const Result<Connection> taken = server->take({Role::kData, 1, 0, 0}, inSeconds(60, [&] { return ++asked == 3; }));
  CHECK(taken.status().kind() == Kind::kAborted);
}

TEST_CASE("a server of another program is named as such") {
  Listener listener = must(Listener::create(loopback()));
  std::thread other([&] {
    REQUIRE(waitFor(listener.descriptor(), POLLIN, inSeconds(10), "other").isOk());
    auto socket = must(listener.accept());
    REQUIRE(socket.has_value());
    CHECK(sendAll(socket->fd.get(), "SSH-2.0-OpenSSH_9.2\r\n", 21, inSeconds(5), "other").isOk());
    char byte;
    while (receiveAll(socket->fd.get(), &byte, 1, inSeconds(10), "other").isOk()) {
    }
  });
  const Result<Connection> client = connect(listener.address(), testSecret(), identity(1), 0, inSeconds(10));
  other.join();
  CHECK(client.status().kind() == Kind::kBadArgument);
  CHECK(client.status().code() == "not_jhetcc");
}

TEST_CASE("many clients at once, more than there are slots") {
  auto server = acceptor(testSecret(), identity(0));
  constexpr int kClients = 100;
  std::vector<std::thread> threads;
  std::atomic<int> connected{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int rank = 1 + t; rank <= kClients; rank += 4) {
        if (connect(server->address(), testSecret(), identity(rank), 0, inSeconds(30)).isOk()) ++connected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(connected == kClients);
  for (int rank = kClients; rank >= 1; --rank) CHECK(server->take({Role::kData, rank, 0, 0}, inSeconds(10)).isOk());
  CHECK(server->counts().accepted == kClients);
}

TEST_CASE("a second call of the same process replaces its first, and unclaimed connections are bounded") {
  AcceptorConfig config;
  config.address = loopback();
  config.secret = testSecret();
  config.mine = identity(0);
  config.unclaimed_max = 2;
  auto server = must(Acceptor::create(std::move(config)));
  std::map<int, Connection> clients;
  for (int rank : {1, 1, 2, 3})
    clients[rank] = must(connect(server->address(), testSecret(), identity(rank), 0, inSeconds(10)));
  Connection third = must(server->take({Role::kData, 3, 0, 0}, inSeconds(10)));
  CHECK(third.remote == clients[3].local);
  CHECK(must(server->take({Role::kData, 2, 0, 0}, inSeconds(10))).remote == clients[2].local);
  const Result<Connection> first = server->take({Role::kData, 1, 0, 0}, Deadline::after(kClock, 0));
  CHECK(first.status().code() == "accept_timeout");
  CHECK(first.status().ranks() == std::vector<int32_t>{1});
}

size_t entriesOf(const char* folder) {
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++entries;
  return entries;
}

TEST_CASE("descriptors and threads end with their owners") {
  const size_t descriptors = entriesOf("/proc/self/fd");
  const size_t threads = entriesOf("/proc/self/task");
  for (int round = 0; round < 3; ++round) {
    auto server = acceptor(testSecret(), identity(0));
    CHECK(entriesOf("/proc/self/task") == threads + 1);
    Connection unclaimed = must(connect(server->address(), testSecret(), identity(1), 0, inSeconds(10)));
    Connection claimed = must(connect(server->address(), testSecret(), identity(2), 0, inSeconds(10)));
    CHECK(server->take({Role::kData, 2, 0, 0}, inSeconds(10)).isOk());
    CHECK(!connect(server->address(), testSecret("quite another secret"), identity(3), 0, inSeconds(10)).isOk());
  }
  CHECK(entriesOf("/proc/self/fd") == descriptors);
  const Deadline deadline = inSeconds(5);  // a joined thread leaves the list a moment later
  while (entriesOf("/proc/self/task") != threads && deadline.remainingNs() > 0) std::this_thread::yield();
  CHECK(entriesOf("/proc/self/task") == threads);
}

TEST_CASE("listening: never on a wildcard, a taken port is named, an address of nobody too") {
  CHECK(Listener::create(must(Address::fromHost("0.0.0.0", 0))).status().code() == "listen_wildcard");
  CHECK(Listener::create(must(Address::fromHost("::", 0))).status().code() == "listen_wildcard");
  Listener first = must(Listener::create(loopback()));
  CHECK(first.address().port() != 0);
  const Status second = Listener::create(first.address()).status();
  CHECK(second.kind() == Kind::kResource);
  CHECK_MESSAGE(contains(second.message(), first.address().text() + ": Address already in use"), second.message());
  CHECK(Listener::create(must(Address::fromHost("192.0.2.1", 0))).status().kind() == Kind::kUnavailable);
}

TEST_CASE("tuning reports what is in force") {
  auto server = acceptor(testSecret(), identity(0));
  Connection client = must(connect(server->address(), testSecret(), identity(1), 0, inSeconds(10)));
  TcpTuning reno;
  reno.congestion = "reno";
  CHECK(must(tuneTcp(client.fd.get(), reno)).congestion == "reno");
  TcpTuning unknown;
  unknown.congestion = "nosuch";
  CHECK(must(tuneTcp(client.fd.get(), unknown)).congestion == "reno");
  CHECK(must(tuneTcp(must(createSocket(freshUnixName())).get())).congestion.empty());
}

}  // namespace
}  // namespace jhetcc::net
