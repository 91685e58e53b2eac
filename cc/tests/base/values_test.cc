// SPDX-License-Identifier: Apache-2.0
// Hash, randomness, bytes, queue, libraries and threads of the base room.
#include <doctest/doctest.h>
#include <signal.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/late_library.h"
#include "base/random.h"
#include "base/system_text.h"
#include "base/thread.h"

namespace jhetcc {
namespace {

TEST_CASE("FNV-1a has the published values and chains") {
  static_assert(hashText("") == 0xcbf29ce484222325ULL);
  static_assert(hashText("a") == 0xaf63dc4c8601ec8cULL);
  static_assert(hashText("foobar") == 0x85944171f73967e8ULL);
  CHECK(hashText("bar", hashText("foo")) == hashText("foobar"));
  CHECK(hashNumber(0x0807060504030201ULL, kFnvOffset) == hashText("\1\2\3\4\5\6\7\10"));
}

TEST_CASE("randomness: published values, one seed one stream, bounds kept") {
  uint64_t state = 1234567;
  CHECK(splitmix64(state) == 6457827717110365317ULL);
  CHECK(splitmix64(state) == 3203168211198807973ULL);
  SeededRandom a(1), b(1), c(2);
  std::set<uint64_t> drawn;
  for (int i = 0; i < 100; ++i) {
    const uint64_t value = a.next();
    CHECK(value == b.next());
    CHECK(value != c.next());
    drawn.insert(a.below(7));
    b.below(7);
    const double unit = a.unit();
    b.unit();
    CHECK((unit >= 0 && unit < 1));
  }
  CHECK(drawn == std::set<uint64_t>{0, 1, 2, 3, 4, 5, 6});
  CHECK(a.below(1) == 0);
}

TEST_CASE("bytes are little endian and reading stops at the first field that does not fit") {
  ByteWriter writer;
  writer.u16(0x0102);
  writer.i64(-2);
  writer.text("abc");
  CHECK(writer.bytes().substr(0, 2) == "\x02\x01");
  ByteReader reader(writer.bytes());
  CHECK(reader.u16() == 0x0102);
  CHECK(reader.i64() == -2);
  CHECK(reader.text(3) == "abc");
  CHECK(reader.atEnd());
  CHECK(reader.u8() == 0);
  CHECK(!reader.ok());
  ByteReader limited(std::string_view(writer.bytes()).substr(10));
  CHECK(limited.text(2).empty());
  CHECK(!limited.ok());
  ByteReader lying(
      std::string_view("\xff\xff\xff\xff"
                       "ab",
                       6));
  CHECK(lying.text(SIZE_MAX).empty());
  CHECK(!lying.ok());
}

TEST_CASE("the bounded queue keeps order, says when full, and loses nothing between threads") {
  BoundedQueue<std::string> small(2);
  CHECK(small.push("a"));
  CHECK(small.push("b"));
  CHECK(!small.push("c"));
  std::string value;
  CHECK((small.pop(&value) && value == "a"));
  CHECK((small.pop(&value) && value == "b"));
  CHECK(!small.pop(&value));

  BoundedQueue<uint64_t> queue(16);
  constexpr uint64_t kPerThread = 5000;
  std::atomic<uint64_t> sum{0}, taken{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (uint64_t n = 1; n <= kPerThread;) {
        uint64_t copy = n;
        if (queue.push(std::move(copy)))
          ++n;
        else
          std::this_thread::yield();
      }
    });
    threads.emplace_back([&] {
      uint64_t got = 0;
      while (taken < 2 * kPerThread) {
        if (queue.pop(&got)) {
          sum += got;
          ++taken;
        } else {
          std::this_thread::yield();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(sum == kPerThread * (kPerThread + 1));
}

TEST_CASE("late libraries: found by any of the names, or an error that tells all that was tried") {
  Result<LateLibrary> library = LateLibrary::load({"the C library", "", {"libnosuch.so.7", "libc.so.6"}, "install it"});
  REQUIRE(library.isOk());
  CHECK(library.value().name() == "libc.so.6");
  CHECK(library.value().symbol("getpid").isOk());
  const Status symbol = library.value().symbol("no_such_symbol").status();
  CHECK(symbol.code() == "library_unsuitable");
  CHECK(symbol.message() == "the C library from libc.so.6 has no symbol no_such_symbol; install it");

  Status missing = LateLibrary::load({"libfoo", "", {"libnosuch.so.7", "libnosuch.so"}, "install foo"}).status();
  CHECK(missing.kind() == Kind::kUnavailable);
  for (const char* part :
       {"libfoo cannot be loaded", "libnosuch.so.7 (", "libnosuch.so (", "No such file", "; install foo"}) {
    CHECK_MESSAGE(missing.message().find(part) != std::string::npos, missing.message());
  }
  // A named file is taken or refused: no silent fallback to the usual names.
  missing = LateLibrary::load({"the C library", "/nowhere/libc.so", {"libc.so.6"}, ""}).status();
  CHECK(missing.message().find("/nowhere/libc.so (") != std::string::npos);
}

TEST_CASE("threads of ours are named and take no signals") {
  sigset_t mask;
  sigemptyset(&mask);
  char name[16] = {};
  Result<std::thread> thread = startThread("jhetcc-test", [&] {
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    pthread_getname_np(pthread_self(), name, sizeof(name));
  });
  REQUIRE(thread.isOk());
  thread.value().join();
  CHECK(std::string(name) == "jhetcc-test");
  CHECK(sigismember(&mask, SIGINT) == 1);
  CHECK(sigismember(&mask, SIGTERM) == 1);
  sigset_t own;
  pthread_sigmask(SIG_SETMASK, nullptr, &own);
  CHECK(sigismember(&own, SIGINT) == 0);
  CHECK(systemText(ECONNREFUSED) == "Connection refused");
}

}  // namespace
}  // namespace jhetcc
