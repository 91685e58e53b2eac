// SPDX-License-Identifier: Apache-2.0
// Paths between two processes that live in one: connected over several addresses of loopback, and again when lost.
#include "runtime/paths.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <mutex>
#include <thread>

#include "base/log.h"
#include "net/connect.h"
#include "net/handshake.h"
#include "rail/bundle.h"
#include "runtime/process.h"

using namespace jhetcc;
using namespace jhetcc::runtime;

namespace {

constexpr int64_t kSecond = 1'000 * kNsPerMs;

struct Side {
  int32_t rank;
  std::shared_ptr<Process> process;
  std::shared_ptr<Paths> paths;
  net::Identity identity;

  explicit Side(int32_t number, const std::vector<std::string>& hosts = {"127.0.0.2", "127.0.0.3"}) : rank(number) {
    auto made = Process::create({}, {rank}, {0});
    REQUIRE(made.isOk());
    process = made.value();
    identity = {"job", net::Role::kData, rank, 100u + static_cast<uint64_t>(rank)};
    PathsOptions options;
    options.mine = identity;
    options.patience_ns = kSecond;
    for (const std::string& host : hosts) {
      options.nics.push_back({"lo", net::Address::fromHost(host, 0).value(), 8, 0});
    }
    auto created = Paths::create(options);
    REQUIRE_MESSAGE(created.isOk(), created.status().message());
    paths = created.value();
    process->keepPaths(paths);
  }

  PairPlan planTo(const Side& peer) const {
    PairPlan plan{0, peer.rank, peer.rank, peer.identity.incarnation, 0, rank > peer.rank, {}};
    const std::vector<net::Address> remotes = peer.paths->addresses();
    for (size_t k = 0; k < remotes.size(); ++k) plan.paths.push_back({0, k, remotes[k]});
    return plan;
  }
  Status connect(PairPlan plan, int64_t limit_ns = 20 * kSecond) {
    static const SystemClock clock;
    return paths->connect(*process, {std::move(plan)}, {}, net::Deadline::after(clock, limit_ns));
  }
  /// Of the one rail: its paths, and whether it broke.
  std::vector<rail::PathStatus> look(bool* is_broken = nullptr) {
    std::vector<rail::PathStatus> found;
    process->runner(0).withEngine([&](engine::Engine& engine) {
      rail::Rail& rail = *engine.rails().front();
      if (is_broken) *is_broken = rail.isBroken();
      if (auto* bundle = dynamic_cast<rail::Bundle*>(&rail.endpoint())) found = bundle->paths();
    });
    return found;
  }
  void fail(uint16_t path) {
    process->runner(0).withEngine([&](engine::Engine& engine) {
      const Status why(Kind::kDisconnected, Scope::kEndpoint, "test", "the test takes it away");
      static_cast<rail::Bundle&>(engine.rails().front()->endpoint()).failPath(path, why);
    });
  }
};

template <typename Condition>
bool becomes(Condition condition, int64_t limit_ns = 20 * kSecond) {
  const SystemClock clock;
  for (const int64_t end_ns = clock.nowNs() + limit_ns; clock.nowNs() < end_ns; std::this_thread::yield()) {
    if (condition()) return true;
  }
  return false;
}

void meet(Side& low, Side& high) {
  Status there;
  std::thread other([&] { there = high.connect(high.planTo(low)); });
  const Status here = low.connect(low.planTo(high));
  other.join();
  REQUIRE_MESSAGE(here.isOk(), here.message());
  REQUIRE_MESSAGE(there.isOk(), there.message());
  low.process->startThreads();
  high.process->startThreads();
}

/// As a firewall does that forgets them.
void endConnectionsFrom(const std::string& host) {
  for (int fd = 3; fd < 256; ++fd) {
    sockaddr_in local{};
    socklen_t size = sizeof local;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) != 0 || local.sin_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN];
    ::inet_ntop(AF_INET, &local.sin_addr, text, sizeof text);
    sockaddr_in peer{};
    size = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;  // one that listens
    if (host == text) ::shutdown(fd, SHUT_RDWR);
  }
}

bool areHealthy(Side& side, uint32_t losses) {
  for (const rail::PathStatus& path : side.look()) {
    if (path.state != rail::PathState::kHealthy || path.losses != losses) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a handshake of the peer's that breaks off half-way is not told as a stranger's") {
  Side low(0), high(1);
  meet(low, high);
  for (const bool is_peer : {true, false}) {
    CAPTURE(is_peer);
    std::mutex mutex;
    std::vector<std::string> lines;
    setLogSink([&](const LogLine& line) {
      std::lock_guard lock(mutex);
      lines.push_back(line.text);
    });
    CHECK(setLogSpec("net=info").isOk());
    net::Identity caller = high.identity;
    if (!is_peer) ++caller.incarnation;
    {
      const net::Address door = low.paths->addresses()[0];
      Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      REQUIRE(::connect(socket.get(), door.native(), door.nativeSize()) == 0);
      const std::string hello = net::ClientHandshake(net::Secret::none(), caller, 0, net::Nonce{}).hello();
      REQUIRE(::send(socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(hello.size()));
      char challenge = 0;
      REQUIRE(::recv(socket.get(), &challenge, 1, 0) == 1);
    }
    CHECK(becomes([&] {
      std::lock_guard lock(mutex);
      return !lines.empty();
    }));
    setLogSink({});
    CHECK(setLogSpec("warn").isOk());
    std::lock_guard lock(mutex);
    REQUIRE(!lines.empty());
    const char* words = is_peer ? "may have been our own came to nothing" : "turned a stranger away";
    CHECK_MESSAGE(lines.front().find(words) != std::string::npos, lines.front());
  }
}

TEST_CASE("paths that are lost are connected anew, whichever side lost them") {
  Side low(0), high(1);
  meet(low, high);
  CHECK(low.paths->hasSeveral());
  CHECK(low.look().size() == 2);
  CHECK(areHealthy(low, 0));
  for (uint32_t round = 1; round <= 4; ++round) {
    Side& side = round % 2 == 0 ? low : high;
    for (uint16_t path : {uint16_t{0}, uint16_t{1}}) {
      side.fail(path);
      REQUIRE(becomes([&] { return low.look()[path].losses == round && high.look()[path].losses == round; }));
      REQUIRE(becomes([&] { return low.look()[path].state == rail::PathState::kHealthy; }));
      REQUIRE(becomes([&] { return high.look()[path].state == rail::PathState::kHealthy; }));
    }
  }
  CHECK(low.look()[0].generation == 4);
  CHECK(high.look()[1].generation == 4);
}

TEST_CASE("a process that is gone is lost at once: nobody listens at any of its addresses") {
  Side low(0);
  {
    Side high(1);
    meet(low, high);
  }
  bool is_broken = false;
  CHECK(becomes(
      [&] {
        low.look(&is_broken);
        return is_broken;
      },
      5 * kSecond));
}

TEST_CASE("one path is a bare endpoint, and nothing of it is kept") {
  Side low(0, {"127.0.0.2"}), high(1, {"127.0.0.2"});
  meet(low, high);
  CHECK(!low.paths->hasSeveral());
  CHECK(low.look().empty());
}

TEST_CASE("a path that cannot be connected at the start begins as lost; a pair without any is an error") {
  Side low(0), high(1);
  PairPlan wrong = high.planTo(low);
  wrong.paths[1].remote = wrong.paths[1].remote.withPort(9);
  Status there;
  std::thread other([&] { there = high.connect(wrong); });
  CHECK(low.connect(low.planTo(high)).isOk());
  other.join();
  REQUIRE(there.isOk());
  CHECK(low.look()[1].state == rail::PathState::kLost);
  CHECK(high.look()[0].state == rail::PathState::kHealthy);
  CHECK(high.look()[1].last_event.find("refused") != std::string::npos);

  Side lonely(1);
  wrong = lonely.planTo(low);
  for (PathPlan& path : wrong.paths) path.remote = path.remote.withPort(9);
  const Status status = lonely.connect(wrong, kSecond / 2);
  CHECK(status.code() == "connect_timeout");
  CHECK(status.ranks() == std::vector<int32_t>{0});
  CHECK_MESSAGE(status.message().find("127.0.0.3:9 from 127.0.0.3, ") != std::string::npos, status.message());
  CHECK_MESSAGE(status.message().find(" attempts: connect: Connection refused") != std::string::npos, status.message());
}

TEST_CASE("proven connections that fit no path, or come too late for one, change nothing") {
  Side low(0), high(1);
  meet(low, high);
  const SystemClock clock;
  const net::Address address = low.paths->addresses().front();
  const auto call = [&](const net::Identity& identity) {
    auto connection =
        net::connectOnce(address, net::Secret::none(), identity, 0, net::Deadline::after(clock, 5 * kSecond));
    REQUIRE_MESSAGE(connection.isOk(), connection.status().message());
    // It is closed without a word.
    char byte;
    const Status end =
        net::waitFor(connection.value().fd.get(), POLLIN, net::Deadline::after(clock, 5 * kSecond), "end");
    CHECK(end.isOk());
    CHECK(::recv(connection.value().fd.get(), &byte, 1, MSG_DONTWAIT) <= 0);
  };
  net::Identity stranger = high.identity;
  call(stranger);  // of the start, which is over
  stranger.generation = 7;
  stranger.path = 2;
  call(stranger);  // no such path
  stranger.path = 0;
  stranger.called_slot = 1;
  call(stranger);  // no such rank
  stranger.called_slot = 0;
  stranger.incarnation = 5;
  call(stranger);  // an earlier life of that process
  CHECK(areHealthy(low, 0));
  CHECK(areHealthy(high, 0));
}

TEST_CASE("a process that was left behind by a shrink gets no path any more; one that moves on later does") {
  Side low(0), high(1);
  meet(low, high);
  low.paths->leaveBehind(1, {});  // the other is in epoch 0 still
  high.fail(0);
  REQUIRE(becomes([&] { return low.look()[0].losses == 1 && areHealthy(high, 0) == false; }));
  REQUIRE(becomes([&] { return low.look()[0].state == rail::PathState::kHealthy; }));
  REQUIRE(becomes([&] { return high.look()[0].state == rail::PathState::kHealthy; }));

  low.paths->leaveBehind(2, {1});
  high.fail(0);
  const char* why = "in epoch 2, the caller in epoch 0; it was left behind by a shrink";
  REQUIRE(becomes([&] { return high.look()[0].last_event.find(why) != std::string::npos; }));
  CHECK(high.look()[1].state == rail::PathState::kHealthy);  // what is there stays
  endConnectionsFrom("127.0.0.3");
  CHECK(becomes(
      [&] {
        bool is_broken = false;
        high.look(&is_broken);
        return is_broken;
      },
      5 * kSecond));
}

TEST_CASE("a process calls nobody any more whom it left behind") {
  Side low(0), high(1);
  meet(low, high);
  high.paths->leaveBehind(1, {0});
  low.fail(0);
  REQUIRE(becomes([&] { return high.look()[0].losses == 1; }));
  CHECK(!becomes([&] { return high.look()[0].state != rail::PathState::kLost; }, kSecond / 2));
  CHECK(high.look()[1].state == rail::PathState::kHealthy);
}
