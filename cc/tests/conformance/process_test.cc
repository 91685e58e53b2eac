// SPDX-License-Identifier: Apache-2.0
// Ends in two processes, and what the survivor sees when the other one is killed.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "conformance/pairs.h"

namespace jhetcc::transport::conformance {

namespace {

using Make = std::function<std::unique_ptr<Endpoint>(Fd, bool)>;

std::unique_ptr<Endpoint> makeShm(Fd socket, bool creator, bool allow_cma) {
  shm::Options options;
  options.allow_cma = allow_cma;
  auto made = shm::create(std::move(socket), creator, options, "parent and child",
                          systemClock().nowNs() + 10'000 * kNsPerMs, systemClock());
  if (!made.isOk()) return nullptr;
  return std::move(made).value();
}

/// The child offers memory that only it has, and answers every frame, until it is killed or told goodbye.
[[noreturn]] void runChild(Fd socket, const Make& make) {
  std::unique_ptr<Endpoint> endpoint = make(std::move(socket), false);
  if (!endpoint) _exit(3);
  const std::vector<uint8_t> source = pattern(3'000'001, 12);
  Recorder events;
  bool told = false;
  events.on_frame = [&](const ReceivedFrame& frame) {
    told = frame.header.type == FrameType::kGoodbye;
    if (!told && !endpoint->send(frame.header, frame.payload.data()).value()) _exit(4);
  };
  if (!endpoint->send(offerHeader(source.data(), source.size(), 1), nullptr).value()) _exit(5);
  if (!endpoint->send(offerHeader(source.data(), 4096, 2), nullptr).value()) _exit(5);
  const int64_t deadline_ns = systemClock().nowNs() + 30'000 * kNsPerMs;
  while (!told && systemClock().nowNs() < deadline_ns) {
    if (!endpoint->poll(events).isOk()) _exit(6);
  }
  _exit(told ? 0 : 7);
}

class Child {
 public:
  explicit Child(std::pair<Fd, Fd> sockets, const Make& make) {
    pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      sockets.first.reset();
      runChild(std::move(sockets.second), make);
    }
    sockets.second.reset();
    endpoint = make(std::move(sockets.first), true);
  }
  ~Child() {
    if (!is_reaped) kill(pid, SIGKILL);
    if (!is_reaped) waitpid(pid, nullptr, 0);
  }
  bool until(const std::function<bool()>& done) {
    const int64_t deadline_ns = systemClock().nowNs() + 20'000 * kNsPerMs;
    while (!done() && systemClock().nowNs() < deadline_ns) {
      if (status.isOk()) status = endpoint->poll(events);
    }
    return done();
  }
  pid_t pid = -1;
  bool is_reaped = false;
  std::unique_ptr<Endpoint> endpoint;
  Recorder events;
  Status status;
};

std::pair<Fd, Fd> unixSockets() {
  int sockets[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
  return {Fd(sockets[0]), Fd(sockets[1])};
}

struct Way {
  const char* name;
  Make make;
  std::pair<Fd, Fd> (*sockets)();
};

std::vector<Way> ways() {
  return {
      {"shm, reads", [](Fd socket, bool creator) { return makeShm(std::move(socket), creator, true); }, unixSockets},
      {"shm, ring", [](Fd socket, bool creator) { return makeShm(std::move(socket), creator, false); }, unixSockets},
      {"tcp", [](Fd socket, bool) { return makeTcp(std::move(socket), "parent and child"); }, connectLoopback}};
}

}  // namespace

TEST_CASE("two processes exchange frames and payloads, and part with a goodbye") {
  for (const Way& way : ways()) {
    CAPTURE(way.name);
    Child child(way.sockets(), way.make);
    REQUIRE(child.endpoint);
    REQUIRE(child.until([&] { return child.events.frames.size() == 2; }));
    std::vector<uint8_t> destination(child.events.frames[0].header.length);
    if (!child.endpoint->fetch(child.events.frames[0].header, destination.data(), 5).value()) {
      REQUIRE(child.until([&] { return !child.events.fetched.empty(); }));
      REQUIRE(child.events.fetched[0].second.isOk());
    }
    CHECK(destination == pattern(3'000'001, 12));
    const std::vector<uint8_t> payload = pattern(10'000, 8);
    REQUIRE(child.endpoint->send(dataHeader(4, payload.size()), payload.data()).value());
    REQUIRE(child.until([&] { return child.events.frames.size() == 3; }));
    CHECK(child.events.frames[2].payload == payload);
    FrameHeader goodbye;
    goodbye.type = FrameType::kGoodbye;
    REQUIRE(child.endpoint->send(goodbye, nullptr).value());
    REQUIRE(child.until([&] { return !child.status.isOk(); }));  // the child says none itself
    int exit_code = -1;
    waitpid(child.pid, &exit_code, 0);
    child.is_reaped = true;
    CHECK(exit_code == 0);
  }
}

TEST_CASE("a killed peer breaks the endpoint with the system's text") {
  for (const Way& way : ways()) {
    CAPTURE(way.name);
    Child child(way.sockets(), way.make);
    REQUIRE(child.endpoint);
    REQUIRE(child.until([&] { return child.events.frames.size() == 2; }));
    REQUIRE(kill(child.pid, SIGKILL) == 0);
    REQUIRE(child.until([&] { return !child.status.isOk(); }));
    CHECK(child.status.kind() == Kind::kDisconnected);
    CHECK(child.status.scope() == Scope::kEndpoint);
    const bool has_text = child.status.message().find("closed") != std::string::npos ||
                          child.status.message().find("reset") != std::string::npos;
    CHECK_MESSAGE(has_text, child.status.message());
  }
}

TEST_CASE("a fetch from a killed peer fails at once where its memory is read") {
  Child child(unixSockets(), ways()[0].make);
  REQUIRE(child.endpoint);
  CHECK(child.endpoint->description().find(std::to_string(child.pid)) != std::string::npos);
  if (child.endpoint->description().find("may read its memory") == std::string::npos) {
    MESSAGE("not checked: this machine forbids it: " << child.endpoint->description());
    return;
  }
  REQUIRE(child.until([&] { return child.events.frames.size() == 2; }));
  REQUIRE(kill(child.pid, SIGKILL) == 0);
  siginfo_t about{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(child.pid), &about, WEXITED | WNOWAIT) == 0);
  std::vector<uint8_t> destination(4096);
  const Result<bool> done = child.endpoint->fetch(child.events.frames[1].header, destination.data(), 5);
  REQUIRE(!done.isOk());
  CHECK(done.status().kind() == Kind::kDisconnected);
  CHECK(done.status().message().find("process_vm_readv: No such process") != std::string::npos);
  CHECK(child.until([&] { return !child.status.isOk(); }));
}

TEST_CASE("first contact has a deadline, and names what is wrong") {
  auto [mine, silent] = unixSockets();
  const int64_t begin_ns = systemClock().nowNs();
  auto made = shm::create(std::move(mine), true, {}, "a -> b", begin_ns + 50 * kNsPerMs, systemClock());
  REQUIRE(!made.isOk());
  CHECK(made.status().kind() == Kind::kTimeout);
  CHECK(systemClock().nowNs() - begin_ns < 5'000 * kNsPerMs);

  auto [other, closed] = unixSockets();
  closed.reset();
  made = shm::create(std::move(other), false, {}, "a -> b", systemClock().nowNs() + 1'000 * kNsPerMs, systemClock());
  REQUIRE(!made.isOk());
  CHECK(made.status().kind() == Kind::kDisconnected);

  auto [ours, stranger] = unixSockets();
  const std::vector<uint8_t> garbage(40, 0x41);
  REQUIRE(write(stranger.get(), garbage.data(), garbage.size()) == 40);
  made = shm::create(std::move(ours), false, {}, "a -> b", systemClock().nowNs() + 1'000 * kNsPerMs, systemClock());
  REQUIRE(!made.isOk());
  CHECK(made.status().kind() == Kind::kMismatch);

  shm::Options odd;
  odd.ring_bytes = 100'000;
  auto [one, two] = unixSockets();
  made = shm::create(std::move(one), true, odd, "a -> b", systemClock().nowNs() + 1'000 * kNsPerMs, systemClock());
  REQUIRE(!made.isOk());
  CHECK(made.status().kind() == Kind::kBadArgument);
}

}  // namespace jhetcc::transport::conformance
