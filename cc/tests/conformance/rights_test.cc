// SPDX-License-Identifier: Apache-2.0
// The right to read the peer's memory is lost after the two met: a filter of system calls for one thread, as container
// runtimes install it, so each case runs in a thread of its own.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <mutex>

#include "base/log.h"
#include "conformance/pairs.h"

namespace jhetcc::transport::conformance {

namespace {

constexpr uint64_t kMiB = 1 << 20;

/// From here on this thread's reads of other memory fail with `error`. False: nobody may install filters here.
bool forbidReads(int error) {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{4, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    return false;
  return process_vm_readv(getpid(), nullptr, 0, nullptr, 0, 0) == -1 && errno == error;
}

/// Two ends that read each other's memory, in a thread that can lose the right to.
void withReads(const std::function<void(Pair&)>& run) {
  const auto body = [&] {
    ShmReadPair pair;
    if (pair.b->description().find("may read its memory") == std::string::npos) {
      MESSAGE("not checked: this machine forbids it: " << pair.b->description());
      return;
    }
    run(pair);
  };
  std::async(std::launch::async, body).get();  // brings failed requirements here
}

#define JHETCC_FORBID_OR_RETURN(error)                       \
  if (!forbidReads(error)) {                                 \
    MESSAGE("not checked: no filters of system calls here"); \
    return;                                                  \
  }

/// Offers at a, waits until b has heard of it.
FrameHeader offered(Pair& pair, const std::vector<uint8_t>& source, uint64_t cookie) {
  const size_t before = pair.from_a.frames.size();
  pair.sendSurely(*pair.a, offerHeader(source.data(), source.size(), cookie), nullptr);
  REQUIRE(pair.until([&] { return pair.from_a.frames.size() > before; }));
  return pair.from_a.frames.back().header;
}

bool fetchAtB(Pair& pair, const FrameHeader& offer, Guarded& destination, uint64_t token) {
  const Result<bool> done = pair.b->fetch(offer, destination.data(), token);
  REQUIRE_MESSAGE(done.isOk(), done.status().message());
  return done.value();
}

void checkPasses(Pair& pair, uint64_t size, uint64_t cookie) {
  const std::vector<uint8_t> source = pattern(size, cookie);
  Guarded destination(size);
  const size_t before = pair.from_a.fetched.size();
  CHECK(!fetchAtB(pair, offered(pair, source, cookie), destination, cookie));
  REQUIRE(pair.until([&] { return pair.from_a.fetched.size() > before; }));
  CHECK(pair.from_a.fetched.back().second.isOk());
  CHECK(destination.holds(source));
  REQUIRE(pair.until([&] { return !pair.from_b.released.empty() && pair.from_b.released.back() == cookie; }));
}

/// What was logged at `warn` meanwhile.
class Lines {
 public:
  Lines() {
    setLogSink([this](const LogLine& line) {
      const std::lock_guard<std::mutex> held(mutex_);
      texts_.push_back(line.text);
    });
  }
  ~Lines() { setLogSink(nullptr); }
  std::vector<std::string> texts() {
    const std::lock_guard<std::mutex> held(mutex_);
    return texts_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

}  // namespace

TEST_CASE("shm: offers go on through the ring when the right to read is lost, and it is said once") {
  for (const int error : {EPERM, EACCES, ENOSYS}) {
    withReads([&](Pair& pair) {
      const std::vector<uint8_t> source = pattern(70'000, 1);
      Guarded destination(source.size());
      CHECK(fetchAtB(pair, offered(pair, source, 1), destination, 1));
      CHECK(destination.holds(source));
      Lines lines;
      JHETCC_FORBID_OR_RETURN(error);
      uint64_t cookie = 10;
      for (const uint64_t size : {uint64_t{1}, uint64_t{20'000}, kMiB + 1, 3 * kMiB + 5})
        checkPasses(pair, size, ++cookie);
      CHECK(pair.a_status.isOk());
      CHECK(pair.b_status.isOk());
      CHECK(pair.a->description().find("may read its memory") != std::string::npos);  // it has not tried
      CHECK(pair.b->description().find(std::string("payloads through the ring: process_vm_readv: ") +
                                       strerror(error)) != std::string::npos);
      REQUIRE(lines.texts().size() == 1);
      CHECK(lines.texts()[0].find(pair.b->description()) == 0);
    });
  }
}

TEST_CASE("shm: fetches under way when the right to read is lost start again, bits intact") {
  withReads([](Pair& pair) {
    constexpr uint64_t kOffers = 5;
    std::vector<std::vector<uint8_t>> sources;
    std::vector<Guarded> destinations;
    for (uint64_t i = 0; i < kOffers; ++i) {
      sources.push_back(pattern((2 + i) * kMiB + 7, i));
      destinations.emplace_back(sources[i].size());
      CHECK(!fetchAtB(pair, offered(pair, sources[i], i), destinations[i], 100 + i));  // one slice of each is there
    }
    pair.b->cancel(103);
    pair.a->revoke(1);
    JHETCC_FORBID_OR_RETURN(EPERM);
    const std::vector<uint8_t> cancelled = destinations[3].snapshot();
    REQUIRE(pair.until([&] { return pair.from_a.fetched.size() == kOffers - 1; }));
    for (const auto& [token, status] : pair.from_a.fetched) {
      CAPTURE(token);
      CHECK(status.code() == (token == 101 ? "offer_revoked" : "ok"));
      if (token != 101) CHECK(destinations[token - 100].holds(sources[token - 100]));
    }
    CHECK(destinations[3].snapshot() == cancelled);
    REQUIRE(pair.until([&] { return pair.from_b.released.size() == kOffers - 1; }));
    std::sort(pair.from_b.released.begin(), pair.from_b.released.end());
    CHECK(pair.from_b.released == std::vector<uint64_t>{0, 2, 3, 4});
    checkPasses(pair, 50'000, 50);
    CHECK(pair.a_status.isOk());
    CHECK(pair.b_status.isOk());
  });
}

TEST_CASE("shm: after the right to read was lost, cancel and revoke keep their promises at every stage") {
  withReads([](Pair& pair) {
    const std::vector<uint8_t> content = pattern(3 * kMiB + 13, 5);
    uint64_t cookie = 200;
    bool is_forbidden = false;
    for (const bool revokes : {false, true}) {
      for (const int polls : {0, 1, 2, 3, 5, 9, 17}) {
        CAPTURE(revokes);
        CAPTURE(polls);
        std::vector<uint8_t> source = content;
        Guarded destination(source.size());
        CHECK(!fetchAtB(pair, offered(pair, source, ++cookie), destination, 7));
        if (!is_forbidden) {
          JHETCC_FORBID_OR_RETURN(EPERM);
          is_forbidden = true;
        }
        const size_t fetched = pair.from_a.fetched.size();
        for (int i = 0; i < polls; ++i) pair.pollOnce();
        const bool done = pair.from_a.fetched.size() > fetched;
        if (revokes) {
          pair.a->revoke(cookie);
          std::fill(source.begin(), source.end(), uint8_t{0});
          REQUIRE(pair.until([&] { return pair.from_a.fetched.size() > fetched; }));
          const Status& status = pair.from_a.fetched.back().second;
          CHECK(status.code() == (status.isOk() ? "ok" : "offer_revoked"));
          if (status.isOk()) CHECK(destination.holds(content));
        } else {
          pair.b->cancel(7);
          const std::vector<uint8_t> then = destination.snapshot();
          checkPasses(pair, 70'001, 1000 + cookie);
          CHECK(destination.snapshot() == then);
          CHECK(pair.from_a.fetched.size() == fetched + (done ? 2 : 1));
        }
        CHECK(destination.guardsIntact());
      }
    }
    checkPasses(pair, 70'001, 5000);
  });
}

TEST_CASE("shm: an end that lost the right to read sleeps until the owner's pieces come") {
  withReads([](Pair& pair) {
    const std::vector<uint8_t> source = pattern(2 * kMiB, 3);
    Guarded destination(source.size());
    CHECK(!fetchAtB(pair, offered(pair, source, 1), destination, 1));
    CHECK(!pair.b->prepareSleep(true));  // there is something to read
    JHETCC_FORBID_OR_RETURN(EPERM);
    int sleeps = 0;
    while (pair.from_a.fetched.empty()) {
      REQUIRE(pair.b->poll(pair.from_a).isOk());
      const bool sleeps_now = pair.from_a.fetched.empty() && pair.b->prepareSleep(true);
      if (!sleeps_now) {
        REQUIRE(pair.a->poll(pair.from_b).isOk());
        continue;
      }
      pollfd descriptor{pair.b->waitDescriptor(), POLLIN, 0};
      for (int polls = 0; polls < 1000 && poll(&descriptor, 1, 0) == 0; ++polls)
        REQUIRE(pair.a->poll(pair.from_b).isOk());
      REQUIRE(descriptor.revents == POLLIN);
      ++sleeps;
    }
    CHECK(sleeps > 0);
    CHECK(pair.from_a.fetched[0].second.isOk());
    CHECK(destination.holds(source));
  });
}

TEST_CASE("shm: memory that is not there stays an error") {
  withReads([](Pair& pair) {
    Pages source(70'000);
    std::vector<uint8_t> destination(70'000);
    pair.sendSurely(*pair.a, offerHeader(source.data(), destination.size(), 1), nullptr);
    REQUIRE(pair.until([&] { return pair.from_a.frames.size() == 1; }));
    source.forbid();
    const Result<bool> done = pair.b->fetch(pair.from_a.frames[0].header, destination.data(), 1);
    REQUIRE(!done.isOk());
    CHECK(done.status().message().find("process_vm_readv: Bad address") != std::string::npos);
    CHECK(pair.b->description().find("may read its memory") != std::string::npos);
  });
}

}  // namespace jhetcc::transport::conformance
