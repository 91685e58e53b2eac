// SPDX-License-Identifier: Apache-2.0
#include "control/store.h"

#include <doctest/doctest.h>

#include <thread>
#include <vector>

#include "control/store_protocol.h"
#include "net/framing.h"
#include "net/socket.h"

namespace jhetcc::control {
namespace {

using net::Deadline;

const SystemClock kClock;

template <typename T>
T must(Result<T> result) {
  JHETCC_CHECK(result.isOk(), result.status().message());
  return std::move(result).value();
}

Deadline inSeconds(int64_t seconds, std::function<bool()> cancelled = {}) {
  return Deadline::after(kClock, seconds * 1000 * kNsPerMs, std::move(cancelled));
}

net::Secret secret() { return must(net::Secret::create("a secret for tests only")); }
net::Identity identity(int32_t rank) { return {"job", net::Role::kControl, rank, 7, 0, 0}; }

std::shared_ptr<const net::Tls> tls() { return must(net::Tls::create(secret(), "job")); }

std::unique_ptr<StoreServer> server(const net::Address& address = must(net::Address::fromHost("127.0.0.1", 0)),
                                    const std::shared_ptr<const net::Tls>& with = tls()) {
  return must(StoreServer::create({address, secret(), identity(0), nullptr, with}));
}
std::unique_ptr<StoreClient> client(const StoreServer& server, int32_t rank,
                                    const std::shared_ptr<const net::Tls>& with = tls()) {
  return must(StoreClient::connect(server.address(), secret(), identity(rank), inSeconds(10), net::kAnyRank, with));
}
net::Connection raw(const StoreServer& server) {
  return must(net::connect(server.address(), secret(), identity(9), 0, inSeconds(10), std::nullopt, tls()));
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("set, get, list, add, set-if-absent, over TCP and a unix name, with TLS and without") {
  const net::Address tcp = must(net::Address::fromHost("127.0.0.2", 0));
  const net::Address unix_name = must(net::Address::unixName("jhetcc-store-" + std::to_string(::getpid())));
  for (const auto& [address, with] :
       {std::pair(tcp, tls()), {unix_name, tls()}, {tcp, nullptr}, {unix_name, nullptr}}) {
    auto store = server(address, with);
    auto a = client(*store, 0, with), b = client(*store, 1, with);
    CHECK(a->server().rank == 0);
    CHECK(!must(b->tryGet("k", inSeconds(5))).has_value());
    CHECK(a->set("k", std::string("zero \0 byte", 11), inSeconds(5)).isOk());
    CHECK(must(b->get("k", inSeconds(5))) == std::string("zero \0 byte", 11));
    CHECK(!must(a->setIfAbsent("rank/0", "host a", inSeconds(5))).has_value());
    CHECK(must(b->setIfAbsent("rank/0", "host b", inSeconds(5))) == "host a");
    CHECK(must(b->get("rank/0", inSeconds(5))) == "host a");
    CHECK(a->set("rank/1", "", inSeconds(5)).isOk());
    CHECK(must(b->list("rank/", inSeconds(5))) == std::vector<std::string>{"rank/0", "rank/1"});
    CHECK(must(b->list("", inSeconds(5))).size() == 3);
    CHECK(must(b->list("nothing", inSeconds(5))).empty());
    CHECK(must(a->add("n", 5, inSeconds(5))) == 5);
    CHECK(must(b->add("n", -7, inSeconds(5))) == -2);
    CHECK(a->add("k", 1, inSeconds(5)).status().code() == "store_number");
    CHECK(a->set("n", std::to_string(INT64_MAX), inSeconds(5)).isOk());
    CHECK(a->add("n", 1, inSeconds(5)).status().kind() == Kind::kBadArgument);
  }
}

TEST_CASE(
    "what a client leaves when it goes is set once, where nothing is, and wakes who waits; it can be taken back") {
  auto store = server();
  auto watcher = client(*store, 0);
  for (const bool is_taken_back : {false, true}) {
    const std::string key = is_taken_back ? "second" : "first";
    auto goes = client(*store, 1), other = client(*store, 2);
    CHECK(goes->will(key, "an older one", inSeconds(5)).isOk());
    CHECK(goes->will(key, "it ended", inSeconds(5)).isOk());
    CHECK(other->will(key, "so did the other", inSeconds(5)).isOk());
    if (is_taken_back) CHECK(goes->will("", "", inSeconds(5)).isOk());
    CHECK(!must(watcher->tryGet(key, inSeconds(5))).has_value());
    if (!is_taken_back) {
      goes.reset();
      CHECK(must(watcher->get(key, inSeconds(5))) == "it ended");
      other.reset();
      CHECK(must(watcher->get(key, inSeconds(5))) == "it ended");
    } else {
      goes.reset();
      other.reset();
      CHECK(must(watcher->get(key, inSeconds(5))) == "so did the other");
    }
  }
  CHECK(watcher->will("k", std::string(kStoreWillBytesMax, 'x'), inSeconds(5)).code() == "store_value");
}

TEST_CASE("get waits for the key; deadline and cancellation end the wait; the client stays usable") {
  auto store = server();
  auto a = client(*store, 0), b = client(*store, 1);
  const Status late = a->get("later", Deadline::after(kClock, 60 * kNsPerMs)).status();
  CHECK(late.kind() == Kind::kTimeout);
  CHECK(late.code() == "store_timeout");
  CHECK_MESSAGE(contains(late.message(), "store get of 'later' at " + store->address().text()), late.message());
  int asked = 0;
  CHECK(a->get("later", inSeconds(60, [&] { return ++asked == 2; })).status().kind() == Kind::kAborted);
  std::thread waiter([&] { CHECK(must(a->get("later", inSeconds(20))) == "now"); });
  CHECK(b->set("later", "now", inSeconds(5)).isOk());
  waiter.join();
}

TEST_CASE("one client serves several threads, also while one of them waits for what another sets") {
  auto store = server();
  auto shared = client(*store, 0);
  std::thread waiter([&] { CHECK(must(shared->get("go", inSeconds(20))) == "x"); });
  std::vector<std::thread> adders;
  for (int t = 0; t < 3; ++t) {
    adders.emplace_back([&] {
      for (int i = 0; i < 50; ++i) CHECK(shared->add("sum", 1, inSeconds(20)).isOk());
    });
  }
  for (std::thread& adder : adders) adder.join();
  CHECK(must(shared->add("sum", 0, inSeconds(5))) == 150);
  CHECK(shared->set("go", "x", inSeconds(5)).isOk());
  waiter.join();
}

TEST_CASE("many waiters of one key, some of which leave") {
  auto store = server();
  std::vector<std::unique_ptr<StoreClient>> clients;
  for (int rank = 0; rank < 12; ++rank) clients.push_back(client(*store, rank));
  std::vector<std::thread> threads;
  for (int rank = 1; rank < 12; ++rank) {
    threads.emplace_back([&, rank] {
      if (rank % 3 == 0) {
        CHECK(!clients[static_cast<size_t>(rank)]->get("world", Deadline::after(kClock, 10 * kNsPerMs)).isOk());
        clients[static_cast<size_t>(rank)].reset();
      } else {
        CHECK(must(clients[static_cast<size_t>(rank)]->get("world", inSeconds(20))) == "12");
      }
    });
  }
  for (size_t t = 2; t < threads.size(); t += 3) threads[t].join();  // those of ranks 3, 6, 9
  CHECK(clients[0]->set("world", "12", inSeconds(5)).isOk());
  for (size_t t = 0; t < threads.size(); ++t) {
    if (t % 3 != 2) threads[t].join();
  }
}

TEST_CASE("one store at several addresses, of which some are not this machine's, and one is said twice") {
  const uint16_t port = server()->address().port();  // free again at once
  const auto at = [port](const char* host) { return must(net::Address::fromHost(host, port)); };
  StoreServerConfig config{at("192.0.2.1"), secret(), identity(0), nullptr, tls()};
  const Status nowhere = StoreServer::create(config).status();
  CHECK(nowhere.kind() == Kind::kUnavailable);
  CHECK_MESSAGE(nowhere.message().find("192.0.2.1") != std::string::npos, nowhere.message());
  config.more = {at("127.0.0.2"), at("127.0.0.3"), at("127.0.0.2"), at("198.51.100.1")};
  const auto store = must(StoreServer::create(config));
  CHECK(store->address() == at("127.0.0.2"));
  auto one = must(StoreClient::connect(at("127.0.0.2"), secret(), identity(1), inSeconds(10), net::kAnyRank, tls()));
  auto two = must(StoreClient::connect(at("127.0.0.3"), secret(), identity(2), inSeconds(10), net::kAnyRank, tls()));
  CHECK(one->set("key", "value", inSeconds(10)).isOk());
  CHECK(must(two->get("key", inSeconds(10))) == "value");
  config.address = at("127.0.0.4");
  CHECK(StoreServer::create(config).status().kind() == Kind::kResource);  // one of them is taken
}

TEST_CASE("limits: keys, values and large ones that fit") {
  auto store = server();
  auto a = client(*store, 0);
  CHECK(a->set("", "x", inSeconds(5)).code() == "store_key");
  CHECK(a->set(std::string(257, 'k'), "x", inSeconds(5)).code() == "store_key");
  CHECK(a->set("k", std::string(kStoreValueBytesMax + 1, 'v'), inSeconds(5)).code() == "store_value");
  const std::string large(kStoreValueBytesMax, 'v');
  CHECK(a->set(std::string(256, 'k'), large, inSeconds(20)).isOk());
  CHECK(must(a->get(std::string(256, 'k'), inSeconds(20))) == large);
}

TEST_CASE("a caller that asks for much and reads late gets it all, and does not hold up others") {
  auto store = server();
  auto good = client(*store, 0);
  const std::string large(kStoreValueBytesMax, 'v');
  CHECK(good->set("large", large, inSeconds(20)).isOk());
  net::Connection slow = raw(*store);
  constexpr uint64_t kRequests = 24;
  const int little = 64 * 1024;  // so that the system does not hold the replies for the caller
  REQUIRE(::setsockopt(slow.fd.get(), SOL_SOCKET, SO_RCVBUF, &little, sizeof(little)) == 0);
  std::string requests;
  for (uint64_t id = 1; id <= kRequests; ++id)
    requests += net::framed(encodeRequest({id, StoreOp::kGet, 0, "large", ""}));
  CHECK(net::sendAll(slow, requests.data(), requests.size(), inSeconds(5), "test").isOk());
  CHECK(must(good->get("large", inSeconds(20))) == large);
  for (uint64_t id = 1; id <= kRequests; ++id) {
    const std::string reply = must(net::receiveMessage(slow, kStoreReplyMax, inSeconds(20), "test"));
    CHECK(ByteReader(reply).u64() == id);
    CHECK(reply.size() > kStoreValueBytesMax);
  }
}

TEST_CASE("the server goes: waits and later calls end at once and say so") {
  auto store = server();
  const std::string address = store->address().text();
  auto a = client(*store, 0);
  std::thread waiter([&] {
    const Status gone = a->get("never", inSeconds(60)).status();
    CHECK(gone.kind() == Kind::kDisconnected);
    CHECK(gone.code() == "store_gone");
    CHECK_MESSAGE(contains(gone.message(), "the store at " + address + " is gone: "), gone.message());
  });
  store.reset();
  waiter.join();
  CHECK(a->set("k", "v", inSeconds(60)).code() == "store_gone");
  CHECK(StoreClient::connect(must(net::Address::parse(address)), secret(), identity(1),
                             Deadline::after(kClock, 50 * kNsPerMs), net::kAnyRank, tls())
            .status()
            .code() == "connect_timeout");
}

TEST_CASE("authenticated nonsense costs the caller its connection and nobody else anything") {
  auto store = server();
  auto good = client(*store, 0);
  for (const std::string& bytes : {std::string("\xff\xff\xff\xff", 4), net::framed("not a request"), net::framed("")}) {
    net::Connection bad = raw(*store);
    CHECK(net::sendAll(bad, bytes.data(), bytes.size(), inSeconds(5), "test").isOk());
    char byte;
    CHECK(net::receiveAll(bad, &byte, 1, inSeconds(10), "test").kind() == Kind::kDisconnected);
  }
  CHECK(good->set("k", "v", inSeconds(5)).isOk());
  const net::Secret wrong = must(net::Secret::create("quite another secret"));
  const Status other = StoreClient::connect(store->address(), wrong, identity(1), inSeconds(10), net::kAnyRank,
                                            must(net::Tls::create(wrong, "job")))
                           .status();
  CHECK(other.code() == "secret_mismatch");
}

}  // namespace
}  // namespace jhetcc::control
