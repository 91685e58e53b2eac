// SPDX-License-Identifier: Apache-2.0
// NCCL's entry points. FAKE_NCCL_CODE is the version built; FAKE_NCCL_OLD leaves out what came with 2.13 and 2.14,
// FAKE_NCCL_RCCL adds one of RCCL's own, FAKE_NCCL_LACKS_REDUCE_SCATTER makes a library that no adapter can use.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "fake_nccl/arithmetic.h"
#include "fake_nccl/clique.h"

#define NCCL_ENTRY extern "C" __attribute__((visibility("default")))

namespace fake = jhetcc::tests::fake_nccl;
using fake::Member, fake::Request, fake::state, fake::Transfer;

namespace {

constexpr auto kDrainLimit = std::chrono::seconds(20);

struct UniqueId {
  char bytes[128];
};

thread_local std::string last_error;

int fail(int code, const char* text) {
  last_error = text;
  return code;
}

int versionCode() {
  const char* text = std::getenv(fake::kVersionVariable);
  return text != nullptr ? std::atoi(text) : FAKE_NCCL_CODE;
}

/// Under the lock; null if the handle has no communicator any more.
std::shared_ptr<Member> find(void* comm) {
  const auto found = state().members.find(comm);
  if (found != state().members.end()) return found->second;
  ++state().counts.misuses;
  return nullptr;
}

/// A call of a thread's group, kept until the group ends.
struct Pending {
  std::shared_ptr<Member> member;
  void* stream;
  std::vector<Transfer> transfers;
  std::vector<const void*> used;
};
thread_local int group_depth = 0;
thread_local std::vector<Pending> pending;

struct Kernel {
  std::shared_ptr<Member> member;
  uint64_t number = 0;
  Request request{};
  const uint8_t* source = nullptr;
  uint8_t* target = nullptr;
  std::vector<Transfer> transfers;  ///< if any, it is a kernel of these
  bool has_arrived = false;
};

int stepKernel(void* context) {
  auto& kernel = *static_cast<Kernel*>(context);
  if (!kernel.transfers.empty()) return fake::stepTransfers(*kernel.member, kernel.transfers, kernel.has_arrived);
  return fake::stepCollective(*kernel.member, kernel.number, kernel.request, kernel.source, kernel.target,
                              kernel.has_arrived);
}

void dropKernel(void* context) {
  const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(context));
  const std::lock_guard lock(state().mutex);
  --kernel->member->outstanding;
  state().changed.notify_all();
}

/// Without the lock.
int launch(std::unique_ptr<Kernel> kernel, void* stream, const std::vector<const void*>& used) {
  const std::shared_ptr<Member> member = kernel->member;
  {
    const std::lock_guard lock(state().mutex);
    if (member->polls_left > 0) {
      ++state().counts.misuses;
      return fail(fake::kInvalidUsage, "a call while another one is in progress");
    }
    ++member->outstanding;
    if (kernel->transfers.empty()) kernel->number = member->collectives++;
    ++state().counts.kernels;
  }
  if (state().api->enqueue(stream, stepKernel, dropKernel, kernel.get(), used.data(), used.size()) != 0) {
    dropKernel(kernel.release());
    return fail(fake::kUnhandledCudaError, "the stream is no stream of a virtual accelerator");
  }
  kernel.release();
  const std::lock_guard lock(state().mutex);
  if (member->is_blocking || member->is_connected) return fake::kSuccess;
  member->is_connected = true;
  member->polls_left = 3;
  ++state().counts.in_progress;
  return fake::kInProgress;
}

/// The living member a call may go to, or null with the code to answer.
std::shared_ptr<Member> usable(void* comm, int* code) {
  const std::lock_guard lock(state().mutex);
  std::shared_ptr<Member> member = find(comm);
  if (!member) {
    *code = fail(fake::kInvalidArgument, "the communicator has ended");
  } else if (member->clique->joined < member->clique->size || member->is_finalized) {
    ++state().counts.misuses;
    *code = fail(fake::kInvalidUsage, "the communicator is not ready, or finalized");
    member = nullptr;
  }
  return member;
}

int collective(Request request, const void* source, void* target, void* comm, void* stream) {
  int code = fake::kSuccess;
  const std::shared_ptr<Member> member = usable(comm, &code);
  if (!member) return code;
  const auto size = static_cast<size_t>(member->clique->size);
  if (group_depth > 0) return fail(fake::kInvalidUsage, "collectives in groups are not offered by this test library");
  if (request.type < 0 || request.type >= (versionCode() >= 21000 ? fake::kTypes : fake::kBfloat16) || request.op < 0 ||
      request.op >= fake::kOps || request.root < 0 || request.root >= static_cast<int>(size)) {
    return fail(fake::kInvalidArgument, "type, operation or root");
  }
  const bool is_root = member->rank == request.root;
  const bool reads = request.kind != Request::kBroadcast || is_root;
  const bool writes = request.kind != Request::kReduce || is_root;
  const size_t bytes = request.count * fake::sizeOf(request.type);
  auto kernel = std::make_unique<Kernel>();
  std::vector<const void*> used;
  if (reads) {
    kernel->source = static_cast<const uint8_t*>(
        state().api->alias(source, request.kind == Request::kReduceScatter ? bytes * size : bytes));
    used.push_back(source);
  }
  if (writes) {
    kernel->target =
        static_cast<uint8_t*>(state().api->alias(target, request.kind == Request::kAllGather ? bytes * size : bytes));
    used.push_back(target);
  }
  if ((reads && kernel->source == nullptr) || (writes && kernel->target == nullptr)) {
    return fail(fake::kInvalidArgument, "a buffer is not within memory of a virtual accelerator");
  }
  kernel->member = member;
  kernel->request = request;
  return launch(std::move(kernel), stream, used);
}

int transfer(const void* source, void* target, size_t count, int type, int peer, void* comm, void* stream) {
  int code = fake::kSuccess;
  const std::shared_ptr<Member> member = usable(comm, &code);
  if (!member) return code;
  if (type < 0 || type >= fake::kTypes || peer < 0 || peer >= member->clique->size) {
    return fail(fake::kInvalidArgument, "type or peer");
  }
  const size_t bytes = count * fake::sizeOf(type);
  const void* memory = source != nullptr ? source : target;
  auto* alias = static_cast<uint8_t*>(state().api->alias(memory, bytes));
  if (alias == nullptr) return fail(fake::kInvalidArgument, "a buffer is not within memory of a virtual accelerator");
  Pending* group = nullptr;
  for (Pending& other : pending) {
    if (other.member == member && other.stream == stream) group = &other;
  }
  if (group == nullptr) group = &pending.emplace_back(Pending{member, stream, {}, {}});
  group->transfers.push_back(
      {peer, source != nullptr ? alias : nullptr, source != nullptr ? nullptr : alias, bytes, nullptr});
  group->used.push_back(memory);
  return fake::kSuccess;
}

int endGroup() {
  int result = fake::kSuccess;
  for (Pending& group : std::exchange(pending, {})) {
    auto kernel = std::make_unique<Kernel>();
    kernel->member = group.member;
    kernel->transfers = std::move(group.transfers);
    const int code = launch(std::move(kernel), group.stream, group.used);
    if (code != fake::kSuccess && (result == fake::kSuccess || result == fake::kInProgress)) result = code;
  }
  return result;
}

int join(void** comm, int size, const UniqueId& id, int rank, bool is_blocking) {
  std::unique_lock lock(state().mutex);
  const auto found = state().cliques.find(std::string(id.bytes, sizeof(id.bytes)));
  if (found == state().cliques.end()) return fail(fake::kInvalidArgument, "an id that ncclGetUniqueId did not give");
  const std::shared_ptr<fake::Clique> clique = found->second;
  if (clique->size == 0) {
    clique->size = size;
    clique->ranks.resize(size);
  }
  if (clique->size != size || rank < 0 || rank >= size || clique->ranks[rank]) {
    return fail(fake::kInvalidUsage, "members differ in size, or two have one rank");
  }
  clique->ranks[rank] = true;
  ++clique->joined;
  auto member = std::make_shared<Member>();
  member->clique = clique;
  member->rank = rank;
  member->is_blocking = is_blocking;
  *comm = member.get();
  state().members[*comm] = member;
  ++state().counts.communicators;
  state().changed.notify_all();
  if (!is_blocking) {
    ++state().counts.in_progress;
    return fake::kInProgress;
  }
  state().changed.wait(lock, [&] { return clique->joined == clique->size; });  // as long as it takes, as NCCL does
  return fake::kSuccess;
}

int forget(void* comm, bool is_abort) {
  std::unique_lock lock(state().mutex);
  const std::shared_ptr<Member> member = find(comm);
  if (!member) return fake::kInvalidArgument;
  if (is_abort) {
    member->is_aborted = member->clique->is_broken = true;
  } else if (!state().changed.wait_for(lock, kDrainLimit, [&] { return member->outstanding == 0; })) {
    ++state().counts.misuses;
    return fail(fake::kInternalError, "kernels of a communicator to destroy do not end");
  }
  state().members.erase(comm);
  --state().counts.communicators;
  return fake::kSuccess;
}

}  // namespace

NCCL_ENTRY void fakeNcclBind(const jhetcc::device::fake::Api* api) {
  const std::lock_guard lock(state().mutex);
  state().api = api;
}

NCCL_ENTRY void fakeNcclSetAsyncError(int rank, int code) {
  const std::lock_guard lock(state().mutex);
  for (const auto& [handle, member] : state().members) {
    if (member->rank == rank) member->error = code;
  }
}

NCCL_ENTRY fake::Counts fakeNcclCounts() {
  const std::lock_guard lock(state().mutex);
  return state().counts;
}

NCCL_ENTRY int ncclGetVersion(int* version) {
  *version = versionCode();
  return fake::kSuccess;
}

NCCL_ENTRY int ncclGetUniqueId(UniqueId* id) {
  static std::atomic<uint64_t> last{0};
  const uint64_t number = ++last;
  std::memset(id->bytes, 0xA5, sizeof(id->bytes));
  std::memcpy(id->bytes, &number, sizeof(number));
  const std::lock_guard lock(state().mutex);
  state().cliques[std::string(id->bytes, sizeof(id->bytes))] = std::make_shared<fake::Clique>();
  return fake::kSuccess;
}

NCCL_ENTRY const char* ncclGetErrorString(int code) {
  constexpr const char* kTexts[] = {"no error",
                                    "unhandled cuda error",
                                    "unhandled system error",
                                    "internal error",
                                    "invalid argument",
                                    "invalid usage",
                                    "remote process exited or there was a network error",
                                    "in progress"};
  return code >= 0 && code < 8 ? kTexts[code] : "unknown result code";
}

NCCL_ENTRY int ncclCommInitRank(void** comm, int size, UniqueId id, int rank) {
  return join(comm, size, id, rank, true);
}

NCCL_ENTRY int ncclCommDestroy(void* comm) { return forget(comm, false); }
NCCL_ENTRY int ncclCommAbort(void* comm) { return forget(comm, true); }

NCCL_ENTRY int ncclCommGetAsyncError(void* comm, int* code) {
  const std::lock_guard lock(state().mutex);
  const std::shared_ptr<Member> member = find(comm);
  if (!member) return fake::kInvalidArgument;
  const bool is_joining = member->clique->joined < member->clique->size;
  const bool is_draining = member->is_finalized && member->outstanding > 0;
  if (member->polls_left > 0) --member->polls_left;
  *code = member->error != fake::kSuccess                       ? member->error
          : is_joining || is_draining || member->polls_left > 0 ? fake::kInProgress
                                                                : fake::kSuccess;
  return fake::kSuccess;
}

NCCL_ENTRY int ncclAllReduce(const void* source, void* target, size_t count, int type, int op, void* comm,
                             void* stream) {
  return collective({Request::kAllReduce, count, type, op, 0}, source, target, comm, stream);
}
NCCL_ENTRY int ncclReduce(const void* source, void* target, size_t count, int type, int op, int root, void* comm,
                          void* stream) {
  return collective({Request::kReduce, count, type, op, root}, source, target, comm, stream);
}
#ifndef FAKE_NCCL_LACKS_REDUCE_SCATTER
NCCL_ENTRY int ncclReduceScatter(const void* source, void* target, size_t count, int type, int op, void* comm,
                                 void* stream) {
  return collective({Request::kReduceScatter, count, type, op, 0}, source, target, comm, stream);
}
#endif
NCCL_ENTRY int ncclAllGather(const void* source, void* target, size_t count, int type, void* comm, void* stream) {
  return collective({Request::kAllGather, count, type, 0, 0}, source, target, comm, stream);
}
NCCL_ENTRY int ncclBroadcast(const void* source, void* target, size_t count, int type, int root, void* comm,
                             void* stream) {
  return collective({Request::kBroadcast, count, type, 0, root}, source, target, comm, stream);
}

NCCL_ENTRY int ncclSend(const void* source, size_t count, int type, int peer, void* comm, void* stream) {
  const int code = transfer(source, nullptr, count, type, peer, comm, stream);
  return code != fake::kSuccess || group_depth > 0 ? code : endGroup();
}
NCCL_ENTRY int ncclRecv(void* target, size_t count, int type, int peer, void* comm, void* stream) {
  const int code = transfer(nullptr, target, count, type, peer, comm, stream);
  return code != fake::kSuccess || group_depth > 0 ? code : endGroup();
}
NCCL_ENTRY int ncclGroupStart() {
  ++group_depth;
  return fake::kSuccess;
}
NCCL_ENTRY int ncclGroupEnd() {
  if (group_depth == 0) return fail(fake::kInvalidUsage, "no group was started");
  return --group_depth > 0 ? static_cast<int>(fake::kSuccess) : endGroup();
}

#ifndef FAKE_NCCL_OLD
namespace {
struct Config {
  size_t size;
  unsigned int magic, version;
  int blocking;
};
}  // namespace

NCCL_ENTRY const char* ncclGetLastError(void*) { return last_error.c_str(); }

NCCL_ENTRY int ncclCommInitRankConfig(void** comm, int size, UniqueId id, int rank, const Config* config) {
  if (config->size < sizeof(Config) || config->magic != 0xcafebeef || config->version < 21400) {
    return fail(fake::kInvalidArgument, "a config that was not initialized");
  }
  return join(comm, size, id, rank, config->blocking != 0);
}

NCCL_ENTRY int ncclCommFinalize(void* comm) {
  std::unique_lock lock(state().mutex);
  const std::shared_ptr<Member> member = find(comm);
  if (!member) return fake::kInvalidArgument;
  member->is_finalized = true;
  if (!member->is_blocking) return fake::kInProgress;
  state().changed.wait_for(lock, kDrainLimit, [&] { return member->outstanding == 0; });
  return fake::kSuccess;
}
#endif

#ifdef FAKE_NCCL_RCCL
NCCL_ENTRY int ncclAllToAll(const void*, void*, size_t, int, void*, void*) {
  return fail(fake::kInvalidUsage, "only its name is needed here");
}
#endif
