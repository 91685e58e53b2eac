// SPDX-License-Identifier: Apache-2.0
// What identifies a communicator on the wire: the same on all its members, never that of an earlier one.
#include <doctest/doctest.h>

#include <set>

#include "runtime/process.h"

using namespace jhetcc;
using namespace jhetcc::runtime;

TEST_CASE("a communicator that is made again is another one, and the same one on all members") {
  std::vector<std::shared_ptr<Process>> processes;
  for (int32_t rank : {0, 1}) {
    auto process = Process::create({}, {rank}, {0});
    REQUIRE(process.isOk());
    processes.push_back(process.value());
  }
  std::set<uint64_t> ids;
  for (int life = 0; life < 3; ++life) {
    std::set<uint64_t> of_this_life;
    for (auto& process : processes) {
      REQUIRE(process->createCommunicator("pair", 0, {0, 1}, {"host:1", "host:2"}).isOk());
      of_this_life.insert(process->find("pair")->id);
      CHECK(process->createCommunicator("pair", 0, {0, 1}, {"host:1", "host:2"}).kind() == Kind::kBadArgument);
      process->destroyCommunicator("pair");
    }
    CHECK(of_this_life.size() == 1);
    ids.insert(of_this_life.begin(), of_this_life.end());
  }
  CHECK(ids.size() == 3);
}
