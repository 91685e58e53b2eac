// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "net/crypto.h"
#include "net/framing.h"
#include "net/listener.h"
#include "net/net_fixtures.h"

namespace jhetcc::net {
namespace {

std::string hex(const Mac& mac) {
  static const char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : mac) (text += kDigits[byte >> 4]) += kDigits[byte & 15];
  return text;
}

TEST_CASE("HMAC-SHA256 has the values of RFC 4231") {
  auto crypto = must(Crypto::load(""));
  CHECK(contains(crypto->libraryName(), "libcrypto.so"));
  CHECK(hex(must(crypto->hmacSha256(std::string(20, '\x0b'), "Hi There"))) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex(must(crypto->hmacSha256("Jefe", "what do ya want for nothing?"))) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hex(must(
            crypto->hmacSha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"))) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("a machine without libcrypto is told what to install; a named file is not passed over") {
  const Status missing = Secret::create(std::string(32, 'k'), "/nowhere/libcrypto.so").status();
  CHECK(missing.kind() == Kind::kUnavailable);
  for (const char* part : {"/nowhere/libcrypto.so (", "libssl3"}) CHECK(contains(missing.message(), part));
  const Status unsuitable = Secret::create(std::string(32, 'k'), "libc.so.6").status();
  CHECK(unsuitable.code() == "library_unsuitable");
}

TEST_CASE("secrets: length, none, copies") {
  CHECK(Secret::create("short").status().code() == "secret_size");
  CHECK(contains(Secret::create("").status().message(), "jhetcc secret"));
  CHECK(Secret::create(std::string(kSecretBytesMax + 1, 'k')).status().code() == "secret_size");
  CHECK(Secret::none().isNone());
  CHECK(must(Secret::none().mac("x")) == Mac{});
  const Secret copy = testSecret();
  CHECK(!copy.isNone());
  CHECK(must(copy.mac("x")) == must(testSecret().mac("x")));
  CHECK(must(copy.mac("x")) != must(copy.mac("y")));
  CHECK(must(copy.mac("x")) != must(testSecret("quite another secret").mac("x")));
}

TEST_CASE("nonces differ, comparison compares") {
  CHECK(must(randomNonce()) != must(randomNonce()));
  CHECK(equalInConstantTime("abc", "abc"));
  CHECK(!equalInConstantTime("abc", "abd"));
  CHECK(!equalInConstantTime("abc", "ab"));
  CHECK(equalInConstantTime("", ""));
}

/// Two ends of one stream.
struct Pair {
  Fd a, b;
  Pair() {
    Listener listener = must(Listener::create(loopback()));
    Stranger caller(listener.address());
    REQUIRE(waitFor(listener.descriptor(), POLLIN, inSeconds(5), "pair").isOk());
    a = std::move(must(listener.accept())->fd);
    b = Fd(::dup(caller.fd()));
  }
};

TEST_CASE("messages of all sizes arrive whole and in order") {
  Pair pair;
  const std::string large(300'000, 'x');
  std::thread sender([&] {
    for (const std::string& message : {std::string(), std::string("one"), large, std::string("last")}) {
      CHECK(sendMessage(pair.a.get(), message, inSeconds(10), "test").isOk());
    }
  });
  CHECK(must(receiveMessage(pair.b.get(), 1 << 20, inSeconds(10), "test")).empty());
  MessageReader reader(1 << 20);
  std::vector<std::string> got;
  while (got.size() < 3) {
    REQUIRE(waitFor(pair.b.get(), POLLIN, inSeconds(10), "test").isOk());
    REQUIRE(reader.readSome(pair.b.get(), "test").isOk());
    for (auto message = must(reader.next()); message; message = must(reader.next())) got.push_back(*message);
  }
  sender.join();
  CHECK(got == std::vector<std::string>{"one", large, "last"});
}

TEST_CASE("an announced length beyond the limit is refused, a missing rest ends at the deadline, a close is told") {
  Pair pair;
  CHECK(sendAll(pair.a.get(), "\xff\xff\xff\xff", 4, inSeconds(5), "test").isOk());
  CHECK(receiveMessage(pair.b.get(), 1000, inSeconds(5), "test").status().code() == "message_size");
  CHECK(sendAll(pair.a.get(), "\x05\0\0\0ab", 6, inSeconds(5), "test").isOk());
  const Status late = receiveMessage(pair.b.get(), 1000, Deadline::after(kClock, 30 * kNsPerMs), "reading").status();
  CHECK(late.kind() == Kind::kTimeout);
  CHECK(sendAll(pair.a.get(), "\x09\0\0\0ab", 6, inSeconds(5), "test").isOk());
  pair.a.reset();
  const Status closed = receiveMessage(pair.b.get(), 1000, inSeconds(5), "reading").status();
  CHECK(closed.kind() == Kind::kDisconnected);
  CHECK(contains(closed.message(), "reading: the peer closed the connection"));
}

TEST_CASE("sending into a full pipe ends at the deadline") {
  Pair pair;
  const std::string flood(64 << 20, 'x');
  const Status status = sendMessage(pair.a.get(), flood, Deadline::after(kClock, 100 * kNsPerMs), "flooding");
  CHECK(status.kind() == Kind::kTimeout);
}

}  // namespace
}  // namespace jhetcc::net
