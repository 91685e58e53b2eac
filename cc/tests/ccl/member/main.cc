// SPDX-License-Identifier: Apache-2.0
// ccl_member STORE FIRST END SIZE SCENARIO NAME=PATH...: the ranks from FIRST to before END of a conformance test, each
// on a thread of its own where there are several; the exit code is the verdict.
#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#include "ccl/member/member.h"
#include "ccl/nccl/nccl.h"
#include "fake_nccl/control.h"

namespace jhetcc::ccl {

void require(bool good, const std::string& text) {
  if (good) return;
  std::fprintf(stderr, "ccl_member: %s\n", text.c_str());
  std::_Exit(1);
}

std::shared_ptr<Library> Member::load(size_t which) const {
  const LoadOptions& options = libraries.at(which);
  if (options.name != "nccl") return must(ccl::load(options), "load " + options.name);
  nccl::NcclOptions nccl_options;
  nccl_options.path = options.path;
  return must(nccl::loadNccl(nccl_options), "load " + options.path);
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

int live(const std::string& scenario, const std::string& address, Member member) {
  net::Identity mine;
  mine.job = "conformance";
  mine.rank = member.rank;
  member.store = must(control::StoreClient::connect(must(net::Address::parse(address), "address"), net::Secret::none(),
                                                    mine, inSeconds(20)),
                      "the store");
  const auto found = scenarios().find(scenario);
  require(found != scenarios().end(), "no scenario " + scenario);
  return found->second(member);
}

int run(int count, char** arguments) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  require(count > 6, "usage: ccl_member STORE FIRST END SIZE SCENARIO NAME=PATH...");
  const int first = std::atoi(arguments[2]), end = std::atoi(arguments[3]);
  const std::string address = arguments[1], scenario = arguments[5];
  Member member;
  member.size = std::atoi(arguments[4]);
  member.is_process = end - first == 1;
  std::vector<std::unique_ptr<tests::fake_nccl::Control>> controls;
  for (int i = 6; i < count; ++i) {
    const std::string argument = arguments[i];
    LoadOptions options;
    options.name = argument.substr(0, argument.find('='));
    options.path = argument.substr(argument.find('=') + 1);
    options.is_crowded = member.size > static_cast<int32_t>(std::thread::hardware_concurrency());
    member.libraries.push_back(options);
    if (options.name == "nccl") controls.push_back(std::make_unique<tests::fake_nccl::Control>(options.path));
  }
  std::vector<int> codes(static_cast<size_t>(end - first));
  const auto liveAs = [&, libraries = member.libraries](int rank) {
    codes[static_cast<size_t>(rank - first)] =
        live(scenario, address, {rank, member.size, member.is_process, libraries, nullptr});
  };
  if (member.is_process) {
    liveAs(first);  // as a program's main thread would
  } else {
    std::vector<std::thread> ranks;
    for (int rank = first; rank < end; ++rank) ranks.emplace_back(liveAs, rank);
    for (std::thread& rank : ranks) rank.join();
  }
  for (const auto& control : controls) {
    require(control->counts().misuses == 0, "the library was misused");
    require(control->counts().communicators == 0 || scenario == "alone", "a communicator was left behind");
  }
  return *std::max_element(codes.begin(), codes.end());
}

}  // namespace
}  // namespace jhetcc::ccl

int main(int count, char** arguments) { return jhetcc::ccl::run(count, arguments); }
