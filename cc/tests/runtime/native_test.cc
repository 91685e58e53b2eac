// SPDX-License-Identifier: Apache-2.0
// A cluster's library in use: circles made by tokens, calls on a thread of their own, and what happens when one of them
// never comes back. Members are threads here; the store between them is the real one.
#include "runtime/native.h"

#include <doctest/doctest.h>

#include <ctime>
#include <numeric>

#include "runtime/native_cluster.h"
#include "runtime/process.h"

namespace jhetcc::runtime {
namespace {

using engine::NativeCall;
using schedule::StepKind;
using testing::Cluster;
using testing::contains;
using testing::kClock;
using testing::kNever;
using testing::kSecondNs;
using testing::must;
using testing::Rank;
using testing::together;

TEST_CASE("calls give what they should, in order, on copies of the caller's memory") {
  Cluster cluster(3);
  cluster.open();
  auto ranks = cluster.ranks(cluster.all);
  using Rows = std::vector<std::vector<float>>;
  const std::vector<float> untouched(5, -1.0F), six(5, 6.0F), two(5, 2.0F);
  for (int round = 0; round < 30; ++round) {
    CHECK(together(ranks, StepKind::kNativeReduce, cluster.all, 1) == Rows{untouched, six, untouched});
    CHECK(together(ranks, StepKind::kNativeAllReduce, cluster.all, -1) == Rows{six, six, six});
    CHECK(together(ranks, StepKind::kNativeBroadcast, cluster.all, 1) == Rows{two, two, two});
  }
  // Many under way: each rank hears of them in the order in which it started them.
  std::vector<std::vector<float>> values(3, std::vector<float>(100));
  for (size_t k = 0; k < 3; ++k) {
    ranks[k]->told.clear();
    for (size_t i = 0; i < 100; ++i) {
      values[k][i] = static_cast<float>(i);
      float* own = &values[k][i];
      ranks[k]->worker.start(ranks[k]->call(StepKind::kNativeAllReduce, cluster.all, -1, own, own, sizeof(float)));
    }
  }
  for (size_t k = 0; k < 3; ++k) {
    REQUIRE(ranks[k]->await(100));
    for (size_t i = 0; i < 100; ++i) {
      CHECK(ranks[k]->told[i].first == 90 + i);
      CHECK(values[k][i] == 3.0F * static_cast<float>(i));
    }
  }
  CHECK(cluster.hall->tokens == 1);  // the circle is the cluster, whose communicator there was
}

TEST_CASE("a communicator of some of a cluster makes its circle when it first calls, and keeps it") {
  for (const size_t bytes : {size_t{0}, size_t{128}, size_t{256}, size_t{4108}, size_t{65536}}) {
    CAPTURE(bytes);
    Cluster cluster(3);
    cluster.hall->token_bytes = bytes;
    cluster.open();
    auto ranks = cluster.ranks({2, 0}, 9);
    CHECK(cluster.hall->tokens == 1);
    const std::vector<int32_t> both{0, 1};
    const std::vector<int32_t> same = both;  // another circle of the schedule, of the same ranks
    const std::vector<std::vector<float>> threes(2, std::vector<float>(5, 3.0F));
    CHECK(together(ranks, StepKind::kNativeAllReduce, both, -1) == threes);
    CHECK(together(ranks, StepKind::kNativeAllReduce, same, -1) == threes);
    CHECK(cluster.hall->tokens == 2);
    std::lock_guard<std::mutex> lock(cluster.hall->mutex);
    REQUIRE(cluster.hall->created.size() == 5);
    REQUIRE(cluster.hall->made.size() == 2);
    for (size_t k = 0; k < 5; ++k) {
      CAPTURE(k);
      const ccl::Group& group = cluster.hall->created[k].second;
      const bool is_first = k < 3;  // the cluster itself, when it is opened
      CHECK(group.size == (is_first ? 3 : 2));
      CHECK(group.token.size() == bytes);
      CHECK(group.token == cluster.hall->made[is_first ? 0 : 1]);
      CHECK(group.of_first == (is_first ? std::vector<int32_t>{} : std::vector<int32_t>{2, 0}));
    }
  }
}

TEST_CASE("two communicators of the same ranks do not meet in each other's calls") {
  Cluster cluster(2);
  cluster.open();
  auto first = cluster.ranks(cluster.all, 1), second = cluster.ranks(cluster.all, 2);
  std::vector<float> values{1, 2, 10, 20};
  const auto start = [&](Rank& rank, float& value) {
    rank.worker.start(rank.call(StepKind::kNativeAllReduce, cluster.all, -1, &value, &value, sizeof(float)));
  };
  together(first, StepKind::kNativeAllReduce, cluster.all, -1);
  together(second, StepKind::kNativeAllReduce, cluster.all, -1);
  // Two threads of a program, in one order here and in the other there.
  start(*first[0], values[0]);
  CHECK(cluster.hall->await([&] { return cluster.hall->inside == 1; }));
  start(*second[1], values[3]);
  CHECK(cluster.hall->await([&] { return cluster.hall->inside == 2 || cluster.hall->calls == 6; }));
  start(*second[0], values[2]);
  start(*first[1], values[1]);
  for (auto* ranks : {&first, &second}) {
    for (auto& rank : *ranks) CHECK(rank->last().isOk());
  }
  CHECK(values == std::vector<float>{3, 3, 30, 30});
  CHECK(cluster.hall->crowded == 0);
}

TEST_CASE("a cluster of a hundred is opened, and so are its parts") {
  Cluster cluster(1);
  cluster.hall->waits_for_members = false;
  cluster.all.resize(100);
  std::iota(cluster.all.begin(), cluster.all.end(), 1'000'000);
  OpenOptions options = cluster.options(0);
  options.world_rank = 1'000'000;
  auto in_use = openLibrary(options, kNever);
  CHECK_MESSAGE(in_use.isOk(), in_use.status().message());
  if (!in_use.isOk()) return;
  const std::vector<int32_t> part(cluster.all.begin(), cluster.all.end() - 1);
  Rank rank(in_use.value(), 1, part, 1'000'000);
  std::vector<int32_t> members(part.size());
  std::iota(members.begin(), members.end(), 0);
  cluster.hall->set(
      [&] { cluster.hall->failure = Status(Kind::kAborted, Scope::kCall, "far enough", "it was called"); });
  cluster.hall->set([&] { cluster.hall->failure = Status::ok(), cluster.hall->throws = true; });
  float value = 1;
  rank.worker.start(rank.call(StepKind::kNativeAllReduce, members, -1, &value, &value, sizeof(float)));
  CHECK_MESSAGE(contains(rank.last().message(), "thrown by a library"), rank.last().message());
}

TEST_CASE("calls without bytes are not the library's affair") {
  Cluster cluster(2);
  cluster.open();
  auto ranks = cluster.ranks(cluster.all);
  cluster.hall->set([&] { cluster.hall->is_shut = true; });
  ranks[0]->worker.start(ranks[0]->call(StepKind::kNativeAllReduce, cluster.all, -1, nullptr, nullptr, 0));
  CHECK(ranks[0]->last().isOk());
  CHECK(cluster.hall->calls == 0);
}

TEST_CASE("errors of the library carry its name and version, and the next call is made") {
  Cluster cluster(2);
  cluster.open();
  auto ranks = cluster.ranks(cluster.all);
  float values[2] = {1, 2};
  const auto callBoth = [&] {
    for (size_t k = 0; k < 2; ++k) {
      ranks[k]->worker.start(
          ranks[k]->call(StepKind::kNativeAllReduce, cluster.all, -1, &values[k], &values[k], sizeof(float)));
    }
  };
  cluster.hall->failure = Status(Kind::kDisconnected, Scope::kCommunicator, "library_failed", "error 13");
  callBoth();
  for (auto& rank : ranks) {
    const Status status = rank->last();
    CHECK(status.code() == "library_failed");
    CHECK_MESSAGE(contains(status.message(), "meeting 7.1: error 13"), status.message());
  }
  CHECK(values[0] == 1);  // what failed wrote nothing
  cluster.hall->set([&] { cluster.hall->failure = Status::ok(), cluster.hall->throws = true; });
  callBoth();
  for (auto& rank : ranks) {
    CHECK(rank->last().kind() == Kind::kInternal);
    CHECK_MESSAGE(contains(rank->last().message(), "thrown by a library"), rank->last().message());
  }
}

TEST_CASE("a token that never comes ends the call at the deadline") {
  Cluster cluster(3);
  cluster.circle_timeout_ns = 300 * kNsPerMs;  // its own, whatever init() had left
  cluster.open();
  auto ranks = cluster.ranks({0, 1});
  const std::vector<int32_t> both{0, 1};
  float value = 1;
  const int64_t begun = kClock.nowNs();
  ranks[1]->worker.start(ranks[1]->call(StepKind::kNativeAllReduce, both, -1, &value, &value, sizeof(float)));
  const Status status = ranks[1]->last();
  CHECK(status.kind() == Kind::kTimeout);
  CHECK_MESSAGE(contains(status.message(), "meeting 7.1: "), status.message());
  CHECK_MESSAGE(contains(status.message(), "ranks 0, 1 meet in the library"), status.message());
  CHECK(kClock.nowNs() - begun >= 300 * kNsPerMs);
  CHECK(value == 1);
}

TEST_CASE("dropped while a circle is made: at once, and the thread ends") {
  for (const bool waits_for_token : {true, false}) {
    CAPTURE(waits_for_token);
    Cluster cluster(3);
    cluster.open();
    auto ranks = cluster.ranks({0, 1});
    const std::vector<int32_t> both{0, 1};
    Rank& rank = *ranks[waits_for_token ? 1 : 0];  // the first makes the token and waits inside the library
    float value = 1;
    rank.worker.start(rank.call(StepKind::kNativeAllReduce, both, -1, &value, &value, sizeof(float)));
    if (!waits_for_token) {
      CHECK(cluster.hall->await([&] { return cluster.hall->created.size() == 4; }));
    }
    const int64_t begun = kClock.nowNs();
    rank.worker.drop();
    CHECK(kClock.nowNs() - begun < 5 * kSecondNs);
    CHECK(waitForNativeThreads(10 * kSecondNs));
    CHECK(!rank.worker.poll(rank));
    CHECK(rank.bell->rung() == 0);
    if (!waits_for_token) CHECK(cluster.hall->left == 1);
  }
}

TEST_CASE("a call that comes back late touches nothing, tells nobody, and its communicator is given up") {
  Cluster cluster(2);
  cluster.open();
  auto ranks = cluster.ranks(cluster.all);
  cluster.hall->is_shut = true;
  auto memory = std::make_unique<std::vector<float>>(1000, 1.0F);
  for (auto& rank : ranks) {
    rank->worker.start(rank->call(StepKind::kNativeAllReduce, cluster.all, -1, memory->data(), memory->data(), 4000));
  }
  CHECK(cluster.hall->await([&] { return cluster.hall->inside == 2; }));
  for (const auto& [source, target] : cluster.hall->given) {
    CHECK(source != memory->data());
    CHECK(target != memory->data());
  }
  const int64_t begun = kClock.nowNs();
  for (auto& rank : ranks) rank->worker.drop();
  CHECK(kClock.nowNs() - begun < 5 * kSecondNs);
  CHECK(cluster.hall->left == 2);
  CHECK(*memory == std::vector<float>(1000, 1.0F));
  memory.reset();  // the caller's again: sanitizers see whoever comes back to it

  auto later = cluster.ranks(cluster.all);  // another communicator of the same ranks
  float value = 1;
  later[0]->worker.start(later[0]->call(StepKind::kNativeAllReduce, cluster.all, -1, &value, &value, sizeof(float)));
  const Status status = later[0]->last();
  CHECK(status.code() == "library_given_up");
  CHECK_MESSAGE(contains(status.message(), "meeting 7.1: "), status.message());
  CHECK(!waitForNativeThreads(0));

  cluster.hall->set([&] { cluster.hall->is_shut = false; });
  for (auto& rank : ranks) {
    CHECK(cluster.hall->await([&] { return cluster.hall->inside == 0; }));
    CHECK(!rank->worker.poll(*rank));
    CHECK(rank->bell->rung() == 0);
  }
}

TEST_CASE("memory that is kept is not copied") {
  Cluster cluster(1);
  cluster.open();
  auto ranks = cluster.ranks(cluster.all);
  auto scratch = std::make_shared<std::vector<float>>(4, 1.0F);
  std::weak_ptr<std::vector<float>> seen = scratch;
  cluster.hall->is_shut = true;
  NativeCall call =
      ranks[0]->call(StepKind::kNativeAllReduce, cluster.all, -1, scratch->data(), scratch->data() + 2, 8);
  call.is_source_kept = call.is_target_kept = true;
  call.scratch = scratch;
  ranks[0]->worker.start(call);
  call.scratch = nullptr;
  CHECK(cluster.hall->await([&] { return cluster.hall->inside == 1; }));
  CHECK(cluster.hall->given[0] == std::pair<const void*, const void*>(scratch->data(), scratch->data() + 2));
  ranks[0]->worker.drop();
  scratch.reset();
  CHECK(!seen.expired());  // the library may still write there
  cluster.hall->set([&] { cluster.hall->is_shut = false; });
  CHECK(cluster.hall->await([&] { return cluster.hall->inside == 0; }));
}

TEST_CASE("opening waits only as long as it may, and says what to do") {
  Cluster cluster(2, 200 * kNsPerMs);
  SUBCASE("nobody comes") {
    for (const int32_t rank : {1, 0}) {  // the first one would leave a token behind
      const auto opened = openLibrary(cluster.options(rank), kNever);
      REQUIRE(!opened.isOk());
      CHECK(opened.status().kind() == Kind::kTimeout);
      CHECK_MESSAGE(contains(opened.status().message(), "meeting 7.1: "), opened.status().message());
      if (rank == 1) continue;
      CHECK(opened.status().code() == "library_timeout");
      CHECK_MESSAGE(contains(opened.status().message(), "JHETCC_LIBRARY=none"), opened.status().message());
      CHECK(cluster.hall->left >= 1);
    }
  }
  SUBCASE("interrupted") {
    OpenOptions options = cluster.options(0);
    options.timeout_ns = 60 * kSecondNs;
    const int64_t begun = kClock.nowNs();
    const auto opened = openLibrary(options, [] { return true; });
    CHECK(opened.status().kind() == Kind::kAborted);
    CHECK(opened.status().code() == "interrupted");
    CHECK(kClock.nowNs() - begun < 10 * kSecondNs);
  }
  SUBCASE("another process gives up") {
    OpenOptions options = cluster.options(0);
    options.timeout_ns = 60 * kSecondNs;
    options.ended_key = "failed";
    std::thread other([&] {
      CHECK(cluster.hall->await([&] { return !cluster.hall->created.empty(); }));
      CHECK(cluster.clients[1]->set("failed", "because", net::Deadline::after(kClock, kSecondNs)).isOk());
    });
    const auto opened = openLibrary(options, kNever);
    other.join();
    CHECK(opened.status().code() == "init_failed");
    CHECK(cluster.hall->left == 1);
  }
  SUBCASE("the library refuses") {
    cluster.hall->failure = Status(Kind::kUnavailable, Scope::kProcess, "mpi_world", "no room");
    const auto opened = openLibrary(cluster.options(0), kNever);
    CHECK(opened.status().code() == "mpi_world");
    CHECK_MESSAGE(contains(opened.status().message(), "meeting 7.1: no room"), opened.status().message());
  }
  SUBCASE("the store is gone") {
    cluster.store.reset();
    const auto opened = openLibrary(cluster.options(1), kNever);
    CHECK(opened.status().code() == "store_gone");
  }
}

TEST_CASE("a worker without work uses no processor") {
  Cluster cluster(2);
  cluster.open();
  auto ranks = cluster.ranks(cluster.all);
  together(ranks, StepKind::kNativeAllReduce, cluster.all, -1);
  const auto used = [] {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * kSecondNs + time.tv_nsec;
  };
  // A wait that ends by its deadline is what is measured.
  const int64_t before = used();
  CHECK(!ranks[0]->bell->await(1000, kSecondNs));
  CHECK(used() - before < 300 * kNsPerMs);
  cluster.hall->set([&] { cluster.hall->is_shut = true; });
  std::vector<float> values{1, 2};
  for (size_t k = 0; k < 2; ++k) {
    ranks[k]->worker.start(ranks[k]->call(StepKind::kNativeAllReduce, cluster.all, -1, &values[k], &values[k], 4));
  }
  cluster.hall->set([&] { cluster.hall->is_shut = false; });
  for (auto& rank : ranks) CHECK(rank->last().isOk());  // and it wakes up
}

TEST_CASE("a process ends within its time, with a thread stuck in the library or without") {
  for (const bool is_stuck : {false, true}) {
    CAPTURE(is_stuck);
    Cluster cluster(2);
    cluster.open();
    std::vector<std::unique_ptr<Rank>> ranks;
    if (is_stuck) {
      ranks = cluster.ranks(cluster.all);
      cluster.hall->set([&] { cluster.hall->is_shut = true; });
      float value = 1;
      ranks[0]->worker.start(
          ranks[0]->call(StepKind::kNativeAllReduce, cluster.all, -1, &value, &value, sizeof(float)));
      CHECK(cluster.hall->await([&] { return cluster.hall->inside == 1; }));
      ranks[0]->worker.drop();
    }
    auto process = must(Process::create({}, {0}, {0}));
    process->useLibrary(cluster.in_use[0]);
    process->startThreads();
    REQUIRE(process->createCommunicator("world", 0, {0}, {"host:1"}).isOk());
    CHECK(process->find("world")->natives.size() == 1);
    const int64_t begun = kClock.nowNs();
    process->close(is_stuck ? 300 * kNsPerMs : 60 * kSecondNs);
    process.reset();
    CHECK(kClock.nowNs() - begun < 20 * kSecondNs);
    if (is_stuck) CHECK(kClock.nowNs() - begun >= 300 * kNsPerMs);
    CHECK(waitForNativeThreads(0) == !is_stuck);
  }
}

TEST_CASE("a process that closes destroys what it made, on threads that nobody waits for longer than he may") {
  for (const bool is_stuck : {false, true}) {
    CAPTURE(is_stuck);
    Cluster cluster(2);
    cluster.open();
    std::vector<std::shared_ptr<Process>> processes;
    for (int32_t rank : cluster.all) {
      processes.push_back(must(Process::create({}, {rank}, {0})));
      processes.back()->useLibrary(std::exchange(cluster.in_use[static_cast<size_t>(rank)], nullptr));
      for (const char* name : {"world", "twin"}) {
        REQUIRE(processes.back()->createCommunicator(name, 0, cluster.all, {"host:1", "host:2"}).isOk());
      }
    }
    cluster.hall->set([&] { cluster.hall->keeps_destroying = is_stuck; });
    const int64_t begun = kClock.nowNs();
    for (auto& process : processes) process->close(is_stuck ? 200 * kNsPerMs : 60 * kSecondNs);
    CHECK(cluster.hall->destroyed == (is_stuck ? 0 : 2));  // though the processes are still there
    CHECK((cluster.hall->left > 0) == is_stuck);           // so that the program can end
    processes.clear();
    CHECK(kClock.nowNs() - begun < 20 * kSecondNs);
  }
}

TEST_CASE("a communicator that ends destroys its circles") {
  Cluster cluster(2);
  cluster.open();
  cluster.ranks({0, 1}, 4);  // the first one has the library's own
  auto ranks = cluster.ranks({0, 1}, 5);
  together(ranks, StepKind::kNativeAllReduce, cluster.all, -1);
  for (auto& rank : ranks) rank->worker.end();
  CHECK(waitForNativeThreads(20 * kSecondNs));
  CHECK(cluster.hall->created.size() == 4);
  CHECK(cluster.hall->destroyed == 2);
}

TEST_CASE("what can only be destroyed together is left behind when a member may be gone") {
  for (const bool is_whole : {true, false}) {
    CAPTURE(is_whole);
    Cluster cluster(2);
    for (auto& library : cluster.libraries) library->needsMembersToEnd();
    cluster.open();
    cluster.ranks({0, 1}, 4);
    auto ranks = cluster.ranks({0, 1}, 5);
    together(ranks, StepKind::kNativeAllReduce, cluster.all, -1);
    for (auto& rank : ranks) rank->worker.end(is_whole);
    CHECK(waitForNativeThreads(20 * kSecondNs));
    CHECK(cluster.hall->destroyed == (is_whole ? 2 : 0));
    CHECK(cluster.hall->left == (is_whole ? 0 : 2));
    for (auto& in_use : cluster.in_use) closeLibrary(in_use, 20 * kSecondNs);  // each process when it likes
    CHECK(cluster.hall->left == (is_whole ? 2 : 4));
  }
}

}  // namespace
}  // namespace jhetcc::runtime
