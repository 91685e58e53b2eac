// SPDX-License-Identifier: Apache-2.0
// Calls are ordered on the stream and nothing else: they return at once, come after what was queued before and before
// what is queued after, on several communicators at once, and no byte goes through the host.
#include "ccl_nccl/ranks.h"
#include "device/gate.h"

namespace jhetcc::ccl::nccl::tests {

using schedule::DataType, schedule::ReduceOp;

namespace {

void setInput(Rank& rank, int32_t value, size_t count) {
  for (size_t k = 0; k < count; ++k) std::memcpy(rank.input->here() + 4 * k, &value, 4);
  rank.input->up(rank.stream);
}

int32_t firstOf(const Rank& rank) {
  int32_t value;
  std::memcpy(&value, rank.output->here(), 4);
  return value;
}

}  // namespace

TEST_CASE("a call comes after the work queued before it and before the work queued after it") {
  const Control control(FAKE_NCCL);
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  Ranks ranks(3, 4096);
  Communicators comms = connect(*library, 3);
  std::vector<std::unique_ptr<device::Gate>> gates;
  std::vector<device::Event> before, after;
  for (size_t r = 0; r < 3; ++r) {
    Rank& rank = ranks[r];
    gates.push_back(must(device::Gate::create(*rank.device)));
    before.push_back(must(rank.device->createEvent()));
    after.push_back(must(rank.device->createEvent()));
    must(gates[r]->hold(1, rank.stream));
    setInput(rank, static_cast<int32_t>(r + 1), 1024);
    must(rank.device->record(before[r], rank.stream));
    must(comms[r]->allReduce(rank.input->there(), rank.output->there(), 1024, DataType::kInt32, ReduceOp::kSum,
                             rank.stream));
    must(rank.device->record(after[r], rank.stream));
    rank.output->down(rank.stream);
    must(gates[r]->signal(1, rank.stream));
  }
  gates[0]->open(1);
  gates[2]->open(1);
  for (const size_t r : {size_t{0}, size_t{2}}) {
    // It has come as far as the call, where the member behind its gate is missing.
    const int64_t deadline_ns = soonNs();
    while (!must(ranks[r].device->isDone(before[r])) && SystemClock().nowNs() < deadline_ns) std::this_thread::yield();
    CHECK(must(ranks[r].device->isDone(before[r])));
    CHECK(ranks[r].device->synchronize(ranks[r].stream, soonNs(20)).kind() == Kind::kTimeout);
    CHECK_FALSE(must(ranks[r].device->isDone(after[r])));
    CHECK(gates[r]->reached() == 0);
  }
  gates[1]->open(1);
  ranks.synchronize();
  for (size_t r = 0; r < 3; ++r) {
    CHECK(gates[r]->reached() == 1);
    CHECK(firstOf(ranks[r]) == 6);
  }
}

TEST_CASE("gates by callbacks order a call just so") {
  const Control control(FAKE_NCCL);
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  Ranks ranks(2, 4096, {.stream_values = false});
  Communicators comms = connect(*library, 2);
  std::vector<std::unique_ptr<device::Gate>> gates;
  for (size_t r = 0; r < 2; ++r) gates.push_back(must(device::Gate::create(*ranks[r].device)));
  for (int round = 1; round <= 10; ++round) {
    for (size_t r = 0; r < 2; ++r) {
      setInput(ranks[r], round, 1024);
      must(gates[r]->signal(2 * round - 1, ranks[r].stream));
      must(comms[r]->allReduce(ranks[r].input->there(), ranks[r].output->there(), 1024, DataType::kInt32,
                               ReduceOp::kSum, ranks[r].stream));
      ranks[r].output->down(ranks[r].stream);
      must(gates[r]->signal(2 * round, ranks[r].stream));
    }
    ranks.synchronize();
    for (size_t r = 0; r < 2; ++r) {
      CHECK(gates[r]->reached() == static_cast<uint64_t>(2 * round));
      CHECK(firstOf(ranks[r]) == 2 * round);
      CHECK(ranks[r].device->counters().callbacks_waited == 0);
    }
  }
}

TEST_CASE("several communicators of overlapping ranks work at once, on streams of their own") {
  const Control control(FAKE_NCCL);
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  // Two streams a rank, on different queues: the ranks queue on them in opposite orders.
  Ranks ranks(3, 4096);
  Communicators all = connect(*library, 3), again = connect(*library, 3), pair = connect(*library, 2);
  std::vector<device::Stream> second;
  for (size_t r = 0; r < 3; ++r) second.push_back(must(ranks[r].device->createStream()));
  for (size_t r = 0; r < 3; ++r) setInput(ranks[r], 1 << r, 1024);
  ranks.synchronize();
  for (int round = 0; round < 5; ++round) {
    for (size_t r = 0; r < 3; ++r) {
      char *in = ranks[r].input->there(), *out = ranks[r].output->there();
      const auto first = [&] {
        must(all[r]->allReduce(in, out, 1, DataType::kInt32, ReduceOp::kSum, ranks[r].stream));
      };
      if (r != 1) first();
      must(again[r]->allReduce(in, out + 4, 1, DataType::kInt32, ReduceOp::kMax, second[r]));
      if (r != 1) must(pair[r / 2]->allReduce(in, out + 8, 1, DataType::kInt32, ReduceOp::kSum, second[r]));
      if (r == 1) first();
    }
    for (size_t r = 0; r < 3; ++r) must(ranks[r].device->synchronize(second[r], soonNs()));
    ranks.down();
    for (size_t r = 0; r < 3; ++r) {
      int32_t values[3];
      std::memcpy(values, ranks[r].output->here(), sizeof(values));
      CHECK(values[0] == 7);
      CHECK(values[1] == 4);
      if (r != 1) CHECK(values[2] == 5);
    }
  }
  CHECK(control.counts().misuses == 0);
}

TEST_CASE("ranks with threads of their own, from birth to end") {
  const Control control(FAKE_NCCL);
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  Ranks ranks(4, 4096);
  const std::string token = must(library->makeToken(4, true));
  std::vector<Status> statuses(4);
  const auto live = [&](int32_t r) -> Status {
    Rank& rank = ranks[r];
    Group group;
    group.token = token;
    group.rank = r;
    group.size = 4;
    Result<std::unique_ptr<Communicator>> comm = library->create(group);
    if (!comm.isOk()) return comm.status();
    for (int32_t round = 0; round < 20; ++round) {
      const int32_t value = round * (r + 1);
      std::memcpy(rank.input->here(), &value, 4);
      JHETCC_RETURN_IF_ERROR(rank.device->copy(rank.input->there(), rank.input->here(), 4, rank.stream));
      JHETCC_RETURN_IF_ERROR(comm.value()->allReduce(rank.input->there(), rank.output->there(), 1, DataType::kInt32,
                                                     ReduceOp::kSum, rank.stream));
      JHETCC_RETURN_IF_ERROR(rank.device->copy(rank.output->here(), rank.output->there(), 4, rank.stream));
      JHETCC_RETURN_IF_ERROR(rank.device->synchronize(rank.stream, soonNs()));
      if (firstOf(rank) != round * 10) return Status(Kind::kInternal, Scope::kCall, "x", "a wrong sum");
    }
    return comm.value()->asyncError();
  };
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < 4; ++r) threads.emplace_back([&, r] { statuses[r] = live(r); });
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) must(status);
  CHECK(control.counts().communicators == 0);
}

TEST_CASE("after warm-up no call allocates, waits for a device, copies through the host or makes a callback") {
  const Control control(FAKE_NCCL);
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  Ranks ranks(2, 4096);
  Communicators comms = connect(*library, 2);
  const auto callAll = [&] {
    for (int32_t r = 0; r < 2; ++r) {
      char *in = ranks[r].input->there(), *out = ranks[r].output->there();
      const device::Stream stream = ranks[r].stream;
      must(comms[r]->allReduce(in, out, 100, DataType::kFloat32, ReduceOp::kSum, stream));
      must(comms[r]->reduce(in, out, 100, DataType::kFloat32, ReduceOp::kSum, 1, stream));
      must(comms[r]->reduceScatter(in, out, 50, DataType::kFloat32, ReduceOp::kSum, stream));
      must(comms[r]->allGather(in, out, 100, stream));
      must(comms[r]->broadcast(in, out, 100, 0, stream));
      must(comms[r]->allToAll(in, out, 100, stream));
    }
    ranks.synchronize();
  };
  ranks.up(4096);
  callAll();
  std::vector<device::fake::Counters> before;
  for (size_t r = 0; r < 2; ++r) before.push_back(ranks[r].device->counters());
  for (int round = 0; round < 3; ++round) callAll();
  for (size_t r = 0; r < 2; ++r) {
    const device::fake::Counters now = ranks[r].device->counters();
    CHECK(now.allocations == before[r].allocations);
    CHECK(now.device_synchronisations == before[r].device_synchronisations);
    CHECK(now.bytes_to_host == before[r].bytes_to_host);
    CHECK(now.bytes_from_host == before[r].bytes_from_host);
    CHECK(now.callbacks == 0);
  }
}

TEST_CASE("a buffer of the host and a stream that is none are refused, and the communicator lives") {
  const Control control(FAKE_NCCL);
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  Ranks ranks(1, 4096);
  Communicators comms = connect(*library, 1);
  std::vector<float> pageable(16);
  char *in = ranks[0].input->there(), *out = ranks[0].output->there();
  const Status stray =
      comms[0]->allReduce(pageable.data(), out, 16, DataType::kFloat32, ReduceOp::kSum, ranks[0].stream);
  CHECK(stray.kind() == Kind::kBadArgument);
  CHECK(stray.code() == "library_failed");
  CHECK(stray.message().find("not within memory of a virtual accelerator") != std::string::npos);
  CHECK(stray.message().find("nccl 2.21.5") != std::string::npos);
  must(comms[0]->allReduce(in, out, 16, DataType::kFloat32, ReduceOp::kSum, ranks[0].stream));
  ranks.synchronize();
  must(comms[0]->asyncError());
}

}  // namespace jhetcc::ccl::nccl::tests
