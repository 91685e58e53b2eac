// SPDX-License-Identifier: Apache-2.0
// Members that never come, errors that the library finds by itself, aborts: all end in bounded time with one status.
#include "ccl_nccl/ranks.h"

namespace jhetcc::ccl::nccl::tests {

using schedule::DataType, schedule::ReduceOp;

namespace {

constexpr int kRemoteErrorCode = 6, kInProgressCode = 7;

Status sumOf(Ranks& ranks, Communicators& comms, size_t rank) {
  return comms[rank]->allReduce(ranks[rank].input->there(), ranks[rank].output->there(), 100, DataType::kFloat32,
                                ReduceOp::kSum, ranks[rank].stream);
}

/// All ranks reduce once, so that nothing of a first call is left.
void warmUp(Ranks& ranks, Communicators& comms) {
  for (size_t r = 0; r < ranks.size(); ++r) must(sumOf(ranks, comms, r));
  ranks.synchronize();
}

}  // namespace

TEST_CASE("a member that never comes to be one ends the creation at the deadline") {
  const Control control(FAKE_NCCL);
  const std::shared_ptr<Library> library = load(FAKE_NCCL, 100);
  Group group;
  group.token = must(library->makeToken(2, true));
  group.size = 2;
  const Status status = library->create(group).status();
  CHECK(status.kind() == Kind::kTimeout);
  CHECK(status.code() == "library_timeout");
  CHECK(status.message().find("rank 0 of 2") != std::string::npos);
  CHECK(control.counts().communicators == 0);
  CHECK(control.counts().misuses == 0);
}

TEST_CASE("members that contradict each other are told") {
  const Control control(FAKE_NCCL);
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  Group group;
  group.token = "too short";
  group.size = 1;
  CHECK(library->create(group).status().kind() == Kind::kBadArgument);
  group.token = must(library->makeToken(1, true));
  must(library->create(group).status());
  const Status twice = library->create(group).status();
  CHECK(twice.kind() == Kind::kBadArgument);
  CHECK(twice.message().find("two have one rank") != std::string::npos);
}

TEST_CASE("an error that the library finds by itself shows, and ends the communicator") {
  const Control control(FAKE_NCCL);
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  Ranks ranks(2, 4096);
  Communicators comms = connect(*library, 2);
  warmUp(ranks, comms);
  must(comms[1]->asyncError());
  control.setAsyncError(1, kRemoteErrorCode);
  must(sumOf(ranks, comms, 0));
  const Status found = comms[1]->asyncError();
  CHECK(found.kind() == Kind::kDisconnected);
  CHECK(found.scope() == Scope::kCommunicator);
  CHECK(found.code() == "library_failed");
  CHECK(found.message().find("rank 1 of 2") != std::string::npos);
  CHECK(found.message().find("remote process exited") != std::string::npos);
  CHECK(sumOf(ranks, comms, 1).code() == "library_failed");
  for (size_t r = 0; r < 2; ++r) must(comms[r]->abort());
  ranks.synchronize();
  CHECK(comms[1]->asyncError().code() == "library_failed");  // the first reason stays
}

TEST_CASE("an error that nobody asked about aborts at the end instead of waiting") {
  const Control control(FAKE_NCCL);
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  Ranks ranks(2, 4096);
  Communicators comms = connect(*library, 2);
  warmUp(ranks, comms);
  control.setAsyncError(0, 3);
  must(sumOf(ranks, comms, 0));
  must(comms[1]->abort());
  comms.clear();
  ranks.synchronize();
  CHECK(control.counts().communicators == 0);
}

TEST_CASE("members that ask for different things are told by the library's own error") {
  const Control control(FAKE_NCCL);
  const std::shared_ptr<Library> library = load(FAKE_NCCL);
  Ranks ranks(2, 4096);
  Communicators comms = connect(*library, 2);
  warmUp(ranks, comms);
  must(sumOf(ranks, comms, 0));
  must(comms[1]->allReduce(ranks[1].input->there(), ranks[1].output->there(), 99, DataType::kFloat32, ReduceOp::kSum,
                           ranks[1].stream));
  const int64_t deadline_ns = soonNs();
  Status status;
  while ((status = comms[0]->asyncError()).isOk() && SystemClock().nowNs() < deadline_ns) std::this_thread::yield();
  CHECK(status.code() == "library_failed");
  for (auto& comm : comms) must(comm->abort());
  ranks.synchronize();
}

TEST_CASE("a call that the library never takes ends at the deadline, or by an abort from another thread") {
  const Control control(FAKE_NCCL);
  for (const bool is_aborted : {true, false}) {
    CAPTURE(is_aborted);
    const std::shared_ptr<Library> library = load(FAKE_NCCL, is_aborted ? 20'000 : 100);
    Ranks ranks(1, 4096);
    Communicators comms = connect(*library, 1);
    control.setAsyncError(0, kInProgressCode);  // the first call goes on by itself, for ever
    Status ended;
    const uint64_t kernels = control.counts().kernels;
    std::thread caller([&] { ended = sumOf(ranks, comms, 0); });
    const int64_t deadline_ns = soonNs();
    while (control.counts().kernels == kernels && SystemClock().nowNs() < deadline_ns) std::this_thread::yield();
    Status aborted;
    if (is_aborted) aborted = comms[0]->abort();
    caller.join();
    must(aborted);
    CHECK(ended.code() == (is_aborted ? "aborted" : "library_timeout"));
    CHECK(sumOf(ranks, comms, 0).code() == ended.code());
    must(comms[0]->abort());
    ranks.synchronize();
    comms.clear();
    CHECK(control.counts().communicators == 0);
    CHECK(control.counts().misuses == 0);
  }
}

}  // namespace jhetcc::ccl::nccl::tests
