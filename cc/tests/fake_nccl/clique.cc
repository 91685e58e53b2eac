// SPDX-License-Identifier: Apache-2.0
#include "fake_nccl/clique.h"

#include <cstring>

#include "fake_nccl/arithmetic.h"

namespace jhetcc::tests::fake_nccl {

namespace {

void perform(const Collective& collective) {
  const Request& request = collective.request;
  const size_t size = collective.sources.size(), bytes = request.count * sizeOf(request.type);
  const bool is_scattered = request.kind == Request::kReduceScatter;
  // Results are complete before the first target is written: targets may be sources.
  std::vector<uint8_t> result;
  switch (request.kind) {
    case Request::kAllReduce:
    case Request::kReduce:
    case Request::kReduceScatter:
      result.resize(is_scattered ? bytes * size : bytes);
      reduce(collective.sources, result.data(), result.size() / sizeOf(request.type), request.type, request.op);
      break;
    case Request::kAllGather:
      for (const uint8_t* source : collective.sources) result.insert(result.end(), source, source + bytes);
      break;
    case Request::kBroadcast:
      result.assign(collective.sources[request.root], collective.sources[request.root] + bytes);
      break;
  }
  for (size_t rank = 0; rank < size; ++rank) {
    if (request.kind == Request::kReduce && static_cast<int>(rank) != request.root) continue;
    const bool is_there = request.kind == Request::kBroadcast && collective.targets[rank] == collective.sources[rank];
    if (is_there && static_cast<int>(rank) == request.root) continue;  // others may read it now
    const size_t length = is_scattered ? bytes : result.size();
    if (length > 0) std::memcpy(collective.targets[rank], result.data() + (is_scattered ? rank * bytes : 0), length);
  }
}

}  // namespace

State& state() {
  static State* const only = new State;
  return *only;
}

bool stepCollective(Member& member, uint64_t number, const Request& request, const uint8_t* source, uint8_t* target,
                    bool& has_arrived) {
  const std::lock_guard lock(state().mutex);
  if (member.is_aborted) return true;
  Clique& clique = *member.clique;
  std::shared_ptr<Collective>& collective = clique.collectives[number];
  if (!collective) {
    collective = std::make_shared<Collective>();
    collective->request = request;
    collective->sources.resize(clique.size);
    collective->targets.resize(clique.size);
  }
  if (!has_arrived) {
    has_arrived = true;
    if (!(collective->request == request)) {
      for (const auto& [handle, other] : state().members) {
        if (other->clique == member.clique) other->error = kInvalidUsage;
      }
    }
    collective->sources[member.rank] = source;
    collective->targets[member.rank] = target;
    ++collective->arrived;
  }
  if (clique.is_broken || member.error != kSuccess) return false;
  if (collective->arrived == clique.size && !collective->is_done) {
    perform(*collective);
    collective->is_done = true;
  }
  if (!collective->is_done) return false;
  if (++collective->left == clique.size) clique.collectives.erase(number);
  return true;
}

bool stepTransfers(Member& member, std::vector<Transfer>& transfers, bool& has_arrived) {
  const std::lock_guard lock(state().mutex);
  if (member.is_aborted) return true;
  Clique& clique = *member.clique;
  if (!has_arrived) {
    has_arrived = true;
    for (Transfer& transfer : transfers) {
      if (transfer.source == nullptr) continue;
      transfer.message = std::make_shared<Message>(Message{transfer.source, transfer.bytes});
      clique.messages[{member.rank, transfer.peer}].push_back(transfer.message);
    }
  }
  if (clique.is_broken || member.error != kSuccess) return false;
  bool is_done = true;
  for (Transfer& transfer : transfers) {
    if (transfer.message) {
      is_done &= transfer.message->is_taken;
      continue;
    }
    std::deque<std::shared_ptr<Message>>& waiting = clique.messages[{transfer.peer, member.rank}];
    if (!transfer.is_done && !waiting.empty()) {
      if (waiting.front()->bytes != transfer.bytes) {
        member.error = kInvalidUsage;
        return false;
      }
      std::memmove(transfer.target, waiting.front()->source, transfer.bytes);
      waiting.front()->is_taken = transfer.is_done = true;
      waiting.pop_front();
    }
    is_done &= transfer.is_done;
  }
  return is_done;
}

}  // namespace jhetcc::tests::fake_nccl
