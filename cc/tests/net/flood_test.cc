// SPDX-License-Identifier: Apache-2.0
// Many strangers, slow ones and strange ones, against acceptors with TLS and without: who belongs here still gets in,
// and the log stays short.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <mutex>
#include <vector>

#include "base/log.h"
#include "net/crypto.h"
#include "net/net_fixtures.h"

namespace jhetcc::net {
namespace {

/// What is logged while it lives.
class Log {
 public:
  Log() {
    setLogSink([this](const LogLine& line) {
      std::lock_guard lock(mutex_);
      lines_.push_back(line.text);
    });
  }
  explicit Log(const char* spec) : Log() { CHECK(setLogSpec(spec).isOk()); }
  ~Log() {
    setLogSink({});
    CHECK(setLogSpec("warn").isOk());
  }
  std::vector<std::string> lines() {
    std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

struct Way {
  const char* name;
  std::shared_ptr<const Tls> tls;
};
std::vector<Way> ways() { return {{"without TLS", nullptr}, {"with TLS", must(Tls::create(testSecret(), "job"))}}; }

std::unique_ptr<Acceptor> make(const Way& way, size_t pending_max = 64, int64_t handshake_ns = kHandshakeNs) {
  AcceptorConfig config;
  config.address = loopback();
  config.secret = testSecret();
  config.mine = identity(0);
  config.tls = way.tls;
  config.pending_max = pending_max;
  config.handshake_ns = handshake_ns;
  return must(Acceptor::create(std::move(config)));
}

void checkStillServes(Acceptor& server, const Way& way, int32_t rank = 42) {
  CHECK(connect(server.address(), testSecret(), identity(rank), 0, inSeconds(20), std::nullopt, way.tls).isOk());
  CHECK(server.take({Role::kData, rank, 0, 0}, inSeconds(10)).isOk());
}

TEST_CASE("five hundred strangers of every sort: the job's own still get in, and a few lines name them") {
  for (const Way& way : ways()) {
    CAPTURE(way.name);
    Log log;
    auto server = make(way);
    SeededRandom random(11);
    std::string noise(300, '\0');
    std::vector<std::unique_ptr<Stranger>> silent;
    constexpr uint64_t kStrangers = 500;
    for (uint64_t i = 0; i < kStrangers; ++i) {
      auto stranger = std::make_unique<Stranger>(server->address());
      for (char& byte : noise) byte = static_cast<char>(random.below(256));
      const linger reset{1, 0};
      switch (i % 8) {
        case 0:  // connect and close
          break;
        case 1:  // connect and reset
          ::setsockopt(stranger->fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
          break;
        case 2:  // half a connection
          ::shutdown(stranger->fd(), SHUT_WR);
          break;
        case 3:
          (void)stranger->say("\x16\x03\x01" + noise);
          break;
        case 4:  // 4 GiB of it, if one believes a length
          (void)stranger->say("\xff\xff\xff\xff" + noise);
          break;
        case 5:
          (void)stranger->say("GET / HTTP/1.1\r\n\r\n");
          break;
        case 6:
          (void)stranger->say(std::string("JHN1\x01\x00\xff\xff", 8) + noise);
          break;
        default:
          silent.push_back(std::move(stranger));
      }
      if (i % 100 == 50) checkStillServes(*server, way, static_cast<int32_t>(i));
    }
    checkStillServes(*server, way);
    silent.clear();
    CHECK(waitForDrops(*server, kStrangers, 20));
    CHECK(server->counts().accepted == 6);
    server.reset();  // tells of those it has not told of
    const std::vector<std::string> lines = log.lines();
    REQUIRE(!lines.empty());
    CHECK_MESSAGE(contains(lines.front(), "turned a stranger away at 127.0.0.1:"), lines.front());
    CHECK(lines.size() <= 4);
    CHECK_MESSAGE(contains(lines.back(), "strangers away since the last such line"), lines.back());
  }
}

/// Whether the other end closes; TLS says why before.
bool isCutOff(const Stranger& stranger) {
  char bytes[64];
  const Deadline deadline = inSeconds(10);
  Status status;
  while (status.isOk()) status = receiveAll(stranger.fd(), bytes, 1, deadline, "stranger");
  return status.kind() == jhetcc::Kind::kDisconnected;
}

TEST_CASE("who says much, or a byte at a time, and proves nothing is cut off") {
  for (const Way& way : ways()) {
    CAPTURE(way.name);
    auto server = make(way, 4, 300 * kNsPerMs);
    // A handshake record of the largest size, of which 4 KiB are heard.
    std::string hello("\x16\x03\x01\x3f\xff\x01\x00\x3f\xfb\x03\x03", 11);
    hello += std::string(8192, 'x');
    Stranger talker(server->address());
    (void)talker.say(hello);
    CHECK(isCutOff(talker));
    CHECK(waitForDrops(*server, 1));
    const std::string why = server->recentDrops().back();
    if (way.tls) CHECK_MESSAGE(contains(why, "says too much"), why);
    // Slow ones: each byte is welcome, and none of them buys time.
    const std::string slow_hello = way.tls ? std::string("\x16\x03\x01\x01\x00\x01\x00\x00\xfc\x03\x03", 11)
                                           : ClientHandshake(testSecret(), identity(1), 0, must(randomNonce())).hello();
    Stranger slow(server->address());
    const Deadline deadline = inSeconds(10);
    size_t said = 0;
    for (bool is_open = true; is_open && deadline.remainingNs() > 0 && said < slow_hello.size();) {
      is_open = slow.say(slow_hello.substr(said++, 1)).isOk();
      is_open = is_open && !waitFor(slow.fd(), POLLIN, Deadline::after(kClock, 50 * kNsPerMs), "slow").isOk();
    }
    CHECK(isCutOff(slow));
    CHECK(waitForDrops(*server, 2));
    CHECK_MESSAGE(contains(server->recentDrops().back(), "in time"), server->recentDrops().back());
    checkStillServes(*server, way);
  }
}

TEST_CASE("every place taken by slow strangers: the next of the job's own takes one of them") {
  for (const Way& way : ways()) {
    CAPTURE(way.name);
    auto server = make(way, 8);
    std::vector<std::unique_ptr<Stranger>> crowd;
    for (int i = 0; i < 8; ++i) {
      crowd.push_back(std::make_unique<Stranger>(server->address()));
      CHECK(crowd.back()->say(way.tls ? "\x16" : "J").isOk());
    }
    checkStillServes(*server, way);
    CHECK(server->counts().dropped >= 1);
    CHECK(contains(server->recentDrops().front(), "stayed silent"));
  }
}

class TestClock final : public Clock {
 public:
  int64_t nowNs() const override { return now_ns_.load(); }
  void advance(int64_t ns) { now_ns_ += ns; }

 private:
  std::atomic<int64_t> now_ns_{1};
};

TEST_CASE("the same stranger for long: a line now, and one for all the others later") {
  TestClock clock;
  Log log;
  AcceptorConfig config;
  config.address = loopback();
  config.secret = testSecret();
  config.mine = identity(0);
  config.clock = &clock;
  auto server = must(Acceptor::create(std::move(config)));
  uint64_t drops = 0;
  const auto knock = [&] {
    Stranger stranger(server->address());
    CHECK(stranger.say("GET / HTTP/1.1\r\n\r\n").isOk());
    CHECK(waitForDrops(*server, ++drops));
  };
  for (int i = 0; i < 5; ++i) knock();
  CHECK(log.lines().size() == 1);
  clock.advance(11'000 * kNsPerMs);
  knock();
  REQUIRE(log.lines().size() == 2);
  CHECK_MESSAGE(contains(log.lines()[1], "turned 4 strangers away"), log.lines()[1]);
  knock();
  CHECK(log.lines().size() == 2);
}

TEST_CASE("a connection that breaks off is told as a stranger's only where its words are none of ours") {
  constexpr uint64_t kKnown = 77;
  const Secret secret = testSecret();
  const auto hello = [&](uint64_t incarnation) {
    Identity mine = identity(1);
    mine.incarnation = incarnation;
    return ClientHandshake(secret, mine, 0, must(randomNonce())).hello();
  };
  struct Case {
    const char* name;
    std::string says;
    bool is_reset, is_stranger;
  };
  for (const Case& one : {Case{"nothing", "", false, false}, Case{"nothing, and a reset", "", true, false},
                          Case{"half a hello", hello(kKnown).substr(0, 20), false, false},
                          Case{"a known hello", hello(kKnown), false, false},
                          Case{"a known hello, and a reset", hello(kKnown), true, false},
                          Case{"another's hello", hello(kKnown + 1), false, true},
                          Case{"another protocol", "GET / HTTP/1.1\r\n\r\n", false, true}}) {
    CAPTURE(one.name);
    Log log("net=info");
    AcceptorConfig config;
    config.address = loopback();
    config.secret = secret;
    config.mine = identity(0);
    config.is_known = [](const Identity& peer) { return peer.incarnation == kKnown; };
    auto server = must(Acceptor::create(std::move(config)));
    {
      Stranger caller(server->address());
      if (!one.says.empty()) CHECK(caller.say(one.says).isOk());
      if (one.says.size() > 20 && one.says[0] == 'J') caller.hear();
      const linger reset{1, 0};
      if (one.is_reset) ::setsockopt(caller.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    }
    CHECK(waitForDrops(*server, 1));
    const std::vector<std::string> lines = log.lines();
    REQUIRE(lines.size() == 1);
    CHECK_MESSAGE(contains(lines.front(), "stranger") == one.is_stranger, lines.front());
    CHECK_MESSAGE(contains(lines.front(), "that may have been our own") != one.is_stranger, lines.front());
  }
}

TEST_CASE("who has proven to be of this job, and is late, is no stranger") {
  Log log("net=info");
  auto server = make({"without TLS", nullptr});
  server->leaveBehind(3, {1});
  CHECK(connect(server->address(), testSecret(), identity(1), 0, inSeconds(10)).status().code() == "stale_epoch");
  CHECK(waitForDrops(*server, 1));
  REQUIRE(log.lines().size() == 1);
  CHECK_MESSAGE(contains(log.lines().front(), "that may have been our own"), log.lines().front());
}

}  // namespace
}  // namespace jhetcc::net
