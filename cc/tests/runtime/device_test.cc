// SPDX-License-Identifier: Apache-2.0
// Whole processes on virtual accelerators: calls between other work of a stream, over real transports, with the tests'
// NCCL inside. Processes are threads here.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>

#include "ccl/nccl/nccl.h"
#include "engine/device_rank.h"
#include "engine/schedules.h"
#include "fake_kernels.h"
#include "fake_nccl/control.h"
#include "runtime/native_cluster.h"
#include "runtime/process.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"
#include "transport/verbs/verbs.h"

namespace jhetcc::runtime {
namespace {

using engine::testing::DeviceCall;
using engine::testing::DeviceRank;
using engine::testing::inputOf;
using engine::testing::outputOf;
using engine::testing::Planned;
using testing::identity;
using testing::kClock;
using testing::kNever;
using testing::kSecondNs;
using testing::must;
using testing::secret;

using Ends = std::pair<std::unique_ptr<transport::Endpoint>, std::unique_ptr<transport::Endpoint>>;

std::pair<Fd, Fd> sockets() {
  int fds[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

/// In the lab, where this names RDMA devices' addresses, they are what is tested.
const char* labAddresses() { return std::getenv("LAB_ADDRESSES"); }

std::vector<std::string> transports() {
  if (labAddresses() != nullptr) return {"verbs"};
  return {"within one process", "shm that reads", "shm that stages", "tcp"};
}

/// Every payload is gathered by the adapter from where it lies.
Ends connectVerbs() {
  const net::Address address =
      must(net::Address::fromHost(std::string(labAddresses()).substr(0, std::strcspn(labAddresses(), " ")), 0));
  Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(bind(listener.get(), address.native(), address.nativeSize()) == 0);
  REQUIRE(listen(listener.get(), 1) == 0);
  const net::Address there = must(net::localAddress(listener.get()));
  Fd left(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(left.get(), there.native(), there.nativeSize()) == 0);
  Fd right(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const transport::verbs::Options options{.registered_from_bytes = 0};
  return {must(transport::verbs::create(std::move(left), options, "a", kClock)),
          must(transport::verbs::create(std::move(right), options, "b", kClock))};
}

Ends connect(const std::string& kind) {
  if (kind == "verbs") return connectVerbs();
  if (kind == "within one process") return must(transport::shm::createLocalPair({}, "a", "b", kClock));
  auto [left, right] = sockets();
  if (kind == "tcp") {
    return {must(transport::tcp::create(std::move(left), {}, "a")),
            must(transport::tcp::create(std::move(right), {}, "b"))};
  }
  const transport::shm::Options options{.allow_cma = kind == "shm that reads"};
  Ends ends;
  const int64_t deadline = kClock.nowNs() + 20 * kSecondNs;
  std::thread other([&, fd = std::move(right)]() mutable {
    ends.second = must(transport::shm::create(std::move(fd), false, options, "b", deadline, kClock));
  });
  ends.first = must(transport::shm::create(std::move(left), true, options, "a", deadline, kClock));
  other.join();
  return ends;
}

/// So many processes with a device each.
struct Job {
  Job(int size, const std::string& transport, device::fake::Options device = {}, int64_t timeout_ns = 60 * kSecondNs) {
    RunnerOptions options;
    options.engine.operation_timeout_ns = timeout_ns;
    for (int32_t rank = 0; rank < size; ++rank) {
      world.push_back(rank);
      places.push_back("host:" + std::to_string(rank));
      processes.push_back(must(Process::create(options, {rank}, {0})));
      auto made = std::make_unique<DeviceRank>();
      made->device = must(device::fake::create(device));
      for (int k = 0; k < device.queues + 1; ++k) made->streams.push_back(must(made->device->createStream()));
      made->must_wait = !device.stream_values;
      const Status used = processes.back()->useDevice(0, made->device, engine::testing::reduceOnFake);
      REQUIRE_MESSAGE(used.isOk(), used.message());
      devices.push_back(std::move(made));
    }
    for (int32_t a = 0; a < size; ++a) {
      for (int32_t b = a + 1; b < size; ++b) {
        Ends ends = connect(transport);
        at(a).addEndpoint(0, b, std::move(ends.first));
        at(b).addEndpoint(0, a, std::move(ends.second));
      }
    }
    for (auto& process : processes) process->startThreads();
  }
  ~Job() {
    each([this](int32_t rank) {
      if (processes[static_cast<size_t>(rank)]) at(rank).close(kSecondNs);
    });
    processes.clear();
    libraries.clear();
    CHECK(waitForNativeThreads(20 * kSecondNs));
  }
  Process& at(int32_t rank) { return *processes[static_cast<size_t>(rank)]; }
  DeviceRank& device(int32_t rank) { return *devices[static_cast<size_t>(rank)]; }

  void each(const std::function<void(int32_t)>& act) const {
    std::vector<std::thread> threads;
    for (int32_t rank : world) threads.emplace_back(act, rank);
    for (std::thread& thread : threads) thread.join();
  }

  /// All ranks are one cluster of the tests' NCCL.
  void openLibrary() {
    store = must(
        control::StoreServer::create({must(net::Address::fromHost("127.0.0.1", 0)), secret(), identity(0), &kClock}));
    void* handle = dlopen(FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(handle != nullptr);
    void* bind = dlsym(handle, tests::fake_nccl::kBind);
    REQUIRE(bind != nullptr);
    reinterpret_cast<tests::fake_nccl::BindFunction*>(bind)(&device::fake::api());
    libraries.resize(world.size());
    each([this](int32_t rank) {
      ccl::nccl::NcclOptions options;
      options.path = FAKE_NCCL;
      const auto deadline = net::Deadline::after(kClock, 10 * kSecondNs);
      std::shared_ptr<control::StoreClient> client =
          must(control::StoreClient::connect(store->address(), secret(), identity(rank), deadline));
      libraries[static_cast<size_t>(rank)] = must(runtime::openLibrary(
          {must(ccl::nccl::loadNccl(options)), world, rank, client, 20 * kSecondNs, "job", ""}, kNever));
      at(rank).useLibrary(libraries[static_cast<size_t>(rank)]);
    });
  }

  /// One call of all members on a communicator of its own; `act` by each, with what was made ready.
  void call(const Planned& planned, const std::function<void(int32_t, const Prepared&)>& act) {
    const std::string name = "c" + std::to_string(next_++);
    for (int32_t rank : world) {
      REQUIRE(at(rank).createCommunicator(name, 0, world, places).isOk());
      const Planned::Member& mine = planned.members[static_cast<size_t>(rank)];
      if (!planned.takesPart(rank)) continue;
      REQUIRE(at(rank).answerPlan(name, 0, mine.text, {{rank, mine.binary}}, Status::ok()).isOk());
    }
    each([&](int32_t rank) {
      if (!planned.takesPart(rank)) return;
      act(rank, must(at(rank).prepareBlocking(name, planned.members[static_cast<size_t>(rank)].text)));
    });
    for (int32_t rank : world) {
      if (processes[static_cast<size_t>(rank)]) at(rank).destroyCommunicator(name);
    }
  }

  std::vector<int32_t> world;
  std::vector<std::string> places;
  std::unique_ptr<control::StoreServer> store;
  std::vector<std::unique_ptr<DeviceRank>> devices;
  std::vector<std::shared_ptr<const LibraryInUse>> libraries;
  std::vector<std::shared_ptr<Process>> processes;

 private:
  int next_ = 0;
};

/// Two calls in a row without a wait between them, then all of it is looked at. Threads cannot REQUIRE.
void runTwice(Job& job, const Planned& planned, int32_t rank, const Prepared& prepared) {
  DeviceRank& device = job.device(rank);
  std::vector<std::unique_ptr<DeviceCall>> calls;
  std::vector<std::unique_ptr<Process::StreamCall>> started;
  for (uint64_t salt : {1, 2}) {
    const device::Stream stream = device.streams[static_cast<size_t>(rank) % device.streams.size()];
    calls.push_back(std::make_unique<DeviceCall>(device, stream, inputOf(planned, rank, salt),
                                                 outputOf(planned, rank, salt).size(), false, 0xa0));
    calls.back()->queueBefore();
    const DeviceBuffers buffers{calls.back()->buffers(), stream};
    started.push_back(must(job.at(rank).start(prepared, &buffers, 1, kNever)));
    calls.back()->queueAfter();
  }
  for (uint64_t salt : {1, 2}) {
    const Status status = started[salt - 1]->wait(kNever);
    CHECK_MESSAGE(status.isOk(), status.message());
    CHECK(calls[salt - 1]->isUntouched());
    CHECK(calls[salt - 1]->output() == outputOf(planned, rank, salt));
  }
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr size_t kEvery = 5;  // twenty times slower
#else
constexpr size_t kEvery = 1;
#endif

std::vector<const Planned*> plannedWith(int size, bool native) {
  std::vector<const Planned*> found = engine::testing::plannedFor(size, false);
  std::erase_if(found, [&](const Planned* planned) {
    return native != std::any_of(planned->members.begin(), planned->members.end(), [](const Planned::Member& member) {
             return member.program && !member.program->schedule->circles.empty();
           });
  });
  size_t place = 0;
  const size_t every = labAddresses() != nullptr ? 4 : kEvery;  // emulated machines are slower still
  std::erase_if(found, [&](const Planned*) { return place++ % every != 0; });
  return found;
}

}  // namespace

TEST_CASE("every schedule between work of a stream, over every transport; no byte bounces where that sees devices") {
  for (const std::string& transport : transports()) {
    for (const bool registrable : {true, false}) {
      CAPTURE(transport);
      CAPTURE(registrable);
      Job job(4, transport, {.registrable = registrable});
      std::vector<uint64_t> own(4);
      for (const Planned* planned : plannedWith(4, false)) {
        CAPTURE(planned->label);
        CAPTURE(planned->algorithm);
        job.call(*planned, [&](int32_t rank, const Prepared& prepared) {
          runTwice(job, *planned, rank, prepared);
          const size_t bytes = planned->members[static_cast<size_t>(rank)].program->schedule->input_bytes +
                               planned->members[static_cast<size_t>(rank)].program->schedule->output_bytes;
          own[static_cast<size_t>(rank)] += 2 * DeviceCall::bytesOf(bytes);
        });
      }
      for (int32_t rank : job.world) {
        const device::fake::Counters seen = job.device(rank).device->counters();
        // The caller's own copies: up, down, up as poison, and down to look at it.
        const uint64_t down = seen.bytes_to_host - 2 * own[static_cast<size_t>(rank)];
        const uint64_t up = seen.bytes_from_host - 2 * own[static_cast<size_t>(rank)];
        CHECK((down + up > 0) == (transport == "tcp" || !registrable));
        CHECK(seen.callbacks == 0);
      }
    }
  }
}

TEST_CASE("devices whose streams cannot wait for the host") {
  Job job(4, "shm that reads", {.queues = 1, .stream_values = false});
  for (const Planned* planned : plannedWith(4, false)) {
    CAPTURE(planned->label);
    job.call(*planned, [&](int32_t rank, const Prepared& prepared) { runTwice(job, *planned, rank, prepared); });
  }
  for (int32_t rank : job.world) {
    const device::fake::Counters seen = job.device(rank).device->counters();
    CHECK(seen.callbacks > 0);
    CHECK(seen.callbacks_refused == 0);
    CHECK(seen.callbacks_waited == 0);
  }
}

TEST_CASE("stages through the cluster's library, in the order of the streams") {
  for (const std::string transport : {"shm that reads", "tcp"}) {
    CAPTURE(transport);
    Job job(4, transport);
    job.openLibrary();
    const auto choice = plannedWith(4, true);
    REQUIRE(choice.size() > 4);
    for (const Planned* planned : choice) {
      CAPTURE(planned->label);
      CAPTURE(planned->algorithm);
      job.call(*planned, [&](int32_t rank, const Prepared& prepared) { runTwice(job, *planned, rank, prepared); });
    }
  }
}

TEST_CASE("a rank that does not come: the others' calls end, inside the library too, and their streams go on") {
  for (const bool native : {false, true}) {
    CAPTURE(native);
    Job job(4, "shm that reads", {}, 2 * kSecondNs);
    if (native) job.openLibrary();
    const Planned& planned = *plannedWith(4, native).front();
    CAPTURE(planned.label);
    job.call(planned, [&](int32_t rank, const Prepared& prepared) {
      if (rank == 3) return;
      DeviceRank& device = job.device(rank);
      DeviceCall call(device, device.streams[0], inputOf(planned, rank, 1), outputOf(planned, rank, 1).size(), false,
                      0xa0);
      call.queueBefore();
      const DeviceBuffers buffers{call.buffers(), device.streams[0]};
      auto started = must(job.at(rank).start(prepared, &buffers, 1, kNever));
      call.queueAfter();
      const Status status = started->wait(kNever);
      CHECK_MESSAGE(status.kind() == Kind::kTimeout, status.message());
      CHECK(call.isUntouched());
    });
  }
}

TEST_CASE("a call that failed inside the library has left the stream when the engine hears of it") {
  struct Outcome final : engine::NativeSink {
    void onNativeDone(uint64_t, const Status& status) override { outcomes.push_back(status); }
    std::vector<Status> outcomes;
  };
  const tests::fake_nccl::Control control(FAKE_NCCL);
  Job job(2, "shm that reads");
  job.openLibrary();
  const std::vector<int32_t> members = {0, 1};
  constexpr size_t kBytes = 4096;
  std::vector<void*> memory;
  std::vector<std::unique_ptr<NativeWorker>> workers;
  Outcome ends[2];
  const auto start = [&](size_t rank) {
    engine::NativeCall call{};
    call.kind = schedule::StepKind::kNativeAllReduce;
    call.type = schedule::DataType::kInt32;
    call.op = schedule::ReduceOp::kSum;
    call.members = &members;
    call.bytes = kBytes;
    call.source = call.target = memory[rank];
    workers[rank]->start(std::move(call));
  };
  const auto until = [&](const std::function<bool()>& done) {
    const int64_t deadline_ns = kClock.nowNs() + 20 * kSecondNs;
    while (!done() && kClock.nowNs() < deadline_ns) {
      for (size_t rank : {0, 1}) workers[rank]->poll(ends[rank]);
      std::this_thread::yield();
    }
    return done();
  };
  for (int32_t rank : job.world) {
    const std::shared_ptr<device::fake::FakeDevice>& device = job.device(rank).device;
    memory.push_back(must(device->allocate(kBytes, device::MemoryKind::kDevice)));
    workers.push_back(std::make_unique<NativeWorker>(
        job.libraries[static_cast<size_t>(rank)], 7, job.world, rank, [] {}, kSecondNs / 1000, device));
  }
  for (size_t rank : {0, 1}) start(rank);
  REQUIRE(until([&] { return ends[0].outcomes.size() + ends[1].outcomes.size() == 2; }));
  const tests::fake_nccl::Counts before = control.counts();
  start(0);  // stands on the stream: the other does not call
  REQUIRE(until([&] { return control.counts().kernels > before.kernels; }));
  control.setAsyncError(0, 6);
  REQUIRE(until([&] { return ends[0].outcomes.size() == 2; }));
  CHECK(ends[0].outcomes[1].kind() == Kind::kDisconnected);
  CHECK(control.counts().communicators == before.communicators - 1);
  CHECK(job.device(0).device->free(memory[0]).isOk());  // no work on it is left
  workers.clear();
}

TEST_CASE("a process that closes ends its calls and lets their streams go on; who waits for one may come later") {
  Job job(2, "shm that reads");
  const Planned& planned = *plannedWith(2, false).front();
  job.call(planned, [&](int32_t rank, const Prepared& prepared) {
    if (rank == 1) return;
    DeviceRank& device = job.device(rank);
    std::vector<std::unique_ptr<DeviceCall>> calls;
    std::vector<std::unique_ptr<Process::StreamCall>> started;
    for (size_t k = 0; k < 2; ++k) {
      calls.push_back(std::make_unique<DeviceCall>(device, device.streams[k], inputOf(planned, rank, k),
                                                   outputOf(planned, rank, k).size(), false, 0xa0));
      calls[k]->queueBefore();
      const DeviceBuffers buffers{calls[k]->buffers(), device.streams[k]};
      started.push_back(must(job.at(rank).start(prepared, &buffers, 1, kNever)));
      calls[k]->queueAfter();
    }
    job.at(rank).close(0);
    for (size_t k = 0; k < 2; ++k) {
      CHECK(started[k]->isDone());
      const Status passed = device.device->synchronize(device.streams[k], kClock.nowNs() + 20 * kSecondNs);
      CHECK_MESSAGE(passed.isOk(), passed.message());
    }
    job.processes[0].reset();
    for (size_t k = 0; k < 2; ++k) {
      const Status status = started[k]->wait(kNever);
      CHECK_MESSAGE(status.code() == "closed", status.message());
      CHECK(calls[k]->isUntouched());
    }
  });
}

TEST_CASE(
    "two local ranks, each on its device; a call that one of them cannot begin ends for both, and streams go on") {
  RunnerOptions options;
  options.engine.operation_timeout_ns = 20 * kSecondNs;
  const std::shared_ptr<Process> process = must(Process::create(options, {0, 1}, {0, 1}));
  std::vector<DeviceRank> ranks(2);
  for (size_t slot : {0, 1}) {
    ranks[slot].device = must(device::fake::create({}));
    ranks[slot].streams.push_back(must(ranks[slot].device->createStream()));
    REQUIRE(process->useDevice(slot, ranks[slot].device, engine::testing::reduceOnFake).isOk());
  }
  Ends ends = connect("within one process");
  process->addEndpoint(0, 1, std::move(ends.first));
  process->addEndpoint(1, 0, std::move(ends.second));
  process->startThreads();
  REQUIRE(process->createCommunicator("c", 0, {0, 1}, {"a", "b"}).isOk());
  const Planned& planned = *engine::testing::planned(2, "psum(u64[9])");
  const std::string& text = planned.members[0].text;
  const std::vector<std::pair<int32_t, std::string>> schedules = {{0, planned.members[0].binary},
                                                                  {1, planned.members[1].binary}};
  REQUIRE(process->answerPlan("c", 0, text, schedules, Status::ok()).isOk());
  const Prepared prepared = must(process->prepareBlocking("c", text));
  for (const bool is_whole : {true, false}) {
    CAPTURE(is_whole);
    std::vector<std::unique_ptr<DeviceCall>> calls;
    std::vector<DeviceBuffers> buffers;
    for (int32_t rank : {0, 1}) {
      DeviceRank& mine = ranks[static_cast<size_t>(rank)];
      calls.push_back(std::make_unique<DeviceCall>(mine, mine.streams[0], inputOf(planned, rank, 1),
                                                   outputOf(planned, rank, 1).size(), false, 0xa0));
      calls.back()->queueBefore();
      buffers.push_back({calls.back()->buffers(), is_whole || rank == 0 ? mine.streams[0] : nullptr});
    }
    auto started = process->start(prepared, buffers.data(), 2, kNever);
    CHECK(started.isOk() == is_whole);
    for (auto& call : calls) call->queueAfter();
    if (is_whole) {
      const Status status = started.value()->wait(kNever);
      CHECK_MESSAGE(status.isOk(), status.message());
    }
    for (int32_t rank : {0, 1}) {
      CHECK(calls[static_cast<size_t>(rank)]->isUntouched());
      if (is_whole) CHECK(calls[static_cast<size_t>(rank)]->output() == outputOf(planned, rank, 1));
    }
  }
  process->close(kSecondNs);
}

TEST_CASE("what a call on a device is refused for") {
  Job job(2, "shm that reads");
  const Planned& planned = *plannedWith(2, false).front();
  job.call(planned, [&](int32_t rank, const Prepared& prepared) {
    DeviceRank& device = job.device(rank);
    DeviceCall call(device, device.streams[0], inputOf(planned, rank, 1), outputOf(planned, rank, 1).size(), false, 0);
    const DeviceBuffers nowhere{call.buffers(), nullptr};
    const auto refused = job.at(rank).start(prepared, &nowhere, 1, kNever);
    CHECK(refused.status().kind() == Kind::kBadArgument);
    CHECK_MESSAGE(refused.status().message().find("stream") != std::string::npos, refused.status().message());
  });
}

}  // namespace jhetcc::runtime
