// SPDX-License-Identifier: Apache-2.0
// What the members of a conformance test do, whatever the adapter: what it cannot do, its capabilities say.
#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <thread>

#include "ccl/member/specials.h"
#include "ccl/segments.h"

namespace jhetcc::ccl {
namespace {

using schedule::DataType, schedule::ReduceOp;

/// Something that another thread does, and that may never end: then the thread is left behind.
class Deed {
 public:
  template <typename Body>
  explicit Deed(Body body)
      : state_(std::make_shared<State>()), thread_([state = state_, body = std::move(body)] {
          const Status status = body();
          std::lock_guard lock(state->mutex);
          state->status = status;
          state->has_ended = true;
          state->changed.notify_all();
        }) {}
  ~Deed() {
    if (hasEnded(0)) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }
  bool hasEnded(int64_t within_ms) {
    std::unique_lock lock(state_->mutex);
    return state_->changed.wait_for(lock, std::chrono::milliseconds(within_ms), [this] { return state_->has_ended; });
  }
  Status status() {
    std::lock_guard lock(state_->mutex);
    return state_->status;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool has_ended = false;
    Status status;
  };
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

/// The types that a reduction has, as docs/libraries.md lists them.
std::string typesOf(const Capabilities& capabilities, ReduceOp op) {
  static const char* const kNames[] = {"",    "bool", "i8",  "i16",  "i32", "i64", "u8",  "u16",
                                       "u32", "u64",  "f16", "bf16", "f32", "f64", "c64", "c128"};
  std::string text;
  for (int type = 1; type < 16; ++type) {
    if (capabilities.reduces(op, static_cast<DataType>(type)))
      text += std::string(text.empty() ? "" : " ") + kNames[type];
  }
  return text;
}

/// Tells the parent what the adapter can.
int about(Member& member) {
  const Capabilities can = member.load()->capabilities();
  std::fprintf(stderr, "ccl_member: %s %s\n", can.name.c_str(), can.version.c_str());
  for (const auto& [key, value] :
       {std::pair("sum", typesOf(can, ReduceOp::kSum)), std::pair("prod", typesOf(can, ReduceOp::kProd)),
        std::pair("max", typesOf(can, ReduceOp::kMax)), std::pair("min", typesOf(can, ReduceOp::kMin)),
        std::pair("one_rank_a_process", std::string(can.one_rank_a_process ? "yes" : "no"))}) {
    require(member.store->set(key, value, inSeconds(20)), key);
  }
  return 0;
}

/// Names of shared memory that are still there tell whose they are, so that whoever is left can take them away.
void checkNames() {
  for (const std::string& name : mappedSegments()) {
    require(name.find_first_not_of("0123456789:") == std::string::npos, "shared memory still has the name " + name);
  }
}

/// Which NaNs a sum gives, for the table in docs/libraries.md: of infinity minus infinity for each type of float, and
/// whether those of sources are as they were.
void tellNans(Member& member, Communicator& world, Place& place, const Capabilities& can) {
  std::string made;
  bool are_kept = true;
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
    if (!can.reduces(ReduceOp::kSum, type)) continue;
    made += (made.empty() ? "" : " ") + sumOfSpecials(world, place, type, member.rank, Special::kInfinity);
    for (const Special nan : {Special::kNan, Special::kNegativeNan}) {
      are_kept &= sumOfSpecials(world, place, type, member.rank, nan) == textOf(special(type, nan, true));
    }
  }
  const std::string mine = std::to_string(member.rank);
  require(member.store->set("nans made " + mine, made, inSeconds(20)), "the NaNs");
  require(member.store->set("nans kept " + mine, are_kept ? "kept" : "not kept", inSeconds(20)), "the NaNs");
}

/// All operations of the first communicator, of a part and of all in another order.
int everything(Member& member) {
  const std::shared_ptr<Library> library = member.load();
  const Capabilities& can = library->capabilities();
  Place place(can);
  const auto world = must(member.create(*library, "world"), "world");
  checkEverything(*world, place, can, member.rank, member.size);
  checkNames();
  if (member.size > 1) tellNans(member, *world, place, can);
  if (member.size == 4) {
    const std::vector<int32_t> ranks = member.rank % 2 == 0 ? std::vector<int32_t>{2, 0} : std::vector<int32_t>{3, 1};
    const auto half = must(member.create(*library, "half " + std::to_string(ranks[0]), ranks), "half");
    checkBriefly(*half, place, member.rank == ranks[1], 2);
    checkBriefly(*world, place, member.rank, member.size);
    checkBriefly(*half, place, member.rank == ranks[1], 2);
  }
  std::vector<int32_t> backwards;
  for (int32_t rank = member.size; rank > 0; --rank) backwards.push_back(rank - 1);
  const auto turned = must(member.create(*library, "backwards", backwards), "backwards");
  checkBriefly(*turned, place, member.size - 1 - member.rank, member.size);
  checkBriefly(*world, place, member.rank, member.size);  // nobody is in the other one any more
  const Status aborted = turned->abort();
  require(can.abortable ? aborted.isOk() : aborted.kind() == Kind::kUnavailable, "abort(): " + aborted.message());
  checkBriefly(*world, place, member.rank, member.size);  // whatever became of the other one
  return 0;
}

/// Two libraries in one process, their calls in turns.
int sideBySide(Member& member) {
  std::vector<std::shared_ptr<Library>> libraries;
  std::vector<std::unique_ptr<Place>> places;
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (size_t which = 0; which < member.libraries.size(); ++which) {
    const std::string name = "library " + std::to_string(which);
    libraries.push_back(member.load(which));
    places.push_back(std::make_unique<Place>(libraries.back()->capabilities()));
    communicators.push_back(must(member.create(*libraries.back(), name), name));
  }
  for (int round = 0; round < 3; ++round) {
    for (size_t which = 0; which < communicators.size(); ++which) {
      checkBriefly(*communicators[which], *places[which], member.rank, member.size);
    }
  }
  return 0;
}

/// The job ends and another one begins in the same processes; then one of each alone.
int again(Member& member) {
  for (const char* name : {"first job", "second job"}) {
    const std::shared_ptr<Library> library = member.load();
    Place place(library->capabilities());
    const auto world = must(member.create(*library, name), name);
    checkBriefly(*world, place, member.rank, member.size);
  }
  const std::shared_ptr<Library> library = member.load();
  Place place(library->capabilities());
  const std::string name = "alone " + std::to_string(member.rank);
  Member alone{0, 1, member.is_process, {}, std::move(member.store)};
  const auto world = alone.create(*library, name);
  if (library->capabilities().one_world) {
    require(world.status().kind() == Kind::kUnavailable, "a world of another size: " + world.status().message());
  } else {
    require(world.status(), "a world of another size");
    checkBriefly(*world.value(), place, 0, 1);
  }
  return 0;
}

/// The last rank is killed during calls; where ranks share a process it just calls no more. The others' calls end, are
/// aborted or are given up; then the process ends with its own code.
int killed(Member& member) {
  std::shared_ptr<Library> library = member.load();
  const Capabilities can = library->capabilities();
  const auto place = std::make_shared<Place>(can);  // of the calls, too: one may be stuck with this memory
  const auto source = std::make_shared<Block>(*place, 1 << 20), target = std::make_shared<Block>(*place, 1 << 20);
  std::unique_ptr<Communicator> world = must(member.create(*library, "world"), "world");
  checkBriefly(*world, *place, member.rank, member.size);
  const bool dies = member.rank == member.size - 1;
  Deed calls([=, raw = world.get(), is_process = member.is_process] {
    Status status;
    for (int call = 0; status.isOk(); ++call) {
      if (dies && call == 20 && is_process) ::raise(SIGKILL);
      if (dies && call == 20) break;
      status =
          raw->allReduce(source->data(), target->data(), 1 << 18, DataType::kFloat32, ReduceOp::kSum, place->stream());
      if (status.isOk()) status = place->finish();
    }
    return status;
  });
  if (dies) {
    require(calls.hasEnded(60'000), "the calls before the end");
    require(member.store->set("killed", "", inSeconds(20)), "telling the end");
    for (int32_t rank = 0; rank < member.size - 1; ++rank) {
      require(member.store->get("over " + std::to_string(rank), inSeconds(60)).status(), "waiting for the others");
    }
    require(world->abort(), "abort() of the one that called no more");
    return 0;
  }
  require(member.store->get("killed", inSeconds(60)).status(), "waiting for the end of a member");
  const bool came_back = calls.hasEnded(300);
  std::fprintf(stderr, "ccl_member: the call %s\n", came_back ? "failed" : "is stuck");
  if (can.abortable) {
    require(world->asyncError(), "before abort()");
    require(world->abort(), "abort()");
    require(calls.hasEnded(10'000), "the call after abort()");
    require(calls.status().kind() == Kind::kAborted, "the call after abort(): " + calls.status().message());
    require(place->finish(10'000), "the stream after abort()");
    require(world->asyncError().kind() == Kind::kAborted, "asyncError() after abort()");
    require(world->abort(), "a second abort()");
  }
  world->leave();
  const Status later = world->broadcast(nullptr, nullptr, 1, 0, place->stream());
  require(later.kind() == Kind::kAborted, "a call after leave(): " + later.message());
  world.reset();
  library.reset();
  require(member.store->set("over " + std::to_string(member.rank), "", inSeconds(20)), "telling the end");
  std::printf("flushed at the end");
  return 7;
}

/// The other members never come. create() is given up, and the process ends with its own code.
int alone(Member& member) {
  const std::shared_ptr<Library> library = member.load();
  const auto own = std::make_shared<Member>(member);  // a thread that is left behind keeps it
  Deed creating([own, library] { return own->create(*library, "world").status(); });
  require(member.store->get("world", inSeconds(20)).status(), "the token");
  require(!creating.hasEnded(300), "create() without members");
  library->leave();
  if (library->capabilities().create_ends) {
    require(creating.hasEnded(10'000), "create() after leave()");
    require(creating.status().kind() == Kind::kAborted, "create() after leave(): " + creating.status().message());
  }
  return 7;
}

}  // namespace

const std::map<std::string, Scenario*>& scenarios() {
  static const std::map<std::string, Scenario*> all = {
      {"about", about}, {"everything", everything}, {"side_by_side", sideBySide},
      {"again", again}, {"killed", killed},         {"alone", alone}};
  return all;
}

}  // namespace jhetcc::ccl
