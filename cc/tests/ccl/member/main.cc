// SPDX-License-Identifier: Apache-2.0
// ccl_member STORE RANK SIZE SCENARIO NAME=PATH...: one member of a conformance test; its exit code is the verdict.
#include <sys/prctl.h>

#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <thread>

#include "ccl/member/member.h"
#include "ccl/segments.h"

namespace jhetcc::ccl {

void require(bool good, const std::string& text) {
  if (good) return;
  std::fprintf(stderr, "ccl_member: %s\n", text.c_str());
  std::_Exit(1);
}

Result<std::unique_ptr<Communicator>> Member::create(Library& library, const std::string& name,
                                                     const std::vector<int32_t>& ranks) {
  Group group;
  group.of_first = ranks;
  group.size = ranks.empty() ? size : static_cast<int32_t>(ranks.size());
  group.rank = rank;
  if (!ranks.empty()) {
    group.rank = static_cast<int32_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    require(group.rank < group.size, "this rank is no member of " + name);
  }
  if (group.rank == 0) {
    const std::string token = must(library.makeToken(group.size, ranks.empty()), "makeToken for " + name);
    require(store->set(name, token, inSeconds(20)), name);
  }
  group.token = must(store->get(name, inSeconds(20)), name);
  return library.create(group);
}

namespace {

/// The types that a reduction has, as docs/libraries.md lists them.
std::string typesOf(const Capabilities& capabilities, schedule::ReduceOp op) {
  static const char* const kNames[] = {"",    "bool", "i8",  "i16",  "i32", "i64", "u8",  "u16",
                                       "u32", "u64",  "f16", "bf16", "f32", "f64", "c64", "c128"};
  std::string text;
  for (int type = 1; type < 16; ++type) {
    if (capabilities.reduces(op, static_cast<schedule::DataType>(type)))
      text += std::string(text.empty() ? "" : " ") + kNames[type];
  }
  return text;
}

/// All operations of the first communicator, of a part and of all in another order.
int everything(Member& member) {
  const std::shared_ptr<Library> library = must(load(member.libraries.at(0)), "load");
  const Capabilities& capabilities = library->capabilities();
  if (member.rank == 0) {
    std::fprintf(stderr, "ccl_member: %s %s\n", capabilities.name.c_str(), capabilities.version.c_str());
    using schedule::ReduceOp;
    for (const auto& [key, op] : {std::pair("sum", ReduceOp::kSum), std::pair("prod", ReduceOp::kProd),
                                  std::pair("max", ReduceOp::kMax), std::pair("min", ReduceOp::kMin)}) {
      require(member.store->set(key, typesOf(capabilities, op), inSeconds(20)), "the table");
    }
  }
  const auto world = must(member.create(*library, "world"), "world");
  checkEverything(*world, capabilities, member.rank, member.size);
  if (capabilities.name == "mpi") require(mappedSegments().empty(), "shared memory still has a name");
  if (member.size == 4) {
    const std::vector<int32_t> ranks = member.rank % 2 == 0 ? std::vector<int32_t>{2, 0} : std::vector<int32_t>{3, 1};
    const auto half = must(member.create(*library, "half " + std::to_string(ranks[0]), ranks), "half");
    checkBriefly(*half, member.rank == ranks[1], 2);
    checkBriefly(*world, member.rank, member.size);
    checkBriefly(*half, member.rank == ranks[1], 2);
  }
  std::vector<int32_t> backwards;
  for (int32_t rank = member.size; rank > 0; --rank) backwards.push_back(rank - 1);
  const auto turned = must(member.create(*library, "backwards", backwards), "backwards");
  checkBriefly(*turned, member.size - 1 - member.rank, member.size);
  require(turned->abort().kind() == Kind::kUnavailable, "abort of a library that cannot");
  return 0;
}

/// Two libraries in one process, their calls in turns.
int sideBySide(Member& member) {
  std::vector<std::shared_ptr<Library>> libraries;
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (const LoadOptions& options : member.libraries) {
    libraries.push_back(must(load(options), "load " + options.name));
    communicators.push_back(must(member.create(*libraries.back(), options.name), options.name));
  }
  for (int round = 0; round < 3; ++round) {
    for (const auto& communicator : communicators) checkBriefly(*communicator, member.rank, member.size);
  }
  return 0;
}

/// The job ends and another one begins in the same processes.
int again(Member& member) {
  for (const char* name : {"first job", "second job"}) {
    const std::shared_ptr<Library> library = must(load(member.libraries.at(0)), "load");
    const auto world = must(member.create(*library, name), name);
    checkBriefly(*world, member.rank, member.size);
  }
  if (member.libraries[0].name != "mpi") return 0;
  const std::shared_ptr<Library> library = must(load(member.libraries.at(0)), "load");
  Member alone{0, 1, {}, std::move(member.store)};
  const auto refused = alone.create(*library, "alone " + std::to_string(member.rank));
  require(refused.status().kind() == Kind::kUnavailable, "a world of another size: " + refused.status().message());
  return 0;
}

/// The last rank is killed during calls. The others' calls end or are given up; then the process ends with its own
/// code.
int killed(Member& member) {
  std::shared_ptr<Library> library = must(load(member.libraries.at(0)), "load");
  std::unique_ptr<Communicator> world = must(member.create(*library, "world"), "world");
  checkBriefly(*world, member.rank, member.size);
  std::mutex mutex;
  std::condition_variable changed;
  bool is_over = false;
  std::thread calls([&, raw = world.get()] {
    std::vector<float> source(1 << 18, 1.0f), target(1 << 18);
    Status status;
    for (int call = 0; status.isOk(); ++call) {
      if (call == 20 && member.rank == member.size - 1) ::raise(SIGKILL);
      status = raw->allReduce(source.data(), target.data(), source.size(), schedule::DataType::kFloat32,
                              schedule::ReduceOp::kSum, nullptr);
    }
    std::lock_guard lock(mutex);
    is_over = true;
    changed.notify_all();
  });
  calls.detach();
  require(member.store->get("killed", inSeconds(60)).status(), "waiting for the end of a member");
  std::unique_lock lock(mutex);
  const bool came_back = changed.wait_for(lock, std::chrono::milliseconds(300), [&] { return is_over; });
  std::fprintf(stderr, "ccl_member: the call %s\n", came_back ? "failed" : "is stuck and is given up");
  world->leave();
  const Status later = world->broadcast(nullptr, nullptr, 1, 0, nullptr);
  require(later.kind() == Kind::kAborted, "a call after leave(): " + later.message());
  world.reset();
  library.reset();
  std::printf("flushed at the end");
  return 7;
}

/// The other members never come. create() is given up, and the process ends with its own code.
int alone(Member& member) {
  const std::shared_ptr<Library> library = must(load(member.libraries.at(0)), "load");
  std::mutex mutex;
  std::condition_variable changed;
  Status status;
  bool is_over = false;
  std::thread([&, library] {
    const auto created = member.create(*library, "world");
    std::lock_guard lock(mutex);
    status = created.status();
    is_over = true;
    changed.notify_all();
  }).detach();
  require(member.store->get("world", inSeconds(20)).status(), "the token");
  std::unique_lock lock(mutex);
  require(!changed.wait_for(lock, std::chrono::milliseconds(300), [&] { return is_over; }), "create() without members");
  library->leave();
  if (member.libraries[0].name == "mpi") {  // ours until all are there
    require(changed.wait_for(lock, std::chrono::seconds(10), [&] { return is_over; }), "create() after leave()");
    require(status.kind() == Kind::kAborted, "create() after leave(): " + status.message());
  }
  return 7;
}

int run(int count, char** arguments) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  require(count > 5, "usage: ccl_member STORE RANK SIZE SCENARIO NAME=PATH...");
  Member member;
  member.rank = std::atoi(arguments[2]);
  member.size = std::atoi(arguments[3]);
  for (int i = 5; i < count; ++i) {
    const std::string argument = arguments[i];
    LoadOptions options;
    options.name = argument.substr(0, argument.find('='));
    options.path = argument.substr(argument.find('=') + 1);
    options.is_crowded = member.size > static_cast<int32_t>(std::thread::hardware_concurrency());
    member.libraries.push_back(options);
  }
  net::Identity mine;
  mine.job = "conformance";
  mine.rank = member.rank;
  member.store = must(control::StoreClient::connect(must(net::Address::parse(arguments[1]), "address"),
                                                    net::Secret::none(), mine, inSeconds(20)),
                      "the store");
  const std::map<std::string, std::function<int(Member&)>> scenarios = {
      {"everything", everything}, {"side_by_side", sideBySide}, {"again", again}, {"killed", killed}, {"alone", alone}};
  const auto found = scenarios.find(arguments[4]);
  require(found != scenarios.end(), std::string("no scenario ") + arguments[4]);
  return found->second(member);
}

}  // namespace
}  // namespace jhetcc::ccl

int main(int count, char** arguments) { return jhetcc::ccl::run(count, arguments); }
